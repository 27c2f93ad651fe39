"""The time of one call: on CUDA that of its kernels, without launching them and without waiting for the card."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import torch_private

_CPU_RUNS = 3
_CPU_ENOUGH_NS = 100_000_000
"""A call on a CPU that has run for so long is not run again: a second run of it costs more than it tells."""
_MEASURED_NS = 1_000_000
"""Short calls are repeated for so long."""
_MOST_RUNS = 100
"""Several hundred kernels may wait in a stream before a launch waits, too."""


class CallTime(NamedTuple):
    """The shortest run of a call in ns, and by how much the next one was longer; None if there was none on a CPU."""

    ns: int
    spread_ns: int | None = None


def call_time(call: Callable[[], Any], device: torch.device, first_ns: int | None = None) -> CallTime:
    """The time of a call that has run before, in ``first_ns`` if that is known of a run on a CPU.

    Each result is dropped before the next run.
    """
    return CallTime(_cuda_time(call, device)) if device.type == "cuda" else _shortest(call, first_ns)


def _shortest(call: Callable[[], Any], first_ns: int | None) -> CallTime:
    """The shortest of a few runs on a CPU."""
    taken = [] if first_ns is None else [first_ns]
    for _ in range(_CPU_RUNS):
        if sum(taken) < _CPU_ENOUGH_NS:
            taken.append(_cpu_time(call))
    best, *others = sorted(taken)
    return CallTime(best, others[0] - best if others else None)


def _cpu_time(call: Callable[[], Any]) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def _cuda_time(call: Callable[[], Any], device: torch.device) -> int:
    """The better of one run by itself and the mean of several that are launched while the card is kept busy."""
    begun = time.perf_counter_ns()
    alone = _run(call, 1, device)
    launching = time.perf_counter_ns() - begun
    runs = max(2, min(_MOST_RUNS, _MEASURED_NS // max(alone, 1)))
    return max(1, min(alone, _run(call, runs, device, held_ns=runs * min(launching, _MEASURED_NS)) // runs))


def _run(call: Callable[[], Any], runs: int, device: torch.device, held_ns: int = 0) -> int:
    """Nanoseconds between the events before and after ``runs`` calls; the card starts ``held_ns`` later."""
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if held_ns:
            torch_private.keep_busy(held_ns, device)
        start.record()
        for _ in range(runs):
            call()
        end.record()
        end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return round(1e6 * elapsed)
