"""Chooses the modules to wrap: the least recomputation whose replayed peak is within the budget.

A choice covers the ops from first to last by single ops and whole regions, the latter with or without checkpoints
inside. A dynamic program over the ops keeps, for each number of bytes kept so far, the least time; its bytes are those
of `Profiler`, which are close to the truth. The choice is replayed. If the replay is above the budget, the program is
run again with less; if bytes are left, regions are removed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from .eager_step import EagerStep
from .region_profiles import Profile, Profiler
from .region_recompute import Wrapped, nested
from .regions import Region
from .wrapped_schedule import WrappedStep, replayed

Ints = NDArray[np.int64]

STATES = 2048
ROUNDS = 8
REPLAYED_OPS = 40_000
MOST_REPLAYS, FEWEST_REPLAYS = 100, 10
"""How many ops the replays that improve a choice may have together, and how many of them there may be."""


@dataclass(frozen=True, slots=True)
class _States:
    """Pareto states at one position: bytes kept, time spent, and each one's origin (position, state, profile or -1)."""

    kept: Ints
    cost: Ints
    origin: Ints  # [n, 3]


class _Program:
    def __init__(self, profiler: Profiler, regions: list[Region], *, selective: bool) -> None:
        self.profiler = profiler
        self.count = len(profiler.step.graph.ops)
        self.plain = {region.path: region for region in regions}
        self.profiles: list[Profile] = []
        self.starting: list[list[int]] = [[] for _ in range(self.count)]
        for position, region in enumerate(regions):
            later = (other for other in regions[position + 1 :])
            inside = list(takewhile(lambda other, last=region.last: other.first <= last, later))  # type: ignore[misc]
            for profile in profiler.profiles(region, inside, selective=selective):
                self.starting[region.first].append(len(self.profiles))
                self.profiles.append(profile)
        self.backward = [profiler.backward_nbytes(index) for index in range(self.count)]

    def least(self, budget_nbytes: int) -> tuple[Wrapped, ...] | None:
        """The wrapping of least time under a budget; None if this program finds none."""
        arriving: list[list[_States]] = [[] for _ in range(self.count + 1)]
        start = np.zeros(1, dtype=np.int64)
        arriving[0].append(_States(start, start, np.full((1, 3), -1, dtype=np.int64)))
        settled: list[_States | None] = []
        for position in range(self.count + 1):
            here = _pruned(arriving[position], budget_nbytes)
            settled.append(here)
            arriving[position] = []
            if here is None or position == self.count:
                continue
            added = self.profiler.bare_nbytes[position]
            moves = [(position + 1, -1, self.backward[position] + added, added, 0)]
            for number in self.starting[position]:
                profile = self.profiles[number]
                until = profile.wrapped.region.last + 1
                moves.append((until, number, profile.during_nbytes, profile.kept_nbytes, profile.cost_ns))
            for until, number, during_nbytes, kept_nbytes, cost_ns in moves:
                rows = np.flatnonzero(here.kept <= budget_nbytes - during_nbytes)
                if len(rows):
                    origin = np.column_stack([np.full_like(rows, position), rows, np.full_like(rows, number)])
                    arriving[until].append(_States(here.kept[rows] + kept_nbytes, here.cost[rows] + cost_ns, origin))
        return self._walk(settled)

    def _walk(self, settled: list[_States | None]) -> tuple[Wrapped, ...] | None:
        states = settled[self.count]
        if states is None:
            return None
        found: list[Wrapped] = []
        position, row = self.count, int(np.lexsort((states.kept, states.cost))[0])
        while position:
            states = settled[position]
            assert states is not None
            position, row, number = (int(entry) for entry in states.origin[row])
            if number >= 0:
                found.append(self.profiles[number].wrapped)
        return tuple(reversed(found))


def _pruned(arrived: list[_States], budget_nbytes: int) -> _States | None:
    """The states that no other state beats in bytes and time, at most one in each of `STATES` ranges of bytes."""
    if not arrived:
        return None
    kept = np.concatenate([states.kept for states in arrived])
    cost = np.concatenate([states.cost for states in arrived])
    origin = np.concatenate([states.origin for states in arrived])
    order = np.lexsort((cost, kept))
    kept, cost, origin = kept[order], cost[order], origin[order]
    lowest = np.minimum.accumulate(cost)
    better = np.r_[True, cost[1:] < lowest[:-1]]
    kept, cost, origin = kept[better], cost[better], origin[better]
    if len(kept) > STATES:
        ranges = kept // (budget_nbytes // STATES + 1)
        last = np.r_[ranges[1:] != ranges[:-1], True]  # the least time of each range
        last[0] = True
        kept, cost, origin = kept[last], cost[last], origin[last]
    return _States(kept, cost, origin)


