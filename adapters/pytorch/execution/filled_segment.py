"""Where the requests of a step are placed in one segment, and the fillers that make the allocator place them there.

Offsets come from a placement of all requests at once (planner/arena), which needs hardly more than the step's peak. The
allocator knows only what is free: it takes the smallest free block that is large enough, from its lower end. Before a
call, fillers are allocated in free blocks that it would take instead, and below the offset that is wanted. A filler is
released when a request is to be placed where it lies. The allocator's rules are known (caching_allocator.py), so the
fillers are found before the step runs; every step that begins with the segment free takes the same addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....planner.arena.interval import Interval
from ....planner.arena.placement import place
from ..memory.caching_allocator import MIB, AllocatorSettings, Block, CachingAllocator
from .codegen import Filler, Fillers
from .request_trace import Request, RequestTrace
from .step_pool import fresh

_PAGE = 2 * MIB
_SMALL = MIB
"""Requests up to this size are served from small segments, where fillers pay nothing."""
_MOST_FILLERS = 30
"""Fillers before one call, beyond which its request is left to the allocator."""
_MOST_REPAIRS = 12
"""How often the requests to come are placed anew because one did not get its offset."""


@dataclass(frozen=True, slots=True)
class FilledSegment:
    """A segment with fillers, by the index of the request that they are allocated or released before."""

    nbytes: int
    fillers: Fillers

    def of_functions(self, trace: RequestTrace) -> tuple[Fillers, Fillers]:
        """The fillers by the events of the forward, and of the backward function."""
        found: tuple[dict[int, tuple[Filler, ...]], dict[int, tuple[Filler, ...]]] = ({}, {})
        for index, fillers in self.fillers.items():
            function, event = trace.calls[index]
            found[function][event] = fillers
        return found


def filled_segment(trace: RequestTrace, settings: AllocatorSettings) -> FilledSegment | None:
    """The smallest segment found in which fillers place all large requests of a step; None if there is none."""
    items = _items(trace)
    if not items:
        return None
    keys = list(items)
    placement = place([items[key] for key in keys])
    offsets = dict(zip(keys, placement.offsets, strict=True))
    nbytes = -(-placement.nbytes // _PAGE) * _PAGE
    return _Filling(trace, settings, items, offsets, nbytes).result()


def _items(trace: RequestTrace) -> dict[int, Interval]:
    """The large requests by key, as blocks of the allocator, with the indices at which they begin and end."""
    begun: dict[int, tuple[int, int]] = {}
    found: dict[int, Interval] = {}
    end = len(trace.step) + len(trace.after)
    for index, (key, nbytes) in enumerate((*trace.step, *trace.after)):
        if nbytes:
            begun[key] = index, -(-nbytes // 512) * 512
            continue
        start, size = begun.pop(key)
        if size > _SMALL and key not in trace.outside:
            found[key] = Interval(size, start, index if index < len(trace.step) else end)
    return found


class _Filling:
    """Serves a step on a model of the pool, and notes the fillers that keep the requests at their offsets."""

    def __init__(
        self,
        trace: RequestTrace,
        settings: AllocatorSettings,
        items: dict[int, Interval],
        offsets: dict[int, int],
        nbytes: int,
    ) -> None:
        self.trace, self.items, self.offsets, self.nbytes = trace, items, offsets, nbytes
        self.pool, self.outside = fresh(nbytes, settings), CachingAllocator(settings)
        start = self.pool.best_fit(nbytes)
        assert start is not None
        self.base = start.address
        self.live: dict[int, Block] = {}  # fillers by number
        self.notes: dict[int, list[Filler]] = {}
        self.count = self.repairs = 0

    def result(self) -> FilledSegment | None:
        """The fillers; None if a request did not get its offset and there was no repair."""
        blocks: dict[int, Block | None] = {}
        for index, request in enumerate(self.trace.step):
            if index == self.trace.ends:
                self._end()
            if not self._serve(index, request, blocks):
                return None
        return FilledSegment(self.nbytes, {index: tuple(noted) for index, noted in self.notes.items()})

    def _end(self) -> None:
        """A function ends: its fillers go with its names."""
        for block in self.live.values():
            self.pool.release(block)
        self.live.clear()

    def _serve(self, index: int, request: Request, blocks: dict[int, Block | None]) -> bool:
        key, nbytes = request
        allocator = self.outside if key in self.trace.outside else self.pool
        if not nbytes:
            allocator.release(blocks.pop(key))
            return True
        item = self.items.get(key)
        if item is not None and index in self.trace.calls:
            self._fill(index, item, self.base + self.offsets[key])
        block = blocks[key] = allocator.allocate(nbytes)
        if item is None:
            return True
        assert block is not None
        at = block.address - self.base
        if not 0 <= at < self.nbytes:
            return False
        return at == self.offsets[key] or self._moved(index, key, at)

    def _fill(self, index: int, item: Interval, wanted: int) -> None:
        """Make the allocator choose the block at ``wanted``."""
        for number, block in list(self.live.items()):
            if block.address < wanted + item.nbytes and wanted < block.address + block.nbytes:
                self.pool.release(self.live.pop(number))
                self.notes.setdefault(index, []).append(Filler(number, 0))
        for _ in range(_MOST_FILLERS):
            found = self.pool.best_fit(item.nbytes)
            if found is None or found.address == wanted:
                return
            size = found.nbytes
            if found.address < wanted and wanted + item.nbytes <= found.address + size:
                below = wanted - found.address
                first = self.pool.best_fit(below)
                size = below if first is found or first is None else first.nbytes
            if size <= _SMALL or size > self.nbytes:
                return
            block = self.pool.allocate(size)
            assert block is not None
            self.count += 1
            self.live[self.count] = block
            self.notes.setdefault(index, []).append(Filler(self.count, size))

    def _moved(self, index: int, key: int, at: int) -> bool:
        """Accept another offset; whether what is to come can be placed around it."""
        item = self.items[key]
        self.offsets[key] = at
        clash = any(
            other != key and each.begin < item.end and item.begin < each.end
            and self.offsets[other] < at + item.nbytes and at < self.offsets[other] + each.nbytes
            for other, each in self.items.items()
        )  # fmt: skip
        if not clash:
            return True
        self.repairs += 1
        if self.repairs > _MOST_REPAIRS:
            return False
        keys = list(self.items)
        fixed = [
            Interval(each.nbytes, each.begin, each.end, self.offsets[other] if each.begin <= index else None)
            for other, each in self.items.items()
        ]
        placement = place(fixed)
        if placement.nbytes > self.nbytes:
            return False
        self.offsets = dict(zip(keys, placement.offsets, strict=True))
        return True
