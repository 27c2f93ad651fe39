"""Fillers: memory held during one call of a step, so that the call's own memory comes from another free block.

The caching allocator takes the smallest free block that is large enough. It does not know how long a request will live,
and so it may put one that lives long in the middle of what a large request will need. A filler has the size of the
block that the allocator would take. The call then gets the next larger one, and the block is whole afterwards.

Which calls get one is found by a local search, in the manner of the searches for dynamic storage allocation (Garey &
Johnson, SR2): the requests of two steps are served in one segment by the allocator's rules. As long as one does not
fit, a filler is put before a call whose memory lies beside a free block then, or taken away. A change stays if no
fewer requests are served.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ..memory.caching_allocator import AllocatorSettings, least_remainder_nbytes
from .request_trace import NO_CALL, Request, RequestTrace
from .step_space import PAGE, reserves, segment_sizes

Fillers = Mapping[int, tuple[int, ...]]
"""By the number of a call in a program (`codegen.Event`), the bytes of each filler that is held during it."""
_WORK, _WORK_OF_A_SIZE = 1_000_000, 250_000
"""The search ends when so many requests were served, in all and for one size of the segment: about a second."""
_MOST = 3
"""Fillers of one call."""
_WORTH = 0.01
"""The segment becomes smaller by this share of what is reserved, as long as fillers are found for it."""
_NEAR = 0.8
"""How often a call is tried whose memory lies beside a free block; otherwise it may be any earlier one."""


class Served(NamedTuple):
    """The number of requests of two steps that were served, in order.

    ``taken`` has, for each call, the bytes of the free block that its first large request took last. ``beside`` are the
    calls whose memory lay beside a free block in the end, ``earlier`` all that had memory.
    """

    number: int
    taken: dict[int, int]
    beside: list[int]
    earlier: list[int]


class LargeRequests:
    """The requests of a step that large segments serve, in order."""

    def __init__(self, trace: RequestTrace, settings: AllocatorSettings) -> None:
        large = trace.of_large_segments()
        self.requests = [(*request, call) for request, call in zip(large.step, large.calls, strict=True)]
        self.after = [key for key, _ in large.after]
        self.settings = settings
        self.count = 2 * len(self.requests)
        self.served = 0  # so far, by all searches

    def serve(self, segment_nbytes: int, fillers: Fillers) -> Served:
        """Serve two steps from one segment, up to the first request that does not fit."""
        self.served += 1  # so that a search ends where nothing fits
        segment = _Segment(segment_nbytes, self.settings)
        place: dict[int, tuple[int, int]] = {}  # key -> address, call
        taken: dict[int, int] = {}
        count = 0
        for _ in range(2):
            now, held = NO_CALL, list[int]()
            for key, nbytes, call in self.requests:
                if call != now:
                    for address in held:
                        segment.release(address)
                    now, held = call, [segment.take(size) for size in fillers.get(call, ())]
                    taken.pop(call, None)
                if nbytes:
                    taken.setdefault(call, segment.best_fit(nbytes))
                    address = segment.take(nbytes)
                    place[key] = address, call
                else:
                    segment.release(place.pop(key)[0])
                if segment.is_full:
                    beside = [made for at, made in place.values() if made != NO_CALL and segment.is_beside_free(at)]
                    earlier = sorted({made for _, made in place.values() if made != NO_CALL})
                    return Served(count, taken, beside, earlier)
                count += 1
                self.served += 1
            for address in held:
                segment.release(address)
            for key in self.after:
                segment.release(place.pop(key)[0])
        return Served(count, taken, [], [])


class _Segment:
    """One segment and its free blocks. What does not fit is at -1, and the segment ``is_full`` from then on.

    It does what `CachingAllocator` does within the segment of a step pool, without anything else, as a search serves a
    million requests.
    """

    def __init__(self, nbytes: int, settings: AllocatorSettings) -> None:
        self.least_remainder, self.is_full = least_remainder_nbytes(settings), False
        self._free = [(nbytes, 0)]  # by size, then by address
        self._from = {0: nbytes}  # where a free block begins -> its size
        self._to = {nbytes: 0}  # where it ends -> where it begins
        self._used: dict[int, int] = {}

    def best_fit(self, nbytes: int) -> int:
        """The bytes of the block that a request would take; 0 if it does not fit."""
        position = bisect_left(self._free, (nbytes,))
        return self._free[position][0] if position < len(self._free) else 0

    def take(self, nbytes: int) -> int:
        """The address of a block for a request."""
        position = bisect_left(self._free, (nbytes,))
        if position == len(self._free):
            self.is_full = True
            return -1
        size, address = self._free.pop(position)
        del self._from[address], self._to[address + size]
        if size - nbytes >= self.least_remainder:
            self._add(address + nbytes, size - nbytes)
            size = nbytes
        self._used[address] = size
        return address

    def release(self, address: int) -> None:
        """Give a block back; it merges with free neighbours."""
        size = self._used.pop(address, 0)
        if not size:  # it did not fit
            return
        if address + size in self._from:
            size += self._remove(address + size)
        if address in self._to:
            before = self._to[address]
            size += self._remove(before)
            address = before
        self._add(address, size)

    def is_beside_free(self, address: int) -> bool:
        """Whether a block in use has a free neighbour."""
        return address in self._to or address + self._used.get(address, 0) in self._from

    def _add(self, address: int, nbytes: int) -> None:
        self._from[address], self._to[address + nbytes] = nbytes, address
        insort(self._free, (nbytes, address))

    def _remove(self, address: int) -> int:
        nbytes = self._from.pop(address)
        del self._to[address + nbytes], self._free[bisect_left(self._free, (nbytes, address))]
        return nbytes


class Filled(NamedTuple):
    """Fillers of a step, the bytes of the segment that serves it with them, and all that it reserves.

    ``trace`` has the requests of the step with them.
    """

    fillers: Fillers
    segment_nbytes: int
    reserved_nbytes: int
    trace: RequestTrace


@lru_cache(maxsize=16)
def with_less_reserved(trace: RequestTrace, reserved_nbytes: int, settings: AllocatorSettings) -> Filled | None:
    """Fillers with which a step reserves less; None if none are found, or little could be gained.

    The search takes the same way each time, and what it found last is kept: a plan is looked at when it is tried, and
    when it is bound. ``reserved_nbytes`` is what the step reserves without fillers.
    """
    sizes = segment_sizes(trace)
    if not sizes:
        return None
    best: Filled | None = None
    step, least = LargeRequests(trace, settings), sizes[0]
    segment_nbytes = reserved_nbytes
    fillers: Fillers = {}
    while step.served < _WORK:
        segment_nbytes = int(segment_nbytes * (1 - _WORTH)) // PAGE * PAGE
        if segment_nbytes < least:
            break
        fillers, serves_all = _searched(step, segment_nbytes, fillers)
        if not serves_all:
            fillers, serves_all = _searched(step, segment_nbytes, {})
        if not serves_all:
            break
        filled = with_fillers(trace, fillers)
        taken = reserves(filled, segment_nbytes, settings)
        if taken < reserved_nbytes:
            best, reserved_nbytes = Filled(fillers, segment_nbytes, taken, filled), taken
    return best


def _searched(step: LargeRequests, segment_nbytes: int, start: Fillers) -> tuple[Fillers, bool]:
    """Fillers with which one segment serves the most requests of two steps, and whether that is all of them.

    The search begins with ``start``.
    """
    chance = random.Random(0)
    enough = step.served + _WORK_OF_A_SIZE
    best: dict[int, tuple[int, ...]] = dict(start)
    found = step.serve(segment_nbytes, best)
    while found.number < step.count and found.earlier and step.served < enough:
        near = found.beside and chance.random() < _NEAR
        call = chance.choice(found.beside if near else found.earlier)
        own = best.get(call, ())
        changed = {each: sizes for each, sizes in best.items() if each != call}
        if not own or (len(own) < _MOST and chance.random() < 0.6):
            changed[call] = (*own, found.taken.get(call, 0))
        if 0 in changed.get(call, ()):
            step.served += 1
            continue  # its request did not fit
        tried = step.serve(segment_nbytes, changed)
        if tried.number >= found.number:
            best, found = changed, tried
    if found.number < step.count:
        return best, False
    for call in list(best):  # those that make no difference
        fewer = {each: sizes for each, sizes in best.items() if each != call}
        if step.serve(segment_nbytes, fewer).number == step.count:
            best = fewer
    return best, True


def with_fillers(trace: RequestTrace, fillers: Fillers) -> RequestTrace:
    """The requests of a step whose program has fillers."""
    key = max((request.key for request in trace.step), default=0)
    requests, calls = list[Request](), list[int]()
    held: list[int] = []
    now = NO_CALL
    for request, call in zip((*trace.step, None), (*trace.calls, NO_CALL), strict=True):
        if call != now:
            requests += [Request(number, 0) for number in held]
            calls += [NO_CALL] * len(held)
            held = list(range(key + 1, key + 1 + len(fillers.get(call, ()))))
            requests += [Request(number, nbytes) for number, nbytes in zip(held, fillers.get(call, ()), strict=True)]
            calls += [NO_CALL] * len(held)
            key, now = key + len(held), call
        if request is not None:
            requests.append(request)
            calls.append(call)
    return replace(trace, step=tuple(requests), calls=tuple(calls))
