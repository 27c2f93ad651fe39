"""The judge of a placement: replays the births and deaths of all items, and shares no code with the search."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from ..errors import PlacementMismatchError
from .interval import Interval, Placement


def check(items: Sequence[Interval], placement: Placement) -> None:
    """Raise PlacementMismatchError if two live items overlap, one leaves the arena, or a fixed one has moved."""
    if len(placement.offsets) != len(items):
        raise PlacementMismatchError(f"a placement of {len(placement.offsets)} items is given for {len(items)}")
    for number, (item, offset) in enumerate(zip(items, placement.offsets, strict=True)):
        if offset < 0 or offset + item.nbytes > placement.nbytes:
            raise PlacementMismatchError(
                f"item {number} reaches from {offset} to {offset + item.nbytes}, outside an arena of "
                f"{placement.nbytes} bytes"
            )
        if offset % placement.alignment:
            raise PlacementMismatchError(f"item {number} is at {offset}, no multiple of {placement.alignment}")
        if item.offset is not None and offset != item.offset:
            raise PlacementMismatchError(f"item {number} is at {offset}, but fixed at {item.offset}")
    overlap = first_overlap(items, placement.offsets)
    if overlap is not None:
        raise PlacementMismatchError(f"items {overlap[0]} and {overlap[1]} are alive together and overlap")


def first_overlap(items: Sequence[Interval], offsets: Sequence[int]) -> tuple[int, int] | None:
    """The first pair of items that are alive together and share a byte; None if there is none."""
    events = sorted(
        (moment, born, number)
        for number, item in enumerate(items)
        if item.nbytes
        for moment, born in ((item.begin, True), (item.end, False))
    )  # those that die at a moment make room for those that are born then
    alive: list[tuple[int, int]] = []  # offset and number of the live items, which do not overlap so far
    for _, born, number in events:
        mine = (offsets[number], number)
        at = bisect_left(alive, mine)
        if not born:
            del alive[at]
            continue
        if at and alive[at - 1][0] + items[alive[at - 1][1]].nbytes > mine[0]:
            return alive[at - 1][1], number
        if at < len(alive) and mine[0] + items[number].nbytes > alive[at][0]:
            return alive[at][1], number
        insort(alive, mine)
    return None
