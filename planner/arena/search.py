"""The search for a small arena: greedy orders, then promotion towards smaller and smaller targets."""

from __future__ import annotations

import numpy as np

from ..limits import NO_LIMITS, Limits
from ..strategies.kernels.xorshift import stream
from .first_fit import Array, Items, promote, room
from .orderings import orderings

MOST_WORK = 1_500_000_000
"""Comparisons of two items, about 5 s on a core of a 2020s server."""
ROUNDS = 2_500
"""Promotions from one order towards one target."""
IDLE = 2
"""Bisections that found nothing, one after the other, before the search ends: each draws other random numbers."""
CLOSE = 1_000
"""Targets closer to each other than this part of the bound are not told apart."""
_NO_TARGET = 1 << 60


class Search:
    """The best offsets found so far, in slots: ``height`` is the number of slots that they take."""

    def __init__(self, items: Items, fixed: Array, fixed_low: Array, limits: Limits = NO_LIMITS) -> None:
        by_offset = np.lexsort((fixed, fixed_low))
        self.items, self.limits = items, limits
        self.fixed, self.fixed_low = fixed[by_offset], fixed_low[by_offset]
        self.movable = np.setdiff1d(np.arange(len(items.size), dtype=np.int64), fixed)
        self.placed = room(len(items.size))
        self.best, self.height = np.zeros(len(items.size), dtype=np.int64), _NO_TARGET
        self.work = np.array([MOST_WORK], dtype=np.int64)
        self.state = stream(1)

    def run(self, bound: int) -> None:
        """Place the items in as few slots as can be, at best in ``bound``."""
        orders = []
        for order in orderings(self.items, self.movable):
            orders.append((self.attempt(order.copy(), _NO_TARGET, 0), order))
            if self.height <= bound or self.limits.out_of_time():
                return
        ranked = [order for _, order in sorted(orders, key=lambda entry: entry[0])]
        idle = 0
        while idle < IDLE and self.height - bound > bound // CLOSE and not self.ended():
            before = self.height
            self.bisect(bound, ranked)
            idle = idle + 1 if self.height == before else 0

    def bisect(self, bound: int, ranked: list[Array]) -> None:
        """Halve the distance between the best height and the largest target that was missed, at first the bound."""
        target = missed = bound
        while not self.ended():
            if not self.reach(target, ranked):
                missed = max(missed, target)
            if self.height - missed <= max(1, bound // CLOSE):
                return
            target = (self.height + missed) // 2

    def reach(self, target: int, orders: list[Array]) -> bool:
        """Promote from each order until one ends at or below the target; what it became then leads ``orders``."""
        allowed = int(self.work[0]) // 4
        for position, order in enumerate(orders):
            tried = order.copy()
            if self.attempt(tried, target, ROUNDS, at_most=allowed // len(orders)) <= target:
                orders.insert(0, tried)
                del orders[position + 1]
                return True
            if self.ended():
                break
        return False

    def attempt(self, order: Array, target: int, rounds: int, at_most: int = MOST_WORK) -> int:
        """Run the kernel, keep what is better than the best, and return the height, _NO_TARGET where it fails."""
        self.placed.low[self.fixed] = self.fixed_low
        work = np.array([min(at_most, int(self.work[0]))], dtype=np.int64)
        before = int(work[0])
        done = promote(self.items, order, self.placed, self.fixed, target, rounds, work, self.state)
        self.work[0] -= before - int(work[0])
        if not done:
            return _NO_TARGET
        height = int((self.placed.low[:-1] + self.items.size).max(initial=0))
        if height < self.height:
            self.height, self.best = height, self.placed.low[:-1].copy()
        return height

    def ended(self) -> bool:
        """Whether the work is done or the limits are reached."""
        return self.work[0] <= 0 or self.limits.out_of_time()