def choose(
    step: EagerStep, regions: list[Region], budget_nbytes: int, *, selective: bool
) -> tuple[WrappedStep | None, WrappedStep]:
    """The wrapping of least recomputation found whose replayed peak is at most ``budget_nbytes``, if there is one.

    The second is that of the least peak. With ``selective``, ops are saved inside regions, except in those that nest.
    """
    search = _Search(step, regions, budget_nbytes, selective=selective)
    search.search_budget()
    if search.best is None:
        search.search_smallest()
    if search.best is not None:
        search.improve()
    return search.best, search.smallest


class _Search:
    def __init__(self, step: EagerStep, regions: list[Region], budget_nbytes: int, *, selective: bool) -> None:
        self.step, self.budget_nbytes, self.selective = step, budget_nbytes, selective
        self.program = _Program(Profiler(step), regions, selective=selective)
        self.best: WrappedStep | None = None
        self.smallest = replayed(step, ())
        self.seen: set[tuple[Wrapped, ...]] = set()
        self._note(self.smallest)

    def _note(self, made: WrappedStep) -> bool:
        """Whether a replay is the best so far."""
        if (made.peak_nbytes, made.recompute_ns) < (self.smallest.peak_nbytes, self.smallest.recompute_ns):
            self.smallest = made
        if made.peak_nbytes > self.budget_nbytes:
            return False
        if self.best is not None and made.recompute_ns >= self.best.recompute_ns:
            return False
        self.best = made
        return True

    def _try(self, target_nbytes: int) -> WrappedStep | None:
        wrapped = self.program.least(target_nbytes)
        if wrapped is None:
            return None
        made = replayed(self.step, wrapped)
        self.seen.add(wrapped)
        self._note(made)
        return made

    def search_budget(self) -> None:
        """Run the program for the budget; again for less by the excess of the replay, or for more by what it leaves."""
        if self.best is not None and not self.best.recompute_ns:
            return
        target, less, fitted = self.budget_nbytes, 0, False
        for _ in range(ROUNDS):
            known = len(self.seen)
            made = self._try(target)
            if made is None:
                return
            left = self.budget_nbytes - made.peak_nbytes
            if left < 0 and fitted:
                return
            if left < 0:
                less += 1 - left
                target -= less
            else:
                if len(self.seen) == known or not left:
                    return
                fitted = True
                target += left

    def search_smallest(self) -> None:
        """Find the least peak by bisection between budgets that the program can meet and those it cannot."""
        low, high = 0, self.smallest.peak_nbytes
        for _ in range(2 * ROUNDS):
            middle = (low + high) // 2
            if self._try(middle) is None:
                low = middle
            else:
                high = middle

    def improve(self) -> None:
        """Remove regions, the most expensive first, and save more ops, while the peak stays within the budget."""
        left = min(MOST_REPLAYS, max(FEWEST_REPLAYS, REPLAYED_OPS // len(self.step.graph.ops)))
        again = True
        while again and left > 0:
            again = False
            assert self.best is not None
            for variant in self._variants(self.best):
                left -= 1
                if left < 0:
                    return
                if variant not in self.seen:
                    self.seen.add(variant)
                    again = self._note(replayed(self.step, variant))
                    if again:
                        break

    def _variants(self, made: WrappedStep) -> list[tuple[Wrapped, ...]]:
        costs = self.step.costs
        gains: list[tuple[int, tuple[Wrapped, ...]]] = []

        def add(gain: int, position: int, instead: tuple[Wrapped, ...]) -> None:
            gains.append((-gain, (*made.wrapped[:position], *instead, *made.wrapped[position + 1 :])))

        for position, entry in enumerate(made.wrapped):
            for call in entry.all():
                rest = (self.program.plain[other.region.path] for other in entry.all() if other is not call)
                again = (index for index in call.region.recomputed if index not in call.saved)
                add(sum(costs[index].forward_ns for index in again), position, nested(self.step, rest))
            for index in self.program.profiler.savable(entry.region) if self.selective and not entry.inner else ():
                if index not in entry.saved:
                    add(costs[index].forward_ns, position, (Wrapped(entry.region, entry.saved | {index}),))
        return [variant for _, variant in sorted(gains, key=itemgetter(0))]
