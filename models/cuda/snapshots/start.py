"""The state of the allocator before the first event of a snapshot, found by undoing the events from the last on.

Events tell what was asked for, not how large a block was given. A block of a large segment can have up to 1 MiB more
than its request. Where such a block ends is told by the next block, or by a later event: while it is in use, the first
block that is given right behind it starts at its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ogc_plan.adapters.pytorch.memory.caching_allocator import DEFAULT_POOL, MIB, SMALL_REQUEST, block_nbytes

from models.cuda.snapshots.reading import Event

_SMALL_SEGMENT = 2 * MIB


@dataclass(slots=True)
class _Held:
    """A block in use: what was asked for and, if it is known, what it has."""

    requested_nbytes: int
    nbytes: int | None = None


@dataclass(slots=True)
class _Range:
    """A segment."""

    nbytes: int
    small: bool
    stream: int


@dataclass(frozen=True, slots=True)
class Start:
    """The state before the first event.

    Attributes:
        segments: as in a snapshot.
        inferred: the number of blocks with more than their request whose end a later event told.
        unfit: the number of events that do not lead to the segments of the snapshot.
    """

    segments: list[dict[str, Any]]
    inferred: int
    unfit: int


def start_of(segments: Sequence[dict[str, Any]], events: Sequence[Event]) -> Start:
    """The state from which ``events`` lead to ``segments``."""
    ranges = {
        each["address"]: _Range(each["total_size"], each["segment_type"] == "small", each["stream"])
        for each in segments
    }
    held: dict[int, _Held] = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                held[address] = _Held(block["requested_size"], block["size"])
            address += block["size"]
    unfit = 0
    for event in reversed(events):
        if event.action == "alloc":
            unfit += held.pop(event.address, None) is None
        elif event.action == "free_completed":
            unfit += event.address in held
            held[event.address] = _Held(event.nbytes)
        elif event.action == "segment_alloc":
            unfit += ranges.pop(event.address, None) is None
        elif event.action == "segment_free":
            unfit += event.address in ranges
            ranges[event.address] = _Range(event.nbytes, event.nbytes <= _SMALL_SEGMENT, event.stream)
    ends = _told_ends(held, events)
    addresses = sorted(held)
    made, placed, inferred, reached = [], 0, 0, 0
    for address, each in sorted(ranges.items()):
        inside = addresses[bisect_left(addresses, address) : bisect_left(addresses, address + each.nbytes)]
        blocks, told, fits = _blocks(address, each, {key: held[key] for key in inside}, ends)
        made.append({
            "address": address, "total_size": each.nbytes, "segment_type": "small" if each.small else "large",
            "stream": each.stream, "is_expandable": False, "segment_pool_id": DEFAULT_POOL, "blocks": blocks,
        })  # fmt: skip
        unfit += address < reached or not fits
        placed, inferred, reached = placed + len(inside), inferred + told, address + each.nbytes
    return Start(made, inferred, unfit + len(held) - placed)


def _told_ends(held: dict[int, _Held], events: Sequence[Event]) -> dict[int, int]:
    """The ends of blocks of unknown size that the first block given right behind them tells."""
    ends: dict[int, int] = {}
    waiting = sorted(address for address, each in held.items() if each.nbytes is None)
    for event in events:
        if event.action not in ("alloc", "free_completed"):
            continue
        position = bisect_right(waiting, event.address) - 1
        if position < 0:
            continue
        address = waiting[position]
        if event.action == "free_completed":
            if address == event.address:
                del waiting[position]
        elif 0 <= event.address - address - block_nbytes(held[address].requested_nbytes) <= SMALL_REQUEST:
            ends[address] = event.address
            del waiting[position]
    return ends


def _blocks(
    start: int, segment: _Range, inside: dict[int, _Held], ends: dict[int, int]
) -> tuple[list[dict[str, Any]], int, bool]:
    """The blocks of a segment, how many of their ends a later event told, and whether they fit."""
    blocks: list[dict[str, Any]] = []
    told, fits = 0, True
    at, end = start, start + segment.nbytes
    limits = [*inside, end][1:]
    for (address, each), limit in zip(inside.items(), limits, strict=True):
        if address > at:
            blocks.append({"size": address - at, "requested_size": 0, "state": "inactive"})
        nbytes = each.nbytes
        if nbytes is None:
            nbytes = block_nbytes(each.requested_nbytes)
            if not segment.small and limit - address - nbytes <= SMALL_REQUEST:
                nbytes = limit - address
            elif not segment.small and address in ends:
                told += ends[address] != address + nbytes
                nbytes = ends[address] - address
        at = address + nbytes
        fits = fits and 0 < nbytes <= limit - address
        blocks.append({"size": nbytes, "requested_size": each.requested_nbytes, "state": "active_allocated"})
    if at < end:
        blocks.append({"size": end - at, "requested_size": 0, "state": "inactive"})
    return blocks, told, fits
