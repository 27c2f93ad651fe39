"""What all searches of one solve have in common, and the plans of the smallest peaks under each order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...limits import Limits
from ..orders.reordered_problem import Orders, default_orders
from .alternate_orders import Reordered, reorder_in_parallel
from .effort import Effort
from .fixed_order import FixedOrderSearch
from .incumbents import Candidate, Incumbents
from .parallel import threads
from .problem_cache import KnownPlans, ProblemCache
from .smallest_peak import lower_peak_further, smallest_peak_plans


@dataclass(frozen=True)
class SolveContext:
    """What all searches of one solve have in common; ``earlier`` are plans of earlier solves to start from."""

    cache: ProblemCache
    limits: Limits
    effort: Effort
    seed: int
    earlier: tuple[KnownPlans, ...] = ()

    @property
    def makes_orders(self) -> bool:
        """Whether the effort and the size of the problem allow for orders made for plans."""
        return self.effort.orders.rounds > 0 and not self.cache.problem.large

    def resumed(self) -> SolveContext:
        """This context with less work, from the plans of earlier solves, if there are any and the effort says so."""
        earlier = self.cache.earlier.get((self.effort.name, self.seed))
        if earlier is None or not self.effort.resumes:
            return self
        return replace(self, effort=self.effort.resumed(), earlier=tuple(earlier))

    def earlier_in(self, orders: Orders | None) -> list[Candidate]:
        """The earlier plans in these orders."""
        return [plan for plans in self.earlier if plans.orders == orders for plan in plans.candidates]

    def remember(self, run: FixedOrderSearch) -> None:
        """Let later solves start from the best plan of ``run``, and forget the plans that it dominates.

        A plan that recomputes nothing is not remembered, for such a solve has hardly begun to search.
        """
        best = run.best
        assert best is not None
        if not best.found.recompute_ns or not self.effort.resumes:
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

    def smallest(self) -> list[KnownPlans]:
        """Plans of the smallest peak under the default orders, one of a low floor, and one made for the smallest."""
        floor_nbytes = self.cache.problem.floor_nbytes  # found once, before two threads ask for it
        with threads(self.limits, 1) as team:
            elsewhere = team.start(replace(self, limits=team.limits)._smallest_in_low_order)
            found = [self._smallest_in(self.cache, None)]
            if self.limits.out_of_time():
                team.cancel()
            team.join()
        low = elsewhere.result()
        if low is not None and low.cache.problem.floor_of_order.nbytes <= found[0].peak_nbytes:
            found.append(low)
        smallest = min(known.peak_nbytes for known in found)
        if smallest > floor_nbytes and not self.limits.out_of_time():
            reordered = self._smallest_reordered(found)
            if reordered.peak_nbytes < smallest:
                found.append(reordered)
        return found

    def _smallest_in(self, cache: ProblemCache, orders: Orders | None) -> KnownPlans:
        incumbents = self.search(max(1, cache.problem.floor_nbytes), cache).incumbents
        return KnownPlans(cache, orders, smallest_peak_plans(cache, incumbents))

    def _smallest_in_low_order(self) -> KnownPlans | None:
        """Plans of the smallest peak in an order of a low floor; None without one, or if the effort makes no orders."""
        low = self.cache.low(self.limits) if self.makes_orders else None
        return None if low is None else self._smallest_in(low[1], low[0])

    def _smallest_reordered(self, known: list[KnownPlans]) -> KnownPlans:
        """The smallest peak when orders are made for each of the known plans, lowered further."""
        key = (self.effort.name, self.seed)
        if key in self.cache.reordered:
            return self.known(self.cache.reordered[key])
        problem = self.cache.problem
        starts = [min(plans.starts_in(self.cache), key=lambda start: start.found.peak_nbytes) for plans in known]
        floor = max(1, problem.floor_nbytes)
        found = reorder_in_parallel(problem, starts, floor, self.effort.orders, seed=self.seed, limits=self.limits)
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
        assert incumbents.smallest is not None
        orders, plan = known.orders_in(self.cache), incumbents.smallest
        return Reordered(orders, incumbents.evaluator, plan.sequence, plan.found)

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
