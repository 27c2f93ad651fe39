"""What a planned step takes of the step pool, found by replaying its requests on the model of the allocator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..memory.caching_allocator import AllocatorSettings, Block, CachingAllocator, from_snapshot
from .request_trace import RequestTrace

_SHARES = (1.0, 1.005, 1.01, 1.015, 1.02, 1.03, 1.04, 1.05, 1.06, 1.08, 1.1, 1.12, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5)
"""Sizes of the segment that are tried, as shares of the peak of large requests."""
PAGE = 2 << 20
"""Segments are multiples of this many bytes."""


@dataclass(eq=False)
class StepSpace:
    """What a step takes of the pool.

    Attributes:
        trace: what it asks for.
        segment_nbytes: the bytes of the segment that suits it.
        reserved_nbytes: what it reserves in a pool with this segment alone.
        settings: those of the allocator that it was planned with.
        accumulates: whether steps leave their gradients outside of the pool, to which the next ones add theirs.
        most_nbytes: what the pool may reserve while it runs, so that its budget holds; None without such a budget.
        most_beyond_nbytes: what the pool and the default one may reserve together, beyond the blocks in use in the
            default one when the step begins; None without such a budget.
        replayed: by the segments of an idle pool, what it reserves there.
    """

    trace: RequestTrace
    segment_nbytes: int
    reserved_nbytes: int
    settings: AllocatorSettings
    accumulates: bool = False
    most_nbytes: int | None = None
    most_beyond_nbytes: int | None = None
    replayed: dict[tuple[tuple[int, str, bool], ...], int] = field(default_factory=dict)

    def is_within(self, segments: list[dict[str, Any]], pool_id: tuple[int, int]) -> bool:
        """Whether two steps in an idle pool of these segments leave it within the budget."""
        return self.most_nbytes is None or self.reserves_in(segments, pool_id) <= self.most_nbytes

    def reserves_in(self, segments: list[dict[str, Any]], pool_id: tuple[int, int]) -> int:
        """The bytes that two steps reserve in an idle pool of these segments."""
        ordered = sorted(segments, key=lambda segment: int(segment["address"]))
        state = tuple([(each["total_size"], each["segment_type"], each["is_expandable"]) for each in ordered])
        if state not in self.replayed:
            pool = from_snapshot(segments, self.settings, pool_id)
            two_steps(self.trace, pool, CachingAllocator(self.settings))
            self.replayed[state] = pool.peak.reserved_nbytes
        return self.replayed[state]

    def reserves_outside(
        self,
        segments: list[dict[str, Any]],
        outputs: Mapping[int, int],
        *,
        gradients_present: bool,
        emptied: bool = False,
    ) -> int:
        """The bytes that the default pool reserves in a step that begins with these segments.

        Args:
            segments: those of the default pool.
            outputs: the outputs that the step replaces, of which the caller may hold some until its forward has
                returned: their bytes by address.
            gradients_present: whether there are gradients to add to, so that none is copied out of the step pool.
            emptied: whether what is cached is given back before.
        """
        most = 0
        for descending in (False, True):
            default = from_snapshot(segments, replace(self.settings, descending=descending))
            if emptied:
                default.empty_cache()
                default.reset_peak()
            self._serve_outside(default, default.held_as(outputs), gradients_present)
            most = max(most, default.peak.reserved_nbytes)
        return most

    def _serve_outside(self, default: CachingAllocator, replaced: list[Block], gradients_present: bool) -> None:
        copies = {request.key for request in self.trace.after} if gradients_present else ()
        outside = self.trace.outside.difference(copies)
        blocks: dict[int, Block | None] = {}
        for key, nbytes in (request for request in self.trace.step if request.key in outside):
            if key in self.trace.tangents:  # the forward has returned
                while replaced:
                    default.release(replaced.pop())
            if nbytes:
                blocks[key] = default.allocate(nbytes)
            else:
                default.release(blocks.pop(key))


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


def two_steps(
    trace: RequestTrace,
    pool: CachingAllocator,
    outside: CachingAllocator,
    *,
    late_outputs: bool = False,
    replaced: Iterable[Block] = (),
) -> None:
    """Let the pool serve two steps and the release of what they leave, and ``outside`` the rest of their requests.

    With ``late_outputs`` the outputs of a forward are released when the next one has returned, as are the ones of
    ``outside`` that the first step has ``replaced``.
    """
    blocks: dict[int, Block | None] = {}
    waiting: list[tuple[CachingAllocator, Block | None]] = [(outside, block) for block in replaced]
    for _ in range(2):
        for key, nbytes in (*trace.step, *trace.after):
            allocator = outside if key in trace.outside else pool
            if nbytes:
                if key in trace.tangents:
                    while waiting:
                        owner, block = waiting.pop()
                        owner.release(block)
                blocks[key] = allocator.allocate(nbytes)
            elif late_outputs and key in trace.outputs:
                waiting.append((allocator, blocks.pop(key)))
            else:
                allocator.release(blocks.pop(key))
