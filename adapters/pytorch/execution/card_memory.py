"""What a planned step needs of a CUDA device: the context, workspaces of libraries, and what the allocator reserves.

The step's requests are replayed on a model of the allocator, from the state that the real one is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import fx

from ....planner.plan_file.record import Plan
from ....planner.problem import Scope
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
from .codegen import Event, EventKind, Pooling, Program, generate
from .fillers import with_less_reserved
from .request_trace import RequestTrace, accumulating_trace, request_trace
from .step_pool import Owner, StepPool, owner_of
from .step_space import StepSpace, best_segment, fresh, two_steps

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
        most_reserved_nbytes: the largest of what is reserved where new segments lie above and below the others, and
            where the caller drops the outputs before the next forward and only after it, as a loop that assigns them
            anew does.
        beyond_nbytes: what ``most_reserved_nbytes`` has in the default pool and that of steps, beyond the blocks that
            are in use in the default one when a step begins.
        others_nbytes: the blocks that are in use now and have nothing to do with the step; part of the peaks.
    """

    context_nbytes: int
    workspace_nbytes: int
    requested_nbytes: int
    allocated_nbytes: int
    reserved_nbytes: int
    most_reserved_nbytes: int
    beyond_nbytes: int
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
        owner: the module's identity for the step pool.
        accumulates: whether the step adds to gradients that exist, or that a first step leaves where there are none.
            Otherwise they are dropped before it.
    """

    tensors: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor, ...]
    trained: tuple[torch.Tensor, ...]
    owner: Owner
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
        return Present((*own, *others), gradients, trained, owner_of(own), states_nbytes, accumulates)


class Placed(NamedTuple):
    """The program of a plan, and what it takes of the step pool; None for a step that uses the default pool."""

    program: Program
    space: StepSpace | None


def placed(annotated: Annotated, plan: Plan, *, filled: bool = True) -> Placed:
    """The program that runs a plan, and where its tensors lie.

    Under a budget on the total it has fillers where these let it reserve less, unless ``filled`` is false. A budget on
    the activations bounds what tensors ask for, and fillers ask for memory too.

    Calls that were not measured before are measured now, and workspaces of cuBLAS taken, which are not of the pool.
    """
    step, meter = annotated.step, annotated.meter
    filled = filled and plan.budget.scope == Scope.TOTAL.value
    if device_of(step).type != "cuda" or unknown_setting() is not None:
        return Placed(generate(step, plan.schedule), None)
    settings = _settings()
    if settings.expandable and not torch_private.frees_expandable_pools():
        return Placed(generate(step, plan.schedule), None)
    pool = StepPool.of(device_of(step))
    pooling = Pooling({}, pool.fill, pool.outside)
    program = generate(step, plan.schedule, pooling=pooling)
    meter.measure(step.calls)
    _take_workspaces(annotated, program)
    accumulates = plan.budget.grad_accumulation
    if accumulates:
        trace = accumulating_trace(step, program, meter, copies_gradients=True)
    else:
        trace = request_trace(step, program, meter)
    segment_nbytes, reserved_nbytes = best_segment(trace, settings)
    better = with_less_reserved(trace, reserved_nbytes, settings) if filled else None
    if better is not None:
        program = generate(step, plan.schedule, pooling=replace(pooling, fillers=better.fillers))
        trace, segment_nbytes, reserved_nbytes = better.trace, better.segment_nbytes, better.reserved_nbytes
    space = StepSpace(trace, segment_nbytes, reserved_nbytes, settings, accumulates) if segment_nbytes else None
    return Placed(program, space)


def card_memory(annotated: Annotated, program: Program, space: StepSpace | None, present: Present) -> CardMemory:
    """What two steps in a row need at most of their CUDA device, from the present state of the allocator.

    They run on the current stream: what is cached for other streams is not theirs. The allocator's settings are ones
    that the model knows (`unknown_setting`). ``program`` and ``space`` are what `placed` gave.

    Calls that were not measured before are measured now.
    """
    step, meter, device = annotated.step, annotated.meter, device_of(annotated.step)
    meter.measure(step.calls)
    kept_nbytes = _take_workspaces(annotated, program)
    pool = None if space is None else StepPool.of(device)
    if pool is not None and not pool.usable():
        pool = space = None
    free, total = torch.cuda.mem_get_info(device)
    segments = torch_private.cuda_segments(device)
    copies, pooled = space is not None and space.accumulates, pool is not None
    if present.accumulates and not present.gradients:
        trace = accumulating_trace(step, program, meter, copies_gradients=copies, pooled=pooled)
    elif present.accumulates:
        trace = request_trace(step, program, meter, gradients_present=True, pooled=pooled)
    else:
        trace = request_trace(step, program, meter, copies_gradients=copies, pooled=pooled)
    stream = torch.cuda.current_stream(device).cuda_stream
    serving = (DEFAULT_POOL,) if pool is None else (DEFAULT_POOL, pool.id)
    served: list[dict[str, Any]] = []
    elsewhere: list[dict[str, Any]] = []
    for segment in segments:
        its = segment["segment_pool_id"] in serving and segment["stream"] == stream
        (served if its else elsewhere).append(segment)
    known = _settings()
    last = StepPool.of(device).replaced_outputs(present.owner, present.tensors)
    adds = present.accumulates and bool(present.gradients)
    empties = space is not None and StepPool.of(device).empties_cache(space, last, gradients_present=adds)
    pools = _pools(served, known, space, device, empties_cache=empties)
    last_blocks = pools.default.held_as(last)
    own = {block.address: block for block in pools.blocks((*present.tensors, *present.gradients))}
    own |= {block.address: block for block in last_blocks}
    others = sum(segment["allocated_size"] for segment in segments) - kept_nbytes
    others -= sum(block.nbytes for block in own.values())
    reserved = sum(segment["total_size"] for segment in segments)
    in_use_nbytes = _prepare(pools, present) - sum(block.nbytes for block in last_blocks)
    peak = _peak(pools, trace)
    most_nbytes = 0 if last_blocks else peak.reserved_nbytes
    for descending, late_outputs in product((False, True), (False, True)):
        if not (descending or late_outputs or last_blocks):
            continue  # that is the peak above
        state = _pools(served, replace(known, descending=descending), space, device, empties_cache=empties)
        _prepare(state, present)
        most_nbytes = max(most_nbytes, _peak(state, trace, last, late_outputs=late_outputs).reserved_nbytes)
    return CardMemory(
        min(LARGEST_CONTEXT, max(0, total - free - reserved)),
        kept_nbytes,
        peak.requested_nbytes + sum(segment["requested_size"] for segment in elsewhere),
        peak.allocated_nbytes + sum(segment["allocated_size"] for segment in elsewhere),
        peak.reserved_nbytes + sum(segment["total_size"] for segment in elsewhere),
        most_nbytes + sum(segment["total_size"] for segment in elsewhere),
        most_nbytes - in_use_nbytes,
        others,
    )


def _take_workspaces(annotated: Annotated, program: Program) -> int:
    """Let the threads of the step take the workspaces of their products; the bytes of those."""
    forward, backward = (make_products(_called(events)) for events in (program.forward_events, program.backward_events))
    return take_workspaces(device_of(annotated.step), forward, backward)


class _Pools(NamedTuple):
    """Models of the pools that a step finds: the default one, and that of its own tensors, which may be the same."""

    default: CachingAllocator
    own: CachingAllocator
    taken_nbytes: int = 0  # of the segment that the first step takes, for a moment as one tensor

    def blocks(self, tensors: Iterable[torch.Tensor]) -> list[Block]:
        """The blocks of tensors."""
        addresses = dict.fromkeys(tensor.untyped_storage().data_ptr() for tensor in tensors)
        found = (each.held_at(address) for each in dict.fromkeys(self[:2]) for address in addresses)
        return [block for block in found if block is not None]

    def release(self, block: Block) -> None:
        """Give a block back to the pool that it is of."""
        next(each for each in self[:2] if each.held_at(block.address) is block).release(block)


def _pools(
    segments: Iterable[dict[str, Any]],
    known: AllocatorSettings,
    space: StepSpace | None,
    device: torch.device,
    *,
    empties_cache: bool,
) -> _Pools:
    """The pools as the segments of a snapshot say; the peaks are of both together."""
    default = from_snapshot(segments, known)
    if space is None:
        return _Pools(default, default)
    pool = StepPool.of(device)
    takes = pool.takes(space)
    if empties_cache or (takes and pool.reserved_nbytes):
        default.empty_cache()
    own = fresh(space.segment_nbytes, known) if takes else pool.model(known)
    default.count_with(own)
    return _Pools(default, own, space.segment_nbytes if takes else 0)


def _peak(
    pools: _Pools, trace: RequestTrace, last: Mapping[int, int] | None = None, *, late_outputs: bool = False
) -> Usage:
    """The peaks of two steps from a state of the allocator (`two_steps`), of outputs that replace the ``last`` ones."""
    replaced = [] if last is None else pools.default.held_as(last)
    if not late_outputs:
        while replaced:
            pools.default.release(replaced.pop())
    pools.default.reset_peak()
    now, taken = pools.default.now, pools.taken_nbytes
    pools.default.peak.raise_to(Usage(now.requested_nbytes + taken, now.allocated_nbytes + taken, now.reserved_nbytes))
    two_steps(trace, pools.own, pools.default, late_outputs=late_outputs, replaced=replaced)
    return pools.default.peak


def _settings() -> AllocatorSettings:
    return AllocatorSettings.of(torch_private.cuda_allocator_settings())


def unknown_setting() -> str | None:
    """The name of an allocator setting in force that the model does not know; None if it knows all."""
    if torch.cuda.get_allocator_backend() != "native":
        return f"backend:{torch.cuda.get_allocator_backend()}"
    return caching_allocator.unknown_setting(torch_private.cuda_allocator_settings())


def _prepare(pools: _Pools, present: Present) -> int:
    """Bring the pools into the state that the step finds; the bytes of the blocks in use in the default one."""
    gradients = pools.blocks(present.gradients)
    allocator = pools.default
    sizes = [tensor.numel() * tensor.element_size() for tensor in present.trained]
    if not present.accumulates:
        for block in gradients:
            pools.release(block)
    whole = sum(sizes)
    for copies in range(-(-present.states_nbytes // max(1, whole))):  # one of each kind of state for each parameter
        share = min(1.0, present.states_nbytes / whole - copies)
        for nbytes in sizes:
            allocator.allocate(int(nbytes * share))
    return sum(block.nbytes for block in allocator.blocks() if block.in_use)


def _called(events: Iterable[Event]) -> list[fx.Node]:
    calls = (event for event in events if event.kind is EventKind.CALL)
    return [node for event in calls for node in event.about if isinstance(node, fx.Node)]
