"""What all searches of one solve have in common, and the plans of the lowest peaks under each order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..orders.reordered_problem import Orders, default_orders
from .alternate_orders import Reordered, rounds_of
from .beside import beside, wait_for
from .effort import Effort
from .fixed_order import OneOrder, lowest_of
from .improve import HOLD_OPS
from .incumbents import Candidate, Progress, Search
from .parallel import LANES
from .problem_cache import Known, Prepared
from .reorder_lanes import reorder_in_lanes
from .smallest_peak import lower_further

_FEW, _SOME, _MANY = 2, 4, 8
"""Other orders that are looked at."""


@dataclass(frozen=True)
class Task:
    """What all searches of one solve have in common."""

    prepared: Prepared
    deadline: float | None
    progress: Progress | None
    effort: Effort
    seed: int
    stop: Callable[[], bool] | None
    earlier: tuple[Known, ...] = ()
    """Plans of earlier solves to start from."""

    def again(self) -> Task:
        """This task with less work, from the plans of earlier solves, where there are any and the effort says so."""
        earlier = self.prepared.earlier.get((self.effort.name, self.seed))
        if earlier is None or self.effort.again is None:
            return self
        return replace(self, effort=self.effort.again, earlier=tuple(earlier))

    def earlier_in(self, orders: Orders | None) -> list[Candidate]:
        """The earlier plans in these orders."""
        return [plan for plans in self.earlier if plans.orders == orders for plan in plans.candidates]

    def remember(self, run: OneOrder) -> None:
        """Let later solves start from the best plan of ``run``; plans that it is better than in all are forgotten.

        Not where nothing is recomputed, for such a solve has hardly begun to search, nor where no solve would ask.
        """
        best = run.search.best
        assert best is not None
        if not best.found.recompute_ns or not (self.effort.again or self.earlier):
            return
        found, key = best.found, (self.effort.name, self.seed)
        kept = [
            plans
            for plans in self.prepared.earlier.get(key, ())
            if any(
                plan.found.recompute_ns < found.recompute_ns or plan.found.peak_nbytes < found.peak_nbytes
                for plan in plans.candidates
            )
        ]
        self.prepared.earlier[key] = [*kept, Known(run.prepared, run.orders, (best,))]

    def run(self, budget_nbytes: int, prepared: Prepared, orders: Orders | None = None) -> OneOrder:
        """A search that has not begun."""
        common = (self.deadline, self.progress, self.effort, self.seed, self.stop)
        return OneOrder(Search(prepared.evaluator, budget_nbytes, *common), prepared, orders)

    def variants(self) -> list[tuple[Prepared, Orders | None]]:
        """The default orders, one made for a low floor alone, and where ``eager`` others of low floors."""
        count = 0 if not self.effort.eager else _MANY if self.prepared.problem.op_count <= HOLD_OPS else _FEW
        others = self._others(count)
        chosen = sorted(others, key=lambda pair: pair[1].problem.floor_of_order.nbytes)[:_FEW]
        low = self.prepared.low(self._late()) if self.effort.orders else None
        chosen += [] if low is None or low[0] in {orders for orders, _ in chosen} else [low]
        return [(self.prepared, None), *((other, orders) for orders, other in chosen)]

    def alternatives(self, budget_nbytes: int) -> tuple[list[OneOrder], bool]:
        """Searches under other orders that may have a plan, and whether their relaxations are to be compared.

        There are few of them, and they are not compared, where that takes long and is not needed to find any plan.
        """
        problem = self.prepared.problem
        compared = problem.op_count <= self.effort.compared or problem.floor_of_order.nbytes > budget_nbytes
        others = self._others(_FEW if not compared else _MANY if self.effort.eager else _SOME)
        runs = [self.run(budget_nbytes, other, orders) for orders, other in others]
        return [run for run in runs if run.prepared.problem.floor_of_order.nbytes <= budget_nbytes], compared

    def _others(self, count: int) -> list[tuple[Orders, Prepared]]:
        """So many other orders, or as many as there are and there is time for; none where the effort has no use."""
        return self.prepared.alternatives(count, self._late()) if self.effort.orders else []

    def _late(self) -> Callable[[], bool]:
        """What tells whether the time is up or the user has asked to stop."""
        return self.run(1, self.prepared).search.out_of_time

    def lowest(self) -> tuple[list[Known], bool]:
        """Plans of the smallest peak under each variant and under an order made for the lowest of them.

        And whether the search for them was cut short.
        """
        search = self.run(1, self.prepared).search
        floor_nbytes = self.prepared.problem.floor_nbytes  # found once, before two threads ask for it
        with beside(search) as pool:
            begun = pool.submit(self._watching(search)._lowest_elsewhere)
            candidates, stopped = self._lowest_in(self.prepared)
            search.stopped_early |= stopped
            wait_for(search, [begun])
        found = [Known(self.prepared, None, candidates)]
        others, cut_short = begun.result()
        for known in others:
            if _may_be_lower(known.prepared, found):
                found.append(known)
        stopped |= cut_short
        lowest = min(known.peak_nbytes for known in found)
        if not stopped and lowest > floor_nbytes:
            other, stopped = self._lower(found)
            if other.peak_nbytes < lowest:
                found.append(other)
        return found, stopped

    def _watching(self, search: Search) -> Task:
        """The same for a thread beside ``search``: it ends where that is stopped, and tells nobody of progress."""
        return replace(self, progress=None, stop=lambda: search.stopped_early)

    def _lowest_in(self, prepared: Prepared) -> tuple[tuple[Candidate, ...], bool]:
        return lowest_of(prepared, self.run(max(1, prepared.problem.floor_nbytes), prepared).search)

    def _lowest_elsewhere(self) -> tuple[list[Known], bool]:
        """Plans of the smallest peak under the variants that are not the default orders, as far as they promise one."""
        found: list[Known] = []
        for prepared, orders in self.variants()[1:]:
            if not _may_be_lower(prepared, found):
                continue
            candidates, cut_short = self._lowest_in(prepared)
            found.append(Known(prepared, orders, candidates))
            if cut_short:
                return found, True
        return found, self._late()()

    def _lower(self, known: list[Known]) -> tuple[Known, bool]:
        """The best of known plans lowered further, often in an order of its own, and whether that was cut short."""
        key = (self.effort.name, self.seed)
        if key not in self.prepared.lowered:
            search = self.run(1, self.prepared).search
            last = self._reordered(known, search)
            cut_short = search.stopped_early
            if not cut_short:
                last, cut_short = self.lowered_further(last, 1)
            if cut_short:
                return self.known(last), True
            self.prepared.lowered[key] = last
        return self.known(self.prepared.lowered[key]), False

    def lowered_further(self, found: Reordered, budget_nbytes: int) -> tuple[Reordered, bool]:
        """A plan in orders made for it, lowered towards the budget in them, and whether that was cut short.

        It is done in memory of its own: a search in the same orders may go on beside it.
        """
        known = self.known(found)
        search = self.run(budget_nbytes, known.prepared, known.orders).search
        search.evaluator = search.evaluator.beside()
        for candidate in known.candidates:
            search.keep(candidate)
        lower_further(search)
        return lowest_as(search, known.orders_in(self.prepared)), search.stopped_early

    def followed(self, found: Reordered, budget_nbytes: int) -> OneOrder:
        """A search that goes on from a plan in the orders made for it."""
        known = self.known(found)
        run = self.run(budget_nbytes, known.prepared, known.orders)
        for candidate in known.candidates:
            run.follow(candidate)
        return run

    def _reordered(self, known: list[Known], search: Search) -> Reordered:
        """The lowest plan there is when orders are made for each of the known ones."""
        problem, effort = self.prepared.problem, self.effort
        starts = [lowest_start(plans.starts_in(self.prepared)) for plans in known]
        rounds, floor = rounds_of(problem, effort.lowerings), max(1, problem.floor_nbytes)
        restarts = 0 if not rounds else effort.restarts if effort.thorough else max(1, LANES // len(starts))
        iterations = effort.lowering_on(problem.op_count)
        return reorder_in_lanes(problem, starts, search, floor, rounds=rounds, restarts=restarts, iterations=iterations)

    def known(self, found: Reordered) -> Known:
        """A plan in orders made for it, which may be the default ones after all."""
        default = found.orders == default_orders(self.prepared.problem)
        prepared = self.prepared if default else Prepared(found.evaluator.problem)
        return Known(prepared, None if default else found.orders, (Candidate(found.sequence, found.found),))


def lowest_as(search: Search, orders: Orders) -> Reordered:
    """The lowest plan of a search, in the orders that are its problem's."""
    assert search.lowest is not None
    return Reordered(orders, search.evaluator, search.lowest.sequence, search.lowest.found)


def lowest_start(starts: Iterable[Reordered]) -> Reordered:
    """The one of the lowest peak."""
    return min(starts, key=lambda start: start.found.peak_nbytes)


def _may_be_lower(prepared: Prepared, found: list[Known]) -> bool:
    """Whether the floor of an order lets a plan under it peak as low as those ``found`` under others."""
    return all(prepared.problem.floor_of_order.nbytes <= plans.peak_nbytes for plans in found)
