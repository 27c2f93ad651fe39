"""A model of PyTorch's CUDA caching allocator: requests and releases in, reserved bytes out.

The rules are those of torch 2.14 (c10/cuda/CUDACachingAllocator.cpp; constants: c10/core/AllocatorConfig.h): sizes are
rounded up to 512 B. Up to 1 MiB they come from a pool of small segments (2 MiB), else from a pool of large ones: 20 MiB
for requests below 10 MiB, rounded up to 2 MiB for the others. The smallest free block that is large enough is taken,
of equal ones that of the lowest address. It is split if what is left is worth a block, and free neighbours merge. An
expandable segment is one range of addresses for each pool, mapped page by page as it is needed. One stream and no
record of events: a block is free as soon as it is released.

Where the driver places a new segment is not known. It fills gaps that freed segments left, else it goes above the
others or, in a range of its own, below: on an H200 both were seen. Which of two equal blocks is taken depends on it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
SMALL_REQUEST = MIB
"""The largest request that small segments serve, and the most that a block of a large one has beyond its request."""
_ROUNDING, _SMALL_SEGMENT = 512, 2 * MIB
_LARGE_REQUEST, _LARGE_ROUNDING = 10 * MIB, 2 * MIB
_ADDRESS_SPACE = 1 << 44
"""Bytes of address space of an expandable segment: more than any card has."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What ``PYTORCH_ALLOC_CONF`` sets, as far as the model knows it.

    Attributes:
        expandable: ``expandable_segments``.
        large_segment_nbytes: ``large_segment_size_mb``, in bytes.
        descending: not a setting of PyTorch: new segments lie below all others, instead of above.
    """

    expandable: bool = False
    large_segment_nbytes: int = 20 * MIB
    descending: bool = False

    @staticmethod
    def of(found: Mapping[str, Any]) -> AllocatorSettings:
        """What the model knows of the ``allocator_settings`` of a snapshot; the defaults where it has none."""
        large = re.search(r"large_segment_size_mb:\s*([0-9]+)", str(found.get("PYTORCH_CUDA_ALLOC_CONF", "")))
        nbytes = int(large[1]) * MIB if large else AllocatorSettings().large_segment_nbytes
        return AllocatorSettings(bool(found.get("expandable_segments", False)), nbytes)


def unknown_setting(found: Mapping[str, Any]) -> str | None:
    """The name of one of a snapshot's ``allocator_settings`` that the model does not know; None if it knows all."""
    if any(found.get("roundup_power2_divisions", {}).values()):
        return "roundup_power2_divisions"
    names = {
        "max_split_size": "max_split_size_mb", "garbage_collection_threshold": "garbage_collection_threshold",
        "max_round_threshold": "max_non_split_rounding_mb", "max_cached_size": "max_cached_size",
    }  # fmt: skip
    return next((name for key, name in names.items() if found.get(key, -1) > 0), None)


@dataclass(slots=True)
class Usage:
    """Bytes that were asked for, that blocks in use have, and that segments take of the card."""

    requested_nbytes: int = 0
    allocated_nbytes: int = 0
    reserved_nbytes: int = 0

    def raise_to(self, now: Usage) -> None:
        """Raise each figure to that of ``now`` where it is less."""
        self.requested_nbytes = max(self.requested_nbytes, now.requested_nbytes)
        self.allocated_nbytes = max(self.allocated_nbytes, now.allocated_nbytes)
        self.reserved_nbytes = max(self.reserved_nbytes, now.reserved_nbytes)


@dataclass(eq=False, slots=True)
class Block:
    """A range of a segment: in use, free, or (``mapped`` false) without memory behind it.

    ``base`` is the address from which the pages of an expandable segment count; None for other segments.
    """

    pool: _Pool
    address: int
    nbytes: int
    base: int | None = None
    mapped: bool = True
    requested_nbytes: int = 0
    in_use: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass(eq=False, slots=True)
