"""Plans within a budget for which the default orders lead to none: reorder for a low-peak plan, anneal, repeat.

The search begins from the plan of the smallest peak among those of earlier solves (on large graphs in parallel with the
search under the default orders), or else among those that the default orders give. If that does not end within the
budget, it begins again from a plan under an order of a low floor. A later solve whose budget lies below the floor of
the default orders takes the two the other way round.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property

from ...limits import Limits
from ..orders.reordered_problem import default_orders
from .alternate_orders import Reordered, orders_may_follow, reorder_in_parallel, rounds_of
from .fixed_order import INITIAL_THREADS, FixedOrderSearch
from .initial_plans import AncestorPlans, offer_extremes
from .parallel import ThreadTeam, threads, wait_for
from .solve_context import SolveContext, smallest_of, smallest_start

_PARALLEL_OPS = 150
"""On smaller graphs the search under the default orders is soon over."""


class ReachBudget:
    """The search for a plan within the budget of ``default``, a search under the default orders."""

    def __init__(self, context: SolveContext, default: FixedOrderSearch) -> None:
        self._context, self._default = context, default
        self._rounds = rounds_of(context.cache.problem, context.effort.lowerings)
        self._started: Future[Reordered] | None = None

    @cached_property
    def possible(self) -> bool:
        """Whether there is more than one backward order, and the effort and the size allow for this search."""
        follows = self._rounds > 0 and self._context.effort.following > 0
        return follows and orders_may_follow(self._context.cache.problem)

    def start(self, team: ThreadTeam) -> None:
        """Begin in a thread, if there are earlier plans and the graph is large enough."""
        large = self._context.cache.problem.op_count > _PARALLEL_OPS
        if self.possible and large and self._context.earlier:
            self._started = team.start(self._reach, self._smallest_known(), team.limits)

    def found(self) -> list[FixedOrderSearch]:
        """A search from the best plan within the budget in an order made for it; none if no such plan was found."""
        incumbents = self._default.incumbents
        if not self.possible:
            return []
        incumbents.say("making orders for the lowest plan")
        starts = [self._smallest_known, self._smallest_in_low_order]
        if self._context.earlier and self._default.cache.problem.floor_of_order.nbytes > incumbents.budget_nbytes:
            starts.reverse()  # less often in vain there, and a later solve is to take little
        reached = None
        if self._started is not None:
            wait_for([self._started])
            reached, starts = self._started.result(), starts[1:]
        for start in starts:
            if (reached is not None and self._fits(reached)) or incumbents.out_of_time():
                break
            plan = start()
            reached = reached if plan is None else self._reach(plan, self._context.limits.without_progress())
        if reached is None or not self._fits(reached):
            return []
        return [self._context.followed(reached, incumbents.budget_nbytes)]

    def _smallest_known(self) -> Reordered:
        """The plan of the smallest peak among the earlier ones, or those of the search under the default orders."""
        context, incumbents = self._context, self._default.incumbents
        known = [start for plans in context.earlier for start in plans.starts_in(context.cache)]
        if not known:
            offer_extremes(incumbents)
            known.append(smallest_of(incumbents, default_orders(context.cache.problem)))
        return smallest_start(known)

    def _smallest_in_low_order(self) -> Reordered | None:
        """The plan of the smallest peak that the other strategies find under an order of a low floor."""
        context = self._context
        low = context.cache.low(context.limits)
        if low is None:
            return None
        orders, cache = low
        incumbents = context.search(self._default.incumbents.budget_nbytes, cache, orders).incumbents
        offer_extremes(incumbents)
        with threads(context.limits, INITIAL_THREADS) as team:
            ancestors = AncestorPlans(incumbents, cache, team.limits)
            for part in ancestors.parts:
                team.start(part)
            team.join()
        ancestors.offer()
        return smallest_of(incumbents, orders)

    def _reach(self, start: Reordered, limits: Limits) -> Reordered:
        """The best plan and orders found from ``start``; one that does not fit is lowered further."""
        context, budget = replace(self._context, limits=limits), self._default.incumbents.budget_nbytes
        problem, effort = context.cache.problem, context.effort
        found = reorder_in_parallel(
            problem, [start], budget, rounds=self._rounds, restarts=effort.restarts,
            iterations=effort.following_on(problem.op_count), seed=context.seed, limits=limits,
        )  # fmt: skip
        if self._fits(found) or limits.out_of_time():
            return found
        return context.lowered_further(found, budget)

    def _fits(self, found: Reordered) -> bool:
        return found.found.peak_nbytes <= self._default.incumbents.budget_nbytes
