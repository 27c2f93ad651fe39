"""A pool of the CUDA allocator for planned steps: one large segment, in which only steps place their tensors.

The allocator serves the default pool from segments of many sizes; what a plan frees in one of them is of no use for a
larger request. In one segment free neighbours merge. Nothing else is placed there, so that each step finds the pool as
the one before it did, and takes what was predicted.
"""

from __future__ import annotations

import atexit
import threading
from typing import ClassVar

import torch

from .. import torch_private
from ..memory.caching_allocator import AllocatorSettings, Block, CachingAllocator, from_snapshot
from .request_trace import RequestTrace

_SHARES = (1.0, 1.005, 1.01, 1.015, 1.02, 1.03, 1.04, 1.05, 1.06, 1.08, 1.1, 1.12, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5)
"""Sizes of the segment that are tried, as shares of the peak of large requests."""
_PAGE = 2 << 20
"""Segments are multiples of this many bytes."""


class StepPool:
    """The pool of one device, which all planned steps share.

    Outside of a step its free memory serves others only when they would run out of memory.
    """

    _of_device: ClassVar[dict[int, StepPool]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch_private.memory_pool()
        self._segment_nbytes = 0
        self._entered = threading.local()  # the pools that a thread is in, the last one innermost

    @classmethod
    def of(cls, device: torch.device) -> StepPool:
        """The pool of a device."""
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in cls._of_device:
            cls._of_device[index] = cls(torch.device("cuda", index))
        return cls._of_device[index]

    @classmethod
    def forget_all(cls) -> None:
        """Let go of all pools, as long as CUDA is there."""
        cls._of_device.clear()

    @classmethod
    def release_idle(cls) -> None:
        """Give the memory of all pools back that no tensor lives in, and what the allocator has cached."""
        for pool in cls._of_device.values():
            pool.release()
        torch.cuda.empty_cache()

    @property
    def id(self) -> tuple[int, int]:
        """How the allocator's snapshots name the pool."""
        found: tuple[int, int] = self._pool.id
        return found

    @property
    def reserved_nbytes(self) -> int:
        """What the pool takes of the device now."""
        return sum(segment["total_size"] for segment in torch_private.pool_segments(self._pool))

    def model(self, segment_nbytes: int, settings: AllocatorSettings) -> CachingAllocator:
        """A model of the pool as a step finds it that requires a segment."""
        segments = torch_private.pool_segments(self._pool)
        if segment_nbytes > self._segment_nbytes and not any(segment["active_size"] for segment in segments):
            return fresh(segment_nbytes, settings)
        return from_snapshot(segments, settings, self._pool.id)

    def require(self, nbytes: int) -> None:
        """Have a segment of so many bytes, unless one exists or tensors of other steps live in the pool."""
        if nbytes <= self._segment_nbytes:
            return
        self.release()
        if self._segment_nbytes == 0:
            with self:
                torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            self._segment_nbytes = nbytes

    def release(self) -> None:
        """Give the memory of the pool back to the device, unless tensors live in it or a thread runs a step."""
        in_use = any(segment["active_size"] for segment in torch_private.pool_segments(self._pool))
        if in_use or self._pool.use_count() > 1:
            return
        self._pool = torch_private.memory_pool()
        torch.cuda.empty_cache()
        self._segment_nbytes = 0

    def __enter__(self) -> StepPool:
        """Place what this thread allocates in the pool, unless a graph is captured, which has one of its own."""
        pool = None if torch.cuda.is_current_stream_capturing() else self._pool
        if not hasattr(self._entered, "pools"):
            self._entered.pools = []
        self._entered.pools.append(pool)
        if pool is not None:
            torch_private.enter_pool(pool, self.device)
        return self

    def __exit__(self, *_: object) -> None:
        """Place it in the default pool again."""
        pool = self._entered.pools.pop()
        if pool is not None:
            torch_private.leave_pool(pool, self.device)


atexit.register(StepPool.forget_all)


def best_segment(trace: RequestTrace, settings: AllocatorSettings) -> int:
    """The bytes of the segment with which two steps reserve least."""
    held: dict[int, int] = {}
    now = peak = 0
    for key, nbytes in trace.step:
        size = -(-nbytes // 512) * 512
        if nbytes and key not in trace.outside and size > 1 << 20:
            held[key] = size
            now += size
            peak = max(peak, now)
        elif not nbytes:
            now -= held.pop(key, 0)
    sizes = sorted({-(-int(peak * share) // _PAGE) * _PAGE for share in _SHARES}) if peak else [0]
    return min(sizes, key=lambda nbytes: (pool_reserves(trace, nbytes, settings), nbytes))


def fresh(segment_nbytes: int, settings: AllocatorSettings) -> CachingAllocator:
    """A pool with one free segment."""
    allocator = CachingAllocator(settings)
    allocator.release(allocator.allocate(segment_nbytes))
    allocator.reset_peak()
    return allocator


def pool_reserves(trace: RequestTrace, segment_nbytes: int, settings: AllocatorSettings) -> int:
    """The bytes that the pool reserves in two steps that begin with one free segment."""
    allocator = fresh(segment_nbytes, settings)
    two_steps(trace, allocator, CachingAllocator(settings))
    return allocator.peak.reserved_nbytes


def two_steps(trace: RequestTrace, pool: CachingAllocator, outside: CachingAllocator) -> None:
    """Let the pool serve two steps, and ``outside`` what their caller asks for meanwhile."""
    blocks: dict[int, Block | None] = {}
    for requests in (trace.step, trace.after, trace.again, trace.after):
        for key, nbytes in requests:
            allocator = outside if key in trace.outside else pool
            if nbytes:
                blocks[key] = allocator.allocate(nbytes)
            else:
                allocator.release(blocks.pop(key))
