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
    """The items placed so far by offset: lowest slot, slot above it, item; and the rank of each item in the order."""

    low: Array
    top: Array
    item: Array
    rank: Array


def room(count: int) -> Placed:
    """Room for ``count`` items, none of them placed; a rank of -1 means fixed."""
    return Placed(*(np.full(count, -1, dtype=np.int64) for _ in range(4)))


@compiled
def promote(
    items: Items,
    order: Array,
    placed: Placed,
    fixed: int,
    offset: Array,
    target: int,
    rounds: int,
    work: Array,
    state: NDArray[np.uint64],
) -> bool:
    """Place all of ``order`` below ``target``; whether that worked within ``rounds`` promotions.

    Changes ``order``. The first ``fixed`` of ``placed`` are obstacles. ``offset`` receives slots. ``work[0]`` is how
    many comparisons are left to do; they are counted down.
    """
    size, begin, end = items.size, items.begin, items.end
    low, top, who, rank = placed.low, placed.top, placed.item, placed.rank
    for position in range(len(order)):
        rank[order[position]] = position
    count, start = fixed, 0
    for turn in range(rounds + 1):
        failed = -1
        for position in range(start, len(order)):
            item = order[position]
            at, k = 0, 0
            while k < count and low[k] < at + size[item]:
                other = who[k]
                if top[k] > at and begin[other] < end[item] and begin[item] < end[other]:
                    at = top[k]
                k += 1
            work[0] -= k
            if at + size[item] > target:
                failed = position
                break
            offset[item] = at
            k = count
            while k > 0 and low[k - 1] > at:
                low[k], top[k], who[k] = low[k - 1], top[k - 1], who[k - 1]
                k -= 1
            low[k], top[k], who[k] = at, at + size[item], item
            count += 1
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
        start = 0
        while True:
            other = order[start]
            if begin[other] < end[item] and begin[item] < end[other]:
                if conflicts == 0:
                    break
                conflicts -= 1
            start += 1
        for position in range(failed, start, -1):
            order[position] = order[position - 1]
            rank[order[position]] = position
        order[start] = item
        rank[item] = start
        kept = 0
        for k in range(count):
            if rank[who[k]] < start:
                low[kept], top[kept], who[kept] = low[k], top[k], who[k]
                kept += 1
        count = kept
    return False