class _Pool:
    """The blocks for small or for large requests that may be taken."""

    small: bool
    page_nbytes: int
    free: list[tuple[int, int, Block]] = field(default_factory=list)  # by size, then by address
    unmapped: list[tuple[int, Block]] = field(default_factory=list)  # by address

    def add(self, block: Block) -> None:
        if block.mapped:
            insort(self.free, (block.nbytes, block.address, block))
        else:
            insort(self.unmapped, (block.address, block))

    def remove(self, block: Block) -> None:
        if block.mapped:
            del self.free[bisect_left(self.free, (block.nbytes, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, (block.address,))]

    def best_fit(self, nbytes: int) -> Block | None:
        """The block to take for a request, still in the pool, or None.

        An expandable block counts with what it can grow to, so that its tail is taken last.
        """
        position = bisect_left(self.free, (nbytes,))
        if position == len(self.free):
            return None
        block = self.free[position][2]
        while block.base is not None and position + 1 < len(self.free):
            following = self.free[position + 1][2]
            if _reach(following) >= _reach(block):
                break
            block, position = following, position + 1
        return block


def _reach(block: Block) -> int:
    """The bytes that a block has or can grow to."""
    after = block.after
    return block.nbytes + (after.nbytes if after is not None and not after.mapped else 0)


class CachingAllocator:
    """The state of the allocator for one device.

    Attributes:
        now: what is in use.
        peak: the most of each since the last `reset_peak`.
        place: gives the address of a new segment of so many bytes; to be replaced where the driver's choice is known.
    """

    def __init__(self, settings: AllocatorSettings = AllocatorSettings()) -> None:
        self.settings = settings
        self.place: Callable[[int], int] = self._beside
        self.now, self.peak = Usage(), Usage()
        self._small = _Pool(True, _SMALL_SEGMENT)
        self._large = _Pool(False, settings.large_segment_nbytes)
        self._start = self._end = _ADDRESS_SPACE
        self._held: dict[int, Block] = {}  # blocks in use by address

    # -- what a program does ---------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Block | None:
        """Take a block for a request; None for one of no bytes. The device has as much memory as is asked for."""
        if nbytes <= 0:
            return None
        size = block_nbytes(nbytes)
        pool = self._small if size <= SMALL_REQUEST else self._large
        block = pool.best_fit(size)
        if block is None:
            block = self._grown(pool, size)
        pool.remove(block)
        left = block.nbytes - size
        if left >= (_ROUNDING if pool.small else least_remainder_nbytes(self.settings)):
            rest = Block(pool, block.address + size, left, block.base, before=block, after=block.after)
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.nbytes = rest, size
            pool.add(rest)
        self._use(block, nbytes)
        return block

    def release(self, block: Block | None) -> None:
        """Give a block back to its pool; it merges with free neighbours."""
        if block is None:
            return
        assert block.in_use
        del self._held[block.address]
        self.now.allocated_nbytes -= block.nbytes
        self.now.requested_nbytes -= block.requested_nbytes
        block.in_use, block.requested_nbytes = False, 0
        self._merge(block)
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Give free segments, and free pages of expandable ones, back to the card."""
        for pool in (self._small, self._large):
            for _, _, block in list(pool.free):
                if block.base is not None:
                    self._unmap(block, block.base)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.now.reserved_nbytes -= block.nbytes

    def reset_peak(self) -> None:
        """Let the peaks be what is in use now."""
        now = self.now
        self.peak.requested_nbytes = now.requested_nbytes
        self.peak.allocated_nbytes = now.allocated_nbytes
        self.peak.reserved_nbytes = now.reserved_nbytes

    def count_with(self, other: CachingAllocator) -> None:
        """Count what is in use here and in another pool of the device together, in both."""
        both = Usage(
            self.now.requested_nbytes + other.now.requested_nbytes,
            self.now.allocated_nbytes + other.now.allocated_nbytes,
            self.now.reserved_nbytes + other.now.reserved_nbytes,
        )
        self.now = other.now = both
        self.reset_peak()
        other.peak = self.peak

    def held_at(self, address: int) -> Block | None:
        """The block in use at an address, for a state that was read from a snapshot."""
        return self._held.get(address)

    def held_as(self, requests: Mapping[int, int]) -> list[Block]:
        """The blocks in use at some addresses that were asked for so many bytes."""
        found = ((self.held_at(address), nbytes) for address, nbytes in requests.items())
        return [block for block, nbytes in found if block is not None and block.requested_nbytes == nbytes]

    def blocks(self) -> list[Block]:
        """The blocks in use and the free ones, by address."""
        free = (block for pool in (self._small, self._large) for _, _, block in pool.free)
        return sorted((*self._held.values(), *free), key=lambda block: block.address)

    # -- segments --------------------------------------------------------------------------------

    def _use(self, block: Block, nbytes: int) -> None:
        block.in_use, block.requested_nbytes = True, nbytes
        self._held[block.address] = block
        self.now.allocated_nbytes += block.nbytes
        self.now.requested_nbytes += nbytes
        self.peak.raise_to(self.now)

    def _grown(self, pool: _Pool, size: int) -> Block:
        """A free block of at least ``size`` bytes in new memory, in the pool."""
        if self.settings.expandable:
            return self._expanded(pool, size)
        if pool.small:
            nbytes = _SMALL_SEGMENT
        elif size < _LARGE_REQUEST:
            nbytes = self.settings.large_segment_nbytes
        else:
            nbytes = -(-size // _LARGE_ROUNDING) * _LARGE_ROUNDING
        self._reserve(nbytes)
        return self._segment(pool, self.place(nbytes), nbytes)

    def _beside(self, nbytes: int) -> int:
        return self._start - nbytes if self.settings.descending else self._end

    def _segment(self, pool: _Pool, address: int, nbytes: int, *, expandable: bool = False) -> Block:
        block = Block(pool, address, nbytes, address if expandable else None, mapped=not expandable)
        self._start, self._end = min(self._start, address), max(self._end, address + nbytes)
        pool.add(block)
        return block

    def _reserve(self, nbytes: int) -> None:
        self.now.reserved_nbytes += nbytes
        self.peak.raise_to(self.now)

    def _expanded(self, pool: _Pool, size: int) -> Block:
        block = self._growable(pool, size)
        if not block.mapped:
            block = self._map(block, min(block.nbytes, size))
        while block.nbytes < size:
            following = block.after
            assert following is not None
            block = self._map(following, min(size - block.nbytes, following.nbytes))
        return block

    def _growable(self, pool: _Pool, size: int) -> Block:
        """The first free or unmapped block from which on ``size`` bytes can be had in a row."""
        for _, block in pool.unmapped:
            start = block.before if block.before is not None and not block.before.in_use else block
            room = 0
            end: Block | None = start
            while room < size and end is not None and not end.in_use:
                room, end = room + end.nbytes, end.after
            if room >= size:
                return start
        return self._segment(pool, self._end, _ADDRESS_SPACE, expandable=True)

    def _map(self, block: Block, nbytes: int) -> Block:
        """Put pages behind the first bytes of an unmapped block; the free block that it then belongs to."""
        pool = block.pool
        nbytes = -(-nbytes // pool.page_nbytes) * pool.page_nbytes
        self._reserve(nbytes)
        pool.remove(block)
        block.mapped = True
        if nbytes < block.nbytes:
            rest = Block(
                pool, block.address + nbytes, block.nbytes - nbytes, block.base, mapped=False, before=block,
                after=block.after,
            )  # fmt: skip
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.nbytes = rest, nbytes
            pool.add(rest)
        self._merge(block)
        pool.add(block)
        return block

    def _unmap(self, block: Block, base: int) -> None:
        """Take the whole pages of a free block away."""
        pool, page = block.pool, block.pool.page_nbytes
        start = base - (base - block.address) // page * page
        end = base + (block.address + block.nbytes - base) // page * page
        if end <= start:
            return
        pool.remove(block)
        self.now.reserved_nbytes -= end - start
        head, tail = start - block.address, block.address + block.nbytes - end
        if head:
            front = Block(pool, block.address, head, base, before=block.before, after=block)
            if front.before is not None:
                front.before.after = front
            block.before = front
            pool.add(front)
        if tail:
            back = Block(pool, end, tail, base, before=block, after=block.after)
            if back.after is not None:
                back.after.before = back
            block.after = back
            pool.add(back)
        block.address, block.nbytes, block.mapped = start, end - start, False
        self._merge(block)
        pool.add(block)

    def _merge(self, block: Block) -> None:
        """Let a free block, not in the pool, take in its neighbours of the same kind."""
        for neighbour in (block.before, block.after):
            if neighbour is None or neighbour.in_use or neighbour.mapped != block.mapped:
                continue
            block.pool.remove(neighbour)
            block.nbytes += neighbour.nbytes
            if neighbour is block.before:
                block.address, block.before = neighbour.address, neighbour.before
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = neighbour.after
                if block.after is not None:
                    block.after.before = block


def least_remainder_nbytes(settings: AllocatorSettings) -> int:
    """The least bytes that must be left of a block for large requests for it to be split."""
    return _ROUNDING if settings.expandable else SMALL_REQUEST + 1


def block_nbytes(requested_nbytes: int) -> int:
    """The bytes of the block that is cut for a request of more than no bytes."""
    return -(-requested_nbytes // _ROUNDING) * _ROUNDING


DEFAULT_POOL = (0, 0)
"""The identity of the pool that serves all but graphs and memory pools of their own."""


def from_snapshot(
    segments: Iterable[Mapping[str, Any]], settings: AllocatorSettings, pool_id: tuple[int, int] = DEFAULT_POOL
) -> CachingAllocator:
    """The state of a snapshot's segments (``torch.cuda.memory_snapshot()``) on one device, of one pool.

    Blocks that wait for another stream count as in use. Where an expandable segment begins is not in a snapshot: pages
    below the first that is mapped, which were given back, are unknown, and the model maps others in their place.
    """
    made = CachingAllocator(settings)
    own = (segment for segment in segments if segment.get("segment_pool_id", DEFAULT_POOL) == pool_id)
    ranges = sorted(own, key=lambda segment: int(segment["address"]))
    tails: dict[bool, Block] = {}
    for segment in ranges:
        pool = made._small if segment["segment_type"] == "small" else made._large
        last = tails.get(pool.small) if segment["is_expandable"] else None
        address = segment["address"]
        base = None if not segment["is_expandable"] else address if last is None else last.base
        if last is not None and last.address + last.nbytes < address:
            gap = Block(pool, last.address + last.nbytes, address - last.address - last.nbytes, last.base, mapped=False)
            gap.before, last.after = last, gap
            pool.add(gap)
            last = gap
        for found in segment["blocks"]:
            block = Block(pool, address, found["size"], base, before=last)
            if last is not None:
                last.after = block
            made.now.reserved_nbytes += block.nbytes
            if found["state"] == "inactive":
                pool.add(block)
            else:
                made._use(block, found["requested_size"])
            last, address = block, address + found["size"]
        made._end = max(made._end, address)
        if segment["is_expandable"] and last is not None:
            tails[pool.small] = last
    for last in tails.values():
        rest = Block(last.pool, last.address + last.nbytes, _ADDRESS_SPACE, last.base, mapped=False, before=last)
        last.after = rest
        last.pool.add(rest)
        made._end = max(made._end, rest.address + rest.nbytes)  # as _segment has it: new ranges lie beyond
    made.reset_peak()
    return made
