"""Place items in one arena: a search of counted work, then an exact solver where the search left a gap.

Offline dynamic storage allocation is strongly NP-hard (Garey & Johnson, SR2), but training steps are kind to it:
promotion (first_fit.py) mostly reaches the largest sum of live bytes, which no arena is smaller than.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..limits import NO_LIMITS, Limits
from .interval import ALIGNMENT_NBYTES, Interval, Placement, most_alive

WIDE = 200
"""The exact solver is asked where the search ends more than 1/WIDE of the bound above it."""


def place(items: Sequence[Interval], *, alignment: int = ALIGNMENT_NBYTES, limits: Limits = NO_LIMITS) -> Placement:
    """Offsets at which no two items that are alive together overlap, in an arena as small as can be found.

    The same items get the same offsets on every machine, unless ``limits`` end the search early.

    Args:
        items: What to place; items with an offset stay there.
        alignment: All offsets are multiples of it, in bytes.
        limits: End the search early, with the best placement so far.

    Raises:
        ValueError: An item is alive for no time, has a negative size, or is fixed at an offset that is no multiple of
            the alignment or within another fixed item.
    """
    import numpy as np

    from .exact import smaller
    from .first_fit import Items
    from .search import Search

    _validate(items, alignment)
    slots = [-(-item.nbytes // alignment) for item in items]
    placed = [i for i, item in enumerate(items) if slots[i] and item.offset is not None]
    alive = [Interval(size, item.begin, item.end) for size, item in zip(slots, items, strict=True)]
    tops = [_offset(items[i]) // alignment + slots[i] for i in placed]
    bound = max([most_alive(alive), *tops])
    kept = np.array([i for i, size in enumerate(slots) if size], dtype=np.int64)
    offsets = [0 if item.offset is None else item.offset for item in items]
    if not len(kept):
        return Placement(tuple(offsets), 0, 0, alignment)
    columns = Items(*(np.array([values[i] for i in kept], dtype=np.int64) for values in (
        slots, [item.begin for item in items], [item.end for item in items]
    )))  # fmt: skip
    rank = {int(item): position for position, item in enumerate(kept)}
    fixed = np.array([rank[i] for i in placed], dtype=np.int64)
    fixed_low = np.array([_offset(items[i]) // alignment for i in placed], dtype=np.int64)
    search = Search(columns, fixed, fixed_low, limits)
    search.run(bound)
    best, height = search.best, search.height
    if height - bound > bound // WIDE and not limits.out_of_time():
        best, height, bound = smaller(columns, fixed, best, height, bound, limits)
    for position, item in enumerate(kept):
        offsets[item] = int(best[position]) * alignment
    return Placement(tuple(offsets), height * alignment, bound * alignment, alignment)


def _offset(item: Interval) -> int:
    assert item.offset is not None
    return item.offset


def _validate(items: Sequence[Interval], alignment: int) -> None:
    if alignment < 1:
        raise ValueError(f"alignment {alignment} is not positive")
    for number, item in enumerate(items):
        if item.nbytes < 0 or item.begin >= item.end:
            raise ValueError(f"item {number} has {item.nbytes} bytes from event {item.begin} to {item.end}")
        if item.offset is not None and (item.offset < 0 or item.offset % alignment):
            raise ValueError(f"item {number} is fixed at {item.offset}, which is no multiple of {alignment}")
    from .check import first_overlap

    fixed = [number for number, item in enumerate(items) if item.offset is not None]
    overlap = first_overlap([items[number] for number in fixed], [_offset(items[number]) for number in fixed])
    if overlap is not None:
        raise ValueError(f"items {fixed[overlap[0]]} and {fixed[overlap[1]]} are fixed over each other")
