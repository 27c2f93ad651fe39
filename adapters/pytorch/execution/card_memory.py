"""What a planned step needs of a CUDA device: the context, workspaces of libraries, and what the allocator reserves.

The step's requests are replayed on a model of the allocator, from the state that the real one is in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import fx

from .. import torch_private
from ..memory import caching_allocator
from ..memory.caching_allocator import (
    DEFAULT_POOL,
    AllocatorSettings,
    Block,
    CachingAllocator,
    Usage,
    from_snapshot,
)
from ..memory.cuda_workspaces import make_products, take_workspaces
from ..step.annotate import Annotated, device_of
from .codegen import Event, EventKind, Program
from .request_trace import RequestTrace, request_trace

LARGEST_CONTEXT = 1 << 30
"""What the device has in use beyond this, beside this allocator, is taken to be that of other processes."""


@dataclass(frozen=True, slots=True)
class CardMemory:
    """What a process needs of a CUDA device while a step runs, in bytes.

    Attributes:
        context_nbytes: the CUDA context, an estimate: all that is in use beside the allocator, at most 1 GiB.
        workspace_nbytes: what cuBLAS keeps; part of the three peaks.
        requested_nbytes, allocated_nbytes, reserved_nbytes: the peaks of what tensors ask for, of their blocks, and of
            the segments, as ``torch.cuda.memory_stats()`` will have them; everything in the process counts. What is
            reserved may be a segment less or more: where the driver places segments is not known.
        most_reserved_nbytes: the larger of what is reserved where new segments lie above and below the others.
        others_nbytes: the blocks that are in use now and have nothing to do with the step; part of the peaks.
    """

    context_nbytes: int
    workspace_nbytes: int
    requested_nbytes: int
    allocated_nbytes: int
    reserved_nbytes: int
    most_reserved_nbytes: int
    others_nbytes: int

    @property
    def step_nbytes(self) -> int:
        """What the device must have for the step alone."""
        return self.context_nbytes + self.most_reserved_nbytes - self.others_nbytes


@dataclass(frozen=True, slots=True)
class Present:
    """What a step finds on the device.

    Attributes:
        tensors: its parameters, buffers and arguments.
        gradients: the gradients that its parameters have.
        trained: the parameters that take one.
        states_nbytes: what an optimizer that has not begun yet will hold for them.
        accumulates: whether the step adds to gradients that exist. Otherwise they are dropped before it.
    """

    tensors: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]
    trained: tuple[torch.Tensor, ...]
    states_nbytes: int = 0
    accumulates: bool = False

    @staticmethod
    def of(
        parameters: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
        *,
        states_nbytes: int = 0,
        accumulates: bool = False,
    ) -> Present:
        """What a step finds of a module with these parameters, and buffers and arguments."""
        own = tuple(parameters)
        gradients = tuple(tensor.grad for tensor in own if tensor.grad is not None)
        trained = tuple(tensor for tensor in own if tensor.requires_grad)
        return Present((*own, *others), gradients, trained, states_nbytes, accumulates)


def card_memory(annotated: Annotated, program: Program, present: Present) -> CardMemory:
    """What two steps in a row need at most of their CUDA device, from the present state of the allocator.

    They run on the current stream: what is cached for other streams is not theirs. The allocator's settings are ones
    that the model knows (`unknown_setting`).

    Calls that were not measured before are measured now.
    """
    step, meter, device = annotated.step, annotated.meter, device_of(annotated.step)
    meter.measure(step.calls)
    kept_nbytes = take_workspaces(
        device, make_products(_called(program.forward_events)), make_products(_called(program.backward_events))
    )
    free, total = torch.cuda.mem_get_info(device)
    segments = torch_private.cuda_segments(device)
    trace = request_trace(step, program, meter, gradients_present=present.accumulates)
    stream = torch.cuda.current_stream(device).cuda_stream
    elsewhere = [each for each in segments if each["segment_pool_id"] != DEFAULT_POOL or each["stream"] != stream]
    served = [each for each in segments if each["segment_pool_id"] == DEFAULT_POOL and each["stream"] == stream]
    known = AllocatorSettings.of(torch_private.cuda_allocator_settings())
    allocator = from_snapshot(served, known)
    own = {block.address: block for block in _blocks(allocator, (*present.tensors, *present.gradients))}
    others = sum(segment["allocated_size"] for segment in segments) - kept_nbytes
    others -= sum(block.nbytes for block in own.values())
    reserved = sum(segment["total_size"] for segment in segments)
    below = from_snapshot(served, replace(known, descending=True))
    peak, other = (_peak(state, present, trace) for state in (allocator, below))
    return CardMemory(
        min(LARGEST_CONTEXT, max(0, total - free - reserved)),
        kept_nbytes,
        peak.requested_nbytes + sum(segment["requested_size"] for segment in elsewhere),
        peak.allocated_nbytes + sum(segment["allocated_size"] for segment in elsewhere),
        peak.reserved_nbytes + sum(segment["total_size"] for segment in elsewhere),
        max(peak.reserved_nbytes, other.reserved_nbytes) + sum(segment["total_size"] for segment in elsewhere),
        others,
    )


def _peak(allocator: CachingAllocator, present: Present, trace: RequestTrace) -> Usage:
    """The peaks of two steps from a state of the allocator."""
    _prepare(allocator, present, _blocks(allocator, present.gradients))
    allocator.reset_peak()
    two_steps(trace, allocator)
    return allocator.peak


def two_steps(trace: RequestTrace, allocator: CachingAllocator) -> None:
    """Let the allocator serve two steps, and the release of what they leave."""
    blocks: dict[int, Block | None] = {}
    for _ in range(2):
        for key, nbytes in (*trace.step, *trace.after):
            if not nbytes:
                allocator.release(blocks.pop(key))
            else:
                blocks[key] = allocator.allocate(nbytes)


def unknown_setting() -> str | None:
    """The name of an allocator setting in force that the model does not know; None if it knows all."""
    if torch.cuda.get_allocator_backend() != "native":
        return f"backend:{torch.cuda.get_allocator_backend()}"
    return caching_allocator.unknown_setting(torch_private.cuda_allocator_settings())


def _blocks(allocator: CachingAllocator, tensors: Iterable[torch.Tensor]) -> list[Block]:
    addresses = dict.fromkeys(tensor.untyped_storage().data_ptr() for tensor in tensors)
    return [block for address in addresses if (block := allocator.held_at(address)) is not None]


def _prepare(allocator: CachingAllocator, present: Present, gradients: list[Block]) -> None:
    """Bring the allocator into the state that the step finds."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in present.trained]
    if present.accumulates and not gradients:
        for nbytes in sizes:
            allocator.allocate(nbytes)
    if not present.accumulates:
        for block in gradients:
            allocator.release(block)
    whole = sum(sizes)
    for copies in range(-(-present.states_nbytes // max(1, whole))):  # one of each kind of state for each parameter
        share = min(1.0, present.states_nbytes / whole - copies)
        for nbytes in sizes:
            allocator.allocate(int(nbytes * share))


def _called(events: Iterable[Event]) -> list[fx.Node]:
    calls = (event for event in events if event.kind is EventKind.CALL)
    return [node for event in calls for node in event.about if isinstance(node, fx.Node)]
