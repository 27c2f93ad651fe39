"""Searches under other orders that promise lower peaks.

An eager effort starts them in parallel with the search under the default orders if that may fail. They depend on
nothing that it finds, and once it is done it cancels those that cannot save enough; so starting them early changes
wall time, never the result.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

from ...limits import Limits
from ..orders.proposals import held_order
from ..orders.reordered_problem import ordered
from .fixed_order import FixedOrderSearch
from .incumbents import Incumbents
from .parallel import ThreadTeam, threads, wait_for
from .problem_cache import ProblemCache
from .solve_context import SolveContext

ORDER_WORTH = 0.003
"""Other orders are planned for if the bounds leave room for saving this share of the step."""
_FOLLOWED = 3
"""The most orders made for what the relaxation under the best of the others retains, each from the best so far."""
_PARALLEL_OPS = 1000
"""On larger graphs one order takes long to be found, and so to be cancelled."""


class AlternativeOrders:
    """The orders whose first bound is the lowest, as many as the effort allows."""

    def __init__(self, context: SolveContext, budget_nbytes: int) -> None:
        self._context, self._budget_nbytes = context, budget_nbytes
        self._started: Future[None] | None = None
        self._ranked: list[tuple[int, FixedOrderSearch]] = []
        self._begun = 0
        """How many of the ranked ones have initial plans."""
        self._most_ns: float | None = None
        """What their bounds must lie below to be of use."""

    def start(self, team: ThreadTeam) -> None:
        """Begin in a thread, for an eager effort on a graph small enough to cancel the searches soon."""
        small = self._context.cache.problem.op_count <= _PARALLEL_OPS
        if small and self._context.effort.orders and self._context.effort.eager:
            self._started = team.start(self._find, team.limits)

    def promising(self, default: Incumbents) -> list[FixedOrderSearch]:
        """Searches, with initial plans, whose bound leaves room for a better plan than the best default one."""
        if default.out_of_time() or not self._context.effort.orders:
            return []
        room, best = ORDER_WORTH * default.problem.store_all_ns, default.best
        if self._context.effort.enough and best is not None and best.found.recompute_ns <= default.bound_ns + room:
            return []  # a plan near its bound has little to gain from another order
        self._most_ns = None if best is None else best.found.recompute_ns - room
        if self._started is None:
            self._find(default.limits)
        else:
            wait_for([self._started])
        found = [run for bound_ns, run in self._ranked[: self._begun] if self._of_use(bound_ns)]
        for run in found:
            run.incumbents.limits = default.limits
        return found

    def _of_use(self, bound_ns: int) -> bool:
        return self._most_ns is None or bound_ns < self._most_ns

    def _useless(self) -> bool:
        """Whether the search that is being started cannot save enough."""
        return self._begun < len(self._ranked) and not self._of_use(self._ranked[self._begun][0])

    def _find(self, limits: Limits) -> None:
        """Rank the orders by their bounds, and find initial plans in those that are of use."""
        context = replace(self._context, limits=limits.stopping_with(self._useless))
        runs, compared = context.alternatives(self._budget_nbytes)
        if compared:
            _compare(context, runs)
        for run in runs:
            if run.incumbents.out_of_time():
                return
            run.bound_quickly()
        ranked = sorted(((run.incumbents.bound_ns, run) for run in runs), key=lambda pair: pair[0])
        self._ranked = ranked[: context.effort.orders]
        for bound_ns, run in self._ranked:
            if not self._of_use(bound_ns) or run.incumbents.out_of_time():
                return
            run.start()
            run.reach()
            self._begun += 1


def _compare(context: SolveContext, runs: list[FixedOrderSearch]) -> None:
    """Relax each of ``runs``, and add runs in orders made for what the relaxation of the lowest bound holds.

    The bound of an order tells by and large what plans in it cost.
    """
    if not runs:
        return
    context.limits.say("comparing orders")
    with threads(context.limits) as team:
        for run in runs:
            run.incumbents.limits = team.limits
            team.start(run.relax)
        team.join()
    for run in runs:
        run.incumbents.limits = context.limits
    known = {run.orders for run in runs}
    for number in range(_FOLLOWED):
        best = min(runs, key=lambda run: run.incumbents.bound_ns)
        if best.point is None or best.orders is None or context.limits.out_of_time():
            return
        problem, orders = context.cache.problem, best.orders
        backward = held_order(problem, orders.backward, best.point.alive.tolist(), context.seed + number)
        orders = replace(orders, backward=backward)
        if orders in known:
            return
        known.add(orders)
        run = context.search(best.incumbents.budget_nbytes, ProblemCache(ordered(problem, orders)), orders)
        if run.cache.problem.floor_of_order.nbytes <= run.incumbents.budget_nbytes:
            runs.append(run)
            run.relax()
