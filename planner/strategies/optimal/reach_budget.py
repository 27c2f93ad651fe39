"""Plans within a budget that the default orders lead to none for: an order follows a plan of a low peak, and the plan
that order, until it fits.

It begins from the lowest of the plans of earlier solves, on large graphs beside the search under the default orders, or
else from the lowest that this finds; where that does not end within the budget, under an order of a low floor. A later
solve whose budget the default orders cannot meet takes the two the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from ..orders.reordered_problem import default_orders
from .alternate_orders import Reordered, orders_may_follow, rounds_of
from .beside import wait_for
from .fixed_order import OneOrder
from .initial_plans import Others, offer_extremes
from .reorder_lanes import reorder_in_lanes
from .solve_context import Task, lowest_as, lowest_start

_BEGUN_OPS = 150
"""On smaller graphs the search under the default orders is soon over."""


class Reaching:
    """The way to the budget of ``default``, a search under the default orders of the problem."""

    def __init__(self, task: Task, default: OneOrder) -> None:
        self._default, self._asked_to_stop = default, task.stop
        self._task = replace(task, progress=None, stop=self._stopped)
        self._rounds = rounds_of(task.prepared.problem, task.effort.lowerings)
        self._pool: ThreadPoolExecutor | None = None
        self._begun: Future[Reordered] | None = None
        self._given_up = self._stopped_early = False

    @cached_property
    def possible(self) -> bool:
        """Whether orders may follow plans: there is more than one, and the effort and the size allow for it."""
        follows = self._rounds > 0 and self._task.effort.following > 0
        return follows and orders_may_follow(self._task.prepared.problem)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Let `begin` use a thread of its own; what nobody has asked the outcome of is given up at the end."""
        with ThreadPoolExecutor(1) as self._pool:
            try:
                yield
            finally:
                self._given_up = True
        if self._begun is not None:
            self._begun.result()  # an error there is one, whoever asked

    def begin(self) -> None:
        """Begin in a thread, where there are earlier plans and the search beside it takes long enough."""
        large = self._task.prepared.problem.op_count > _BEGUN_OPS
        if self._pool is not None and self.possible and large and self._task.earlier:
            self._begun = self._pool.submit(self._reach, self._lowest_known())

    def found(self) -> list[OneOrder]:
        """A search from the best plan within the budget in an order made for it; none where none is found."""
        search = self._default.search
        if not self.possible:
            return []
        search.say("making orders for the lowest plan")
        starts = [self._lowest_known, self._lowest_in_low_order]
        if self._task.earlier and self._default.prepared.problem.floor_of_order.nbytes > search.budget_nbytes:
            starts.reverse()  # less often in vain there, and a later solve is to take little
        if self._begun is not None:
            wait_for(search, [self._begun])
        reached = None if self._begun is None else self._begun.result()
        for start in starts if self._begun is None else starts[1:]:
            if (reached is not None and self._fits(reached)) or search.out_of_time():
                break
            begun = start()
            reached = reached if begun is None else self._reach(begun)
        search.stopped_early |= self._stopped_early
        if reached is None or not self._fits(reached):
            return []
        task = replace(self._task, progress=search.progress, stop=self._asked_to_stop)
        return [task.followed(reached, search.budget_nbytes)]

    def _lowest_known(self) -> Reordered:
        """The lowest of the earlier plans, or of those that the search under the default orders has."""
        task, search = self._task, self._default.search
        known = [start for plans in task.earlier for start in plans.starts_in(task.prepared)]
        if not known:
            offer_extremes(search)
            known.append(lowest_as(search, default_orders(task.prepared.problem)))
        return lowest_start(known)

    def _lowest_in_low_order(self) -> Reordered | None:
        """The lowest of what the other strategies find under an order of a low floor."""
        task = self._task
        low = task.prepared.low(self._default.search.out_of_time)
        if low is None:
            return None
        orders, prepared = low
        search = task.run(self._default.search.budget_nbytes, prepared, orders).search
        offer_extremes(search)
        others = Others(search, prepared)
        others.make()
        others.offer()
        self._stopped_early |= search.stopped_early
        return lowest_as(search, orders)

    def _reach(self, start: Reordered) -> Reordered:
        """The best plan and orders that following leads to from ``start``; where it does not fit, lowered further."""
        task, budget = self._task, self._default.search.budget_nbytes
        problem, effort = task.prepared.problem, task.effort
        search = task.run(budget, task.prepared).search
        found = reorder_in_lanes(
            problem, [start], search, budget, rounds=self._rounds, restarts=effort.restarts,
            iterations=effort.following_on(problem.op_count),
        )  # fmt: skip
        self._stopped_early |= search.out_of_time()
        if self._fits(found) or self._stopped_early:
            return found
        found, cut_short = task.lowered_further(found, budget)
        self._stopped_early |= cut_short
        return found

    def _fits(self, found: Reordered) -> bool:
        return found.found.peak_nbytes <= self._default.search.budget_nbytes

    def _stopped(self) -> bool:
        """Whether what was begun is wanted no more."""
        return self._given_up or (self._asked_to_stop is not None and self._asked_to_stop())
