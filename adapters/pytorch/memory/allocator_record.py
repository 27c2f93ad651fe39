"""The allocator's own record of what calls take and give back: one for the CPU, one for CUDA.

The profiler records sizes of blocks on CUDA, which are rounded up and may be larger cached ones. There the allocator's
history has the bytes that were asked for.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ....planner.errors import AdapterError
from .. import torch_private

_MARK = "ogc-plan call "


class Event(NamedTuple):
    """Memory that was taken or, with negative bytes, given back."""

    address: int
    nbytes: int


class DevicePeak(NamedTuple):
    """The most bytes of a device that were asked for and that were reserved, with those from before the record."""

    requested_nbytes: int
    reserved_nbytes: int


class AllocatorRecord(Protocol):
    """A record that runs; spans, and the peak of the device, are read once it has ended."""

    peak: DevicePeak | None

    def span(self, number: int) -> AbstractContextManager[None]:
        """Call what is recorded under ``number``."""

    def events(self, number: int) -> list[Event]:
        """What happened in a span, in order."""


@contextmanager
def recording(device: torch.device) -> Iterator[AllocatorRecord]:
    """Record the allocator of ``device`` until the block ends.

    Raises AdapterError while another record runs that this one would end.
    """
    if torch_private.profiler_runs():
        raise AdapterError("a profiler is running", remedy="plan before it starts or after it has stopped")
    record = _CudaRecord(device) if device.type == "cuda" else _CpuRecord()
    with record.running():
        yield record


class _CpuRecord:
    """The profiler's record. It has no peak: others take memory of the CPU at the same time."""

    peak: DevicePeak | None = None

    def __init__(self) -> None:
        self._times: list[int] = []
        self._events: list[Event] = []
        self._spans: dict[str, tuple[int, int]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        record = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with _standard_error_closed():  # the profiler writes a line when it starts and when it stops
            record.start()
        try:
            yield
        finally:
            with _standard_error_closed():
                record.stop()
        self._read(record)

    def span(self, number: int) -> AbstractContextManager[None]:
        span: AbstractContextManager[None] = record_function(f"{_MARK}{number}")
        return span

    def events(self, number: int) -> list[Event]:
        start, end = self._spans[f"{_MARK}{number}"]
        return self._events[bisect_left(self._times, start) : bisect_right(self._times, end)]

    def _read(self, record: profile) -> None:
        found: list[tuple[int, Event]] = []
        pending = list(record.profiler.kineto_results.experimental_event_tree())
        while pending:
            entry = pending.pop()
            if entry.name == "[memory]":
                _, fields = entry.typed
                if fields.device.type == "cpu":
                    found.append((entry.start_time_ns, Event(fields.ptr, fields.alloc_size)))
            elif entry.name.startswith(_MARK):
                self._spans[entry.name] = (entry.start_time_ns, entry.end_time_ns)
            pending += entry.children
        found.sort(key=lambda timed: timed[0])
        self._times, self._events = [time for time, _ in found], [event for _, event in found]


_REQUESTED = {"alloc": 1, "free_requested": -1}
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class _CudaRecord:
    """The history of the caching allocator. A tensor that is allocated on either side of a span marks it."""

    peak: DevicePeak | None = None

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._spans: dict[int, list[Event]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        if torch_private.cuda_history_runs():
            raise AdapterError(
                "the CUDA allocator's history is being recorded",
                remedy="plan before it starts or after torch.cuda.memory._record_memory_history(enabled=None)",
            )
        if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ or torch.cuda.get_allocator_backend() != "native":
            raise AdapterError(
                "the bytes of calls are read from PyTorch's CUDA allocator, which is switched off",
                remedy="leave out PYTORCH_NO_CUDA_MEMORY_CACHING and backend:cudaMallocAsync",
            )
        before = torch.cuda.memory_stats(self._device)
        torch_private.record_cuda_history(True)
        try:
            yield
            trace = torch_private.cuda_history(self._device)
            self._read(trace)
            self.peak = DevicePeak(
                _most(trace, _REQUESTED, int(before.get("requested_bytes.all.current", 0))),
                _most(trace, _RESERVED, int(before.get("reserved_bytes.all.current", 0))),
            )
        finally:
            torch_private.record_cuda_history(False)
            self._marks.clear()

    @contextmanager
    def span(self, number: int) -> Iterator[None]:
        before = self._mark()
        yield
        self._marks[number] = before, self._mark()

    def events(self, number: int) -> list[Event]:
        return self._spans[number]

    def _mark(self) -> torch.Tensor:
        return torch.empty(1, dtype=torch.uint8, device=self._device)

    def _read(self, trace: list[tuple[str, int, int]]) -> None:
        taken = {address: position for position, (action, address, _) in enumerate(trace) if action == "alloc"}
        for number, marks in self._marks.items():
            first, last = (taken[mark.data_ptr()] for mark in marks)
            inside = [entry for entry in trace[first + 1 : last] if entry[0] in _REQUESTED]
            self._spans[number] = [Event(address, _REQUESTED[action] * nbytes) for action, address, nbytes in inside]


def _most(trace: list[tuple[str, int, int]], signs: Mapping[str, int], nbytes: int) -> int:
    """The highest sum of the sizes with the ``signs`` of their actions, from ``nbytes`` on."""
    changes = (signs[action] * size for action, _, size in trace if action in signs)
    return max(accumulate(changes, initial=nbytes))


@contextmanager
def _standard_error_closed() -> Iterator[None]:
    try:
        kept = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
