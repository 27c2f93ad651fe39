"""The CPU allocator's own record of a step, read from the profiler's memory events.

Unlike the storage meter this sees the workspace that kernels take and give back inside one call, and it
changes nothing about how autograd runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class Allocation:
    """One event: ``nbytes`` is negative for a release; ``operator`` is the call it happened in.

    ``accumulated`` marks the allocation of a block that was later added into a gradient that existed before.
    """

    time_ns: int
    address: int
    nbytes: int
    operator: str
    accumulated: bool = False


@dataclass(frozen=True, slots=True)
class AllocatorPeaks:
    """Peaks above what was allocated before the recording, in bytes, and where the activation peak sits."""

    total_nbytes: int
    activation_nbytes: int
    operator: str


def record(step: Callable[[], Any], *, gradients: Iterable[Tensor] = ()) -> list[Allocation]:
    """Run ``step`` under the profiler and return its CPU allocations and releases in order of time.

    Pass the parameters' ``.grad`` tensors that exist before the step, so that what is added into one of
    them in place is told from an activation.
    """
    present = {tensor.untyped_storage().data_ptr() for tensor in gradients}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=bool(present)) as profiler:
        kept = step()
    events: list[Allocation] = []
    added: list[tuple[int, int]] = []  # (time, address) of what an in-place addition adds to a gradient
    pending = [(node, "") for node in profiler.profiler.kineto_results.experimental_event_tree()]
    while pending:
        node, caller = pending.pop()
        kind, fields = node.typed
        if kind == _EventType.Allocation and fields.device.type == "cpu":
            events.append(Allocation(node.start_time_ns, fields.ptr, fields.alloc_size, caller))
        elif present and kind == _EventType.TorchOp and node.name == "aten::add_":
            target, operand = (getattr(value, "storage_data_ptr", None) for value in fields.inputs[:2])
            if target in present and operand is not None:
                added.append((node.start_time_ns, operand))
        pending += [(child, node.name) for child in node.children]
    del kept
    return _marked(sorted(events, key=lambda event: event.time_ns), sorted(added))


def _marked(events: list[Allocation], added: list[tuple[int, int]]) -> list[Allocation]:
    """The events, with the block that stood at each address of ``added`` at its time marked as accumulated."""
    latest: dict[int, int] = {}
    position = 0
    for time_ns, address in added:
        while position < len(events) and events[position].time_ns <= time_ns:
            if events[position].nbytes > 0:
                latest[events[position].address] = position
            position += 1
        if address in latest:
            events[latest[address]] = replace(events[latest[address]], accumulated=True)
    return events


def peaks(events: Iterable[Allocation], *, without: Iterable[Tensor] = ()) -> AllocatorPeaks:
    """Peaks of a recording; the activation peak ignores what became, or was added into, a parameter's gradient.

    Pass the parameters' final ``.grad`` tensors: the last blocks at their addresses are ignored from their
    allocation on, as the accumulated ones are. A release of memory older than the recording counts nothing.
    """
    events = list(events)
    addresses = {tensor.untyped_storage().data_ptr() for tensor in without}
    final = {event.address: i for i, event in enumerate(events) if event.nbytes > 0 and event.address in addresses}
    ignored = set(final.values())
    made: dict[int, bool] = {}  # address of a block of this recording -> whether it counts as an activation
    total = activation = total_peak = activation_peak = 0
    operator = ""
    for position, event in enumerate(events):
        if event.nbytes > 0:
            made[event.address] = position not in ignored and not event.accumulated
        elif event.address not in made:
            continue
        counts = made[event.address] if event.nbytes > 0 else made.pop(event.address)
        total += event.nbytes
        total_peak = max(total_peak, total)
        activation += event.nbytes if counts else 0
        if activation > activation_peak:
            activation_peak, operator = activation, event.operator
    return AllocatorPeaks(total_peak, activation_peak, operator)
