"""A pool of the CUDA allocator for planned steps: one large segment, in which only steps place their tensors.

The allocator serves the default pool from segments of many sizes; what a plan frees in one of them is of no use for a
larger request. In one segment free neighbours merge. Nothing else is placed there, so that each step finds the pool as
the one before it did, and takes what was predicted.

The segment is not expandable under ``expandable_segments`` either. An expandable one would grow as a step needs it; of
one that does not grow the best size can be chosen, and where its blocks lie. What a step needs beyond it, and small
requests, take expandable segments of the pool then.

Steps use the default pool where another would not help or would do harm: on other streams than the default one, as
blocks belong to streams, and a graph that is captured there has a pool of its own; while another thread runs a step;
and with expandable segments where PyTorch could not give a pool back (`torch_private.frees_expandable_pools`).
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar, Protocol

import torch

from .. import torch_private
from ..memory.caching_allocator import AllocatorSettings, Block, CachingAllocator, from_snapshot
from .request_trace import RequestTrace

_SHARES = (1.0, 1.005, 1.01, 1.015, 1.02, 1.03, 1.04, 1.05, 1.06, 1.08, 1.1, 1.12, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5)
"""Sizes of the segment that are tried, as shares of the peak of large requests."""
PAGE = 2 << 20
"""Segments are multiples of this many bytes."""
_LONGEST_WAIT = 1024
"""After at most so many steps the pool is looked at again that was in use when a larger segment was wanted."""


class PendingStep(Protocol):
    """A step that has begun, and is pending until its backward has run or its saved tensors are gone."""

    @property
    def is_pending(self) -> bool:
        """Whether it holds memory of the pool."""
        ...


class StepPool:
    """The pool of one device, which all planned steps share.

    Its free memory serves others when they would run out of memory. It is given back when the last of its users is
    gone, unless tensors of a step outlive it.

    Attributes:
        id: how the allocator's snapshots name the pool.
    """

    _of_device: ClassVar[dict[int, StepPool]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch_private.memory_pool(device)  # as long as this object lives
        self.id: tuple[int, int] = self._pool.id
        self._segment_nbytes = 0
        self._busy = threading.Lock()  # held by the thread that runs a step, or empties the pool
        self._thread: int | None = None  # the one that runs a step
        self._users = 0
        self._runs: list[weakref.ref[PendingStep]] = []
        self._takes_fillers = False
        self._wait, self._waited = 1, 0

    @classmethod
    def of(cls, device: torch.device) -> StepPool:
        """The pool of a device."""
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in cls._of_device:
            cls._of_device[index] = cls(torch.device("cuda", index))
        return cls._of_device[index]

    @classmethod
    def forget_all(cls) -> None:
        """Let go of all pools, as long as CUDA is there, but for those that a thread is in."""
        for pool in cls._of_device.values():
            if pool._busy.acquire(blocking=False):  # for good: nothing enters it any more
                pool._pool = None

    @classmethod
    def release_idle(cls) -> None:
        """Give the memory of all pools back that no tensor lives in, and what the allocator has cached."""
        for pool in cls._of_device.values():
            pool.release()
        torch.cuda.empty_cache()

    @property
    def reserved_nbytes(self) -> int:
        """What the pool takes of the device now."""
        return sum(segment["total_size"] for segment in torch_private.pool_segments(self.id, self.device))

    def usable(self) -> bool:
        """Whether a step that begins now on the current stream would be placed in the pool."""
        return torch_private.on_default_stream(self.device)

    def serve(self, user: object) -> None:
        """Keep the memory as long as the user lives."""
        self._users += 1
        weakref.finalize(user, self._user_gone).atexit = False

    def _user_gone(self) -> None:
        self._users -= 1
        if not self._users:
            self.release()

    def replaces(self, segment_nbytes: int) -> bool:
        """Whether a step that requires a segment would empty the pool first."""
        return self.takes(segment_nbytes) and self.reserved_nbytes > 0

    def model(self, segment_nbytes: int, settings: AllocatorSettings) -> CachingAllocator:
        """A model of the pool as a step finds it that requires a segment."""
        if self.takes(segment_nbytes):
            return fresh(segment_nbytes, settings)
        return from_snapshot(torch_private.pool_segments(self.id, self.device), settings, self.id)

    def takes(self, segment_nbytes: int) -> bool:
        """Whether a step that requires a segment would take a new one."""
        return segment_nbytes > self._segment_nbytes and self._waited + 1 >= self._wait and not self._in_use()

    def begin(self, run: PendingStep, nbytes: int, *, is_unused: bool) -> None:
        """Have a segment for a step that begins. ``is_unused`` is whether no gradients of others live in the pool.

        Steps that run from now on have fillers if this one finds the pool as it was planned for.
        """
        self.require(nbytes)
        pending = [ref for ref in self._runs if (other := ref()) is not None and other.is_pending]
        self._takes_fillers = is_unused and not pending and nbytes <= self._segment_nbytes
        self._runs = [*pending, weakref.ref(run)]

    def require(self, nbytes: int) -> None:
        """Have a segment of so many bytes, unless tensors of other steps live in the pool, or memory is short."""
        if nbytes <= self._segment_nbytes or not self.usable():
            return
        self._waited += 1
        if self._waited < self._wait:
            return
        self._waited, self._wait = 0, min(2 * self._wait, _LONGEST_WAIT)
        if self._in_use() or (self.reserved_nbytes and not self.release()):
            return
        try:
            self._take(nbytes)
        except torch.OutOfMemoryError:
            # Within a pool PyTorch 2.11 does not give back what is cached outside of it.
            torch.cuda.empty_cache()
            try:
                self._take(nbytes)
            except torch.OutOfMemoryError:
                return  # the step may fit in the pieces that it asks for
        self._segment_nbytes, self._wait = nbytes, 1

    def _take(self, nbytes: int) -> None:
        with self.entered(), torch_private.plain_segments():
            torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _in_use(self) -> bool:
        return any(segment["active_size"] for segment in torch_private.pool_segments(self.id, self.device))

    def release(self) -> bool:
        """Give the memory of the pool back, unless tensors live in it, a thread runs a step, or a graph is captured."""
        if torch.cuda.is_current_stream_capturing() or not self._busy.acquire(blocking=False):
            return False
        try:
            segments = torch_private.pool_segments(self.id, self.device)
            grown = any(segment["is_expandable"] for segment in segments)
            idle = not any(segment["active_size"] for segment in segments)
            idle = idle and (not grown or torch_private.frees_expandable_pools())
            if idle:
                if grown:
                    self._renew()
                else:
                    torch_private.empty_pool(self.id, self.device)
                self._segment_nbytes, self._wait, self._waited = 0, 1, 0
        finally:
            self._busy.release()
        return idle

    def _renew(self) -> None:
        self._pool = torch_private.memory_pool(self.device)  # the old one is destroyed, which frees its memory
        self.id = self._pool.id
        torch.cuda.empty_cache()  # as `torch_private.empty_pool` does

    def fill(self, *sizes: int) -> list[torch.UntypedStorage]:
        """Fillers of so many bytes, as far as there is memory.

        None for a step that is not placed in the pool, or where the last one that began found it in another state than
        planned: they would take memory beside the segment.
        """
        found: list[torch.UntypedStorage] = []
        if self._takes_fillers and self._thread == threading.get_ident():
            with contextlib.suppress(torch.OutOfMemoryError):
                for nbytes in sizes:  # no tensors, which deterministic algorithms would fill
                    found.append(torch.UntypedStorage(nbytes, device=self.device))
        return found

    def entered(self) -> AbstractContextManager[None]:
        """Place what this thread allocates in the pool, where it can be used."""
        return _Stay(self, self._busy)


class _Stay:
    """A thread's stay in the pool. It is entered for each part of a step, hence no generator, which takes longer."""

    __slots__ = ("_busy", "_inside", "_pool")

    def __init__(self, pool: StepPool, busy: threading.Lock) -> None:
        self._pool, self._busy, self._inside = pool, busy, False

    def __enter__(self) -> None:
        if not self._pool.usable() or not self._busy.acquire(blocking=False):
            return
        try:
            torch_private.enter_pool(self._pool.id, self._pool.device)
        except BaseException:
            self._busy.release()
            raise
        self._inside, self._pool._thread = True, threading.get_ident()

    def __exit__(self, *_: object) -> None:
        if self._inside:
            self._pool._thread = None
            try:
                torch_private.leave_pool(self._pool.id, self._pool.device)
            finally:
                self._busy.release()


