"""The smallest arena of a few items by trying every order: some optimum is what first fit makes of one of them.

Push every item of an optimal placement down until it rests on another item or on the floor, lowest first: placing the
items by first fit in the order of those offsets gives no larger arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from ogc_plan.planner.arena.interval import Interval


def smallest_arena(items: Sequence[Interval], alignment: int) -> int:
    """Bytes of the smallest arena; items that are not fixed, few of them."""
    sizes = [-(-item.nbytes // alignment) * alignment for item in items]
    fixed = {n: item.offset for n, item in enumerate(items) if item.offset is not None}
    best = None
    for order in permutations(n for n in range(len(items)) if n not in fixed):
        offsets = dict(fixed)
        for number in order:
            mine = items[number]
            others = [n for n in offsets if items[n].begin < mine.end and mine.begin < items[n].end]
            places = sorted([0, *(offsets[n] + sizes[n] for n in others)])
            offsets[number] = next(
                place
                for place in places
                if all(place + sizes[number] <= offsets[n] or offsets[n] + sizes[n] <= place for n in others)
            )
        height = max((offsets[n] + sizes[n] for n in offsets), default=0)
        best = height if best is None else min(best, height)
    return best or 0
