"""The CPU allocator's own record of a step, read from the profiler's memory events.

Unlike the storage meter this sees the workspace that kernels take and give back inside one call, and it
changes nothing about how autograd runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class Allocation:
    """One event: ``nbytes`` is negative for a release; ``operator`` is the call it happened in."""

    time_ns: int
    address: int
    nbytes: int
    operator: str


@dataclass(frozen=True, slots=True)
class AllocatorPeaks:
    """Peaks above what was allocated before the recording, in bytes, and where the activation peak sits."""

    total_nbytes: int
    activation_nbytes: int
    operator: str


def record(step: Callable[[], Any]) -> list[Allocation]:
    """Run ``step`` under the profiler and return its CPU allocations and releases in order of time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = step()
    events: list[Allocation] = []
    pending = [(node, "") for node in profiler.profiler.kineto_results.experimental_event_tree()]
    while pending:
        node, caller = pending.pop()
        kind, fields = node.typed
        if kind == _EventType.Allocation and fields.device.type == "cpu":
            events.append(Allocation(node.start_time_ns, fields.ptr, fields.alloc_size, caller))
        pending += [(child, node.name) for child in node.children]
    del kept
    return sorted(events, key=lambda event: event.time_ns)


def peaks(events: Iterable[Allocation], *, without: Iterable[Tensor] = ()) -> AllocatorPeaks:
    """Peaks of a recording; the activation peak ignores the last blocks at the addresses of ``without``.

    Pass the parameters' final ``.grad`` tensors.
    """
    events = list(events)
    addresses = {tensor.untyped_storage().data_ptr() for tensor in without}
    final = {event.address: i for i, event in enumerate(events) if event.nbytes > 0 and event.address in addresses}
    ignored = set(final.values())
    total = activation = total_peak = activation_peak = 0
    operator = ""
    for position, event in enumerate(events):
        total += event.nbytes
        total_peak = max(total_peak, total)
        if position in ignored:
            continue
        activation += event.nbytes
        if activation > activation_peak:
            activation_peak, operator = activation, event.operator
    return AllocatorPeaks(total_peak, activation_peak, operator)
