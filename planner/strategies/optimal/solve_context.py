"""What all searches of one solve have in common, and the plans of the smallest peaks under each order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...limits import Limits
from ..orders.reordered_problem import Orders, default_orders
from .alternate_orders import Reordered, reorder_in_parallel, rounds_of
from .effort import Effort
from .fixed_order import FixedOrderSearch
from .improve import RETENTION_OPS
from .incumbents import Candidate, Incumbents
from .parallel import THREADS, threads
from .problem_cache import KnownPlans, ProblemCache
from .smallest_peak import lower_peak_further, smallest_peak_plans

_FEW, _SOME, _MANY = 2, 4, 8
"""Numbers of other orders to look at."""


@dataclass(frozen=True)
class SolveContext:
    """What all searches of one solve have in common; ``earlier`` are plans of earlier solves to start from."""

    cache: ProblemCache
    limits: Limits
    effort: Effort
    seed: int
    earlier: tuple[KnownPlans, ...] = ()

    def again(self) -> SolveContext:
        """This context with less work, from the plans of earlier solves, if there are any and the effort says so."""
        earlier = self.cache.earlier.get((self.effort.name, self.seed))
        if earlier is None or self.effort.again is None:
            return self
        return replace(self, effort=self.effort.again, earlier=tuple(earlier))

    def earlier_in(self, orders: Orders | None) -> list[Candidate]:
        """The earlier plans in these orders."""
        return [plan for plans in self.earlier if plans.orders == orders for plan in plans.candidates]

    def remember(self, run: FixedOrderSearch) -> None:
        """Let later solves start from the best plan of ``run``, and forget the plans that it dominates.

        A plan that recomputes nothing is not remembered, for such a solve has hardly begun to search.
        """
        best = run.best
        assert best is not None
        if not best.found.recompute_ns or not (self.effort.again or self.earlier):
            return
        found, key = best.found, (self.effort.name, self.seed)
        kept = [
            plans
            for plans in self.cache.earlier.get(key, ())
            if any(
                plan.found.recompute_ns < found.recompute_ns or plan.found.peak_nbytes < found.peak_nbytes
                for plan in plans.candidates
            )
        ]
        self.cache.earlier[key] = [*kept, KnownPlans(run.cache, run.orders, (best,))]

    def search(self, budget_nbytes: int, cache: ProblemCache, orders: Orders | None = None) -> FixedOrderSearch:
        """A search that has not begun."""
        incumbents = Incumbents(cache.evaluator, budget_nbytes, self.limits, self.effort, self.seed)
        return FixedOrderSearch(incumbents, cache, orders)

    def variants(self) -> list[tuple[ProblemCache, Orders | None]]:
        """The default orders, one made for a low floor, and for an eager effort others of low floors."""
        count = 0 if not self.effort.eager else _MANY if self.cache.problem.op_count <= RETENTION_OPS else _FEW
        chosen = sorted(self._others(count), key=lambda pair: pair[1].problem.floor_of_order.nbytes)[:_FEW]
        low = self.cache.low(self.limits) if self.effort.orders else None
        chosen += [] if low is None or low[0] in {orders for orders, _ in chosen} else [low]
        return [(self.cache, None), *((other, orders) for orders, other in chosen)]

    def alternatives(self, budget_nbytes: int) -> tuple[list[FixedOrderSearch], bool]:
        """Searches under other orders that may have a plan, and whether their relaxations are to be compared.

        On a large graph whose default orders may have a plan the orders are few, and are not compared.
        """
        problem = self.cache.problem
        compared = problem.op_count <= self.effort.compared or problem.floor_of_order.nbytes > budget_nbytes
        others = self._others(_FEW if not compared else _MANY if self.effort.eager else _SOME)
        runs = [self.search(budget_nbytes, other, orders) for orders, other in others]
        return [run for run in runs if run.cache.problem.floor_of_order.nbytes <= budget_nbytes], compared

    def _others(self, count: int) -> list[tuple[Orders, ProblemCache]]:
        """At most ``count`` other orders; none if the effort has no use for them."""
        return self.cache.alternatives(count, self.limits) if self.effort.orders else []

    def smallest(self) -> list[KnownPlans]:
        """Plans of the smallest peak under each variant, and under an order made for the smallest of them."""
        floor_nbytes = self.cache.problem.floor_nbytes  # found once, before two threads ask for it
        with threads(self.limits, 1) as team:
            elsewhere = team.start(replace(self, limits=team.limits)._smallest_elsewhere)
            found = [self._smallest_in(self.cache, None)]
            if self.limits.out_of_time():
                team.cancel()
            team.join()
        found += [known for known in elsewhere.result() if _may_be_smaller(known.cache, found)]
        smallest = min(known.peak_nbytes for known in found)
        if smallest > floor_nbytes and not self.limits.out_of_time():
            reordered = self._smallest_reordered(found)
            if reordered.peak_nbytes < smallest:
                found.append(reordered)
        return found

    def _smallest_in(self, cache: ProblemCache, orders: Orders | None) -> KnownPlans:
        incumbents = self.search(max(1, cache.problem.floor_nbytes), cache).incumbents
        return KnownPlans(cache, orders, smallest_peak_plans(cache, incumbents))

    def _smallest_elsewhere(self) -> list[KnownPlans]:
        """Plans of the smallest peak under the variants that are not the default orders and may have a smaller one."""
        found: list[KnownPlans] = []
        for cache, orders in self.variants()[1:]:
            if _may_be_smaller(cache, found):
                found.append(self._smallest_in(cache, orders))
            if self.limits.out_of_time():
                break
        return found

    def _smallest_reordered(self, known: list[KnownPlans]) -> KnownPlans:
        """The smallest peak when orders are made for each of the known plans, lowered further."""
        key = (self.effort.name, self.seed)
        if key in self.cache.reordered:
            return self.known(self.cache.reordered[key])
        problem, effort = self.cache.problem, self.effort
        starts = [smallest_start(plans.starts_in(self.cache)) for plans in known]
        rounds, floor = rounds_of(problem, effort.lowerings), max(1, problem.floor_nbytes)
        restarts = 0 if not rounds else effort.restarts if effort.thorough else max(1, THREADS // len(starts))
        found = reorder_in_parallel(
            problem, starts, floor, rounds=rounds, restarts=restarts,
            iterations=effort.lowering_on(problem.op_count), seed=self.seed, limits=self.limits,
        )  # fmt: skip
        if not self.limits.out_of_time():
            found = self.lowered_further(found, 1)
        if not self.limits.out_of_time():
            self.cache.reordered[key] = found
        return self.known(found)

    def lowered_further(self, found: Reordered, budget_nbytes: int) -> Reordered:
        """A plan in orders made for it, its peak lowered towards the budget; in working memory of its own."""
        known = self.known(found)
        incumbents = self.search(budget_nbytes, known.cache, known.orders).incumbents
        incumbents.evaluator = incumbents.evaluator.fork()
        for candidate in known.candidates:
            incumbents.keep(candidate)
        lower_peak_further(incumbents)
        return smallest_of(incumbents, known.orders_in(self.cache))

    def followed(self, found: Reordered, budget_nbytes: int) -> FixedOrderSearch:
        """A search that goes on from a plan in the orders made for it."""
        known = self.known(found)
        run = self.search(budget_nbytes, known.cache, known.orders)
        for candidate in known.candidates:
            run.follow(candidate)
        return run

    def known(self, found: Reordered) -> KnownPlans:
        """A plan in orders made for it, which may be the default ones after all."""
        default = found.orders == default_orders(self.cache.problem)
        cache = self.cache if default else ProblemCache(found.evaluator.problem)
        return KnownPlans(cache, None if default else found.orders, (Candidate(found.sequence, found.found),))


def smallest_of(incumbents: Incumbents, orders: Orders) -> Reordered:
    """The plan of the smallest peak of a search, in the orders of its problem."""
    assert incumbents.smallest is not None
    return Reordered(orders, incumbents.evaluator, incumbents.smallest.sequence, incumbents.smallest.found)


def smallest_start(starts: Iterable[Reordered]) -> Reordered:
    """The plan of the smallest peak."""
    return min(starts, key=lambda start: start.found.peak_nbytes)


def _may_be_smaller(cache: ProblemCache, found: list[KnownPlans]) -> bool:
    """Whether the floor of an order lets a plan in it peak as low as those ``found`` in others."""
    return all(cache.problem.floor_of_order.nbytes <= plans.peak_nbytes for plans in found)
