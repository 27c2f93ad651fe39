"""First fit: item by item at the lowest offset where it conflicts with none placed before; and promotion on top of it.

A target size is given. The first item that does not fit below it is promoted: it moves in the order before one of the
items that it conflicts with, and placing goes on from there. Items that are hard to place so rise until they are placed
first ("squeaky wheel" optimization, Joslin & Clements, JAIR 1999). On training steps a few hundred promotions find
arenas of the size of the peak, or some permille larger, from orders that are several percent above it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..strategies.kernels.jit import compiled
from ..strategies.kernels.xorshift import uniform

Array = NDArray[np.int64]


class Items(NamedTuple):
    """Sizes in slots and lifetimes, shape [items]."""

    size: Array
    begin: Array
    end: Array


class Placed(NamedTuple):
    """The items placed so far as a list linked by offset.

    ``low`` is each item's lowest slot. The last entry of ``above`` and ``below``, shape [items + 1], is both ends
    of the list.
    """

    low: Array
    above: Array
    below: Array


def room(count: int) -> Placed:
    """Room for ``count`` items, none of them placed."""
    return Placed(*(np.full(count + 1, -1, dtype=np.int64) for _ in range(3)))


@compiled
def promote(
    items: Items,
    order: Array,
    placed: Placed,
    fixed: Array,
    target: int,
    rounds: int,
    work: Array,
    state: NDArray[np.uint64],
) -> bool:
    """Place all of ``order`` below ``target``; whether that worked within ``rounds`` promotions.

    Changes ``order``. The items ``fixed``, by offset, stay at the slots that ``placed`` has for them. ``work[0]`` is
    how many comparisons are left to do; they are counted down.
    """
    size, begin, end = items.size, items.begin, items.end
    low, above, below = placed.low, placed.above, placed.below
    ends = len(size)
    last = ends
    for item in fixed:
        above[last], below[item] = item, last
        last = item
    above[last], below[ends] = ends, last
    start = 0
    for turn in range(rounds + 1):
        failed = -1
        for position in range(start, len(order)):
            item = order[position]
            length, birth, death = size[item], begin[item], end[item]
            at, other, steps = 0, above[ends], 0
            while other != ends and low[other] < at + length:
                if begin[other] < death and birth < end[other]:
                    at = max(at, low[other] + size[other])
                other = above[other]
                steps += 1
            work[0] -= steps
            if at + length > target:
                failed = position
                break
            other = below[other]
            while other != ends and low[other] > at:
                other = below[other]
            low[item], below[item], above[item] = at, other, above[other]
            below[above[other]] = item
            above[other] = item
        if failed < 0:
            return True
        if turn == rounds or work[0] <= 0:
            return False
        item = order[failed]
        conflicts = 0
        for position in range(failed):
            other = order[position]
            if begin[other] < end[item] and begin[item] < end[other]:
                conflicts += 1
        if conflicts == 0:  # fixed items alone are in its way
            return False
        conflicts = int(uniform(state) * conflicts)
        restart = 0
        while True:
            other = order[restart]
            if begin[other] < end[item] and begin[item] < end[other]:
                if conflicts == 0:
                    break
                conflicts -= 1
            restart += 1
        for position in range(restart, failed):
            other = order[position]
            above[below[other]], below[above[other]] = above[other], below[other]
        for position in range(failed, restart, -1):
            order[position] = order[position - 1]
        order[restart] = item
        start = restart
    return False