atexit.register(StepPool.forget_all)


def best_segment(trace: RequestTrace, settings: AllocatorSettings) -> tuple[int, int]:
    """The bytes of the segment with which two steps reserve least, and those; 0 for a step without large requests."""
    best = least = 0
    for nbytes in segment_sizes(trace):
        if best and nbytes >= least:
            break  # with the segment alone as much is reserved
        reserved = reserves(trace, nbytes, settings)
        if not best or reserved < least:
            best, least = nbytes, reserved
    return best, least


def segment_sizes(trace: RequestTrace) -> list[int]:
    """The sizes of a segment that are tried, smallest first; none for a step without large requests."""
    held: dict[int, int] = {}
    now = peak = 0
    for key, nbytes in trace.of_large_segments().step:
        now += nbytes or -held.pop(key)
        held[key] = nbytes
        peak = max(peak, now)
    return sorted({-(-int(peak * share) // PAGE) * PAGE for share in _SHARES}) if peak else []


def fresh(segment_nbytes: int, settings: AllocatorSettings) -> CachingAllocator:
    """A pool with one free segment, which is not expandable."""
    allocator = CachingAllocator(replace(settings, expandable=False))
    allocator.release(allocator.allocate(segment_nbytes))
    allocator.reset_peak()
    allocator.settings = settings
    return allocator


def reserves(trace: RequestTrace, segment_nbytes: int, settings: AllocatorSettings) -> int:
    """The bytes that the pool reserves in two steps that begin with one free segment."""
    allocator = fresh(segment_nbytes, settings)
    two_steps(trace, allocator, CachingAllocator(settings))
    return allocator.peak.reserved_nbytes


def two_steps(trace: RequestTrace, pool: CachingAllocator, outside: CachingAllocator) -> None:
    """Let the pool serve two steps and the release of what they leave, and ``outside`` what their caller asks for."""
    blocks: dict[int, Block | None] = {}
    for _ in range(2):
        for key, nbytes in (*trace.step, *trace.after):
            allocator = outside if key in trace.outside else pool
            if nbytes:
                blocks[key] = allocator.allocate(nbytes)
            else:
                allocator.release(blocks.pop(key))
