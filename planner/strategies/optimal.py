"""The certified strategy: a plan, and a proof of how little a better one could save.

1. Under the default orders: relaxations bound the cost and are rounded to plans (a minimum cut for the first
   backward, linear programs for several); every other strategy and a chain of blocks give plans, too.
2. The best plan is annealed, as labels and as holds, while branch and bound raises the bound beside it.
3. Where the graph branches, the same under orders that promise lower peaks, as far as their bound leaves room;
   then the order follows the best plan and the plan the order.

All work is counted, never timed, so a solve without a time limit is deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..problem import Problem
from ..solution import Decisions, Solution, Status
from .effort import Effort, effort_named
from .one_order import OneOrder, lowest_of
from .order_bound import order_free_bound
from .orders import Orders, default_orders, restored
from .prepared import Prepared
from .reorder import Reordered, reorder, rounds_of
from .search import Candidate, Progress, Search
from .stage_lp import BOUND_CLASS
from .warm_up import prepare_kernels

NAME = "optimal"
CHOSEN_CLASS = "the backward order of this plan; any forward order, any number of recomputations"
_ORDER_WORTH = 0.003
"""Other orders are planned for where the bounds leave room for saving this share of the step."""


@dataclass(frozen=True)
class _Known:
    """Plans of low peaks under some orders, None for the default ones."""

    prepared: Prepared
    orders: Orders | None
    candidates: tuple[Candidate, ...]

    @property
    def peak_nbytes(self) -> int:
        """The lowest of their peaks."""
        return min(candidate.found.peak_nbytes for candidate in self.candidates)


@dataclass(frozen=True)
class _Task:
    """What all searches of one solve have in common."""

    prepared: Prepared
    deadline: float | None
    progress: Progress | None
    effort: Effort
    seed: int
    stop: Callable[[], bool] | None

    def run(self, budget_nbytes: int, prepared: Prepared, orders: Orders | None = None) -> OneOrder:
        """A search that has not begun."""
        common = (self.deadline, self.progress, self.effort, self.seed, self.stop)
        return OneOrder(Search(prepared.evaluator, budget_nbytes, *common), prepared, orders)

    def variants(self) -> list[tuple[Prepared, Orders | None]]:
        """The default orders, then the chosen ones that the effort allows."""
        chosen = self.prepared.alternatives if self.effort.orders else ()
        return [(self.prepared, None), *((other, orders) for orders, other in chosen)]

    def lowest(self) -> tuple[list[_Known], bool]:
        """Plans of the smallest peak under each variant and under an order made for the lowest of them.

        And whether the search for them was cut short.
        """
        found: list[_Known] = []
        stopped = False
        for prepared, orders in self.variants():
            if stopped and found:
                break
            candidates, cut_short = lowest_of(
                prepared, self.run(max(1, prepared.problem.floor_nbytes), prepared).search
            )
            found.append(_Known(prepared, orders, candidates))
            stopped |= cut_short
        rounds = rounds_of(self.prepared.problem, self.effort.reorderings)
        if rounds and not stopped:
            other, stopped = self._lower(min(found, key=lambda known: known.peak_nbytes), rounds)
            if other.peak_nbytes < min(known.peak_nbytes for known in found):
                found.append(other)
        return found, stopped

    def _lower(self, known: _Known, rounds: int) -> tuple[_Known, bool]:
        """The lowest of known plans, lowered further in an order of its own, and whether that was cut short."""
        key, problem = (self.effort.name, self.seed), self.prepared.problem
        if key not in self.prepared.reordered_lowest:
            lowest = min(known.candidates, key=lambda candidate: candidate.found.peak_nbytes)
            start = Reordered(
                known.orders or default_orders(problem), known.prepared.evaluator, lowest.sequence, lowest.found
            )
            search = self.run(1, self.prepared).search
            floor = max(1, problem.floor_nbytes)
            found = reorder(problem, start, floor, rounds=rounds, seed=self.seed, stop=search.out_of_time)
            if search.stopped_early:
                return self._known(found), True
            self.prepared.reordered_lowest[key] = found
        return self._known(self.prepared.reordered_lowest[key]), False

    @staticmethod
    def _known(found: Reordered) -> _Known:
        prepared = Prepared(found.evaluator.problem)
        return _Known(prepared, found.orders, (Candidate(found.sequence, found.found),))


def solve(
    problem: Problem | Prepared,
    budget_nbytes: int | None = None,
    *,
    time_limit_s: float | None = None,
    seed: int = 0,
    effort: str = "default",
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Solution:
    """The cheapest plan found within the budget, with a certified lower bound for the class of plans it names.

    Without a budget the peak is minimised first. ``stop`` is asked every fraction of a second and ends the
    search with what it has. INFEASIBLE is answered only below the floor, which no order escapes; UNKNOWN carries
    the smallest peak found, and every budget from there on has a plan under the same seed and effort.
    """
    prepared = problem if isinstance(problem, Prepared) else Prepared(problem)
    if time_limit_s is not None:
        prepare_kernels()  # compiling them on a fresh machine is not part of the search
    started = time.perf_counter()
    deadline = None if time_limit_s is None else started + time_limit_s
    task = _Task(prepared, deadline, progress, effort_named(effort), seed, stop)
    if budget_nbytes is not None and budget_nbytes < prepared.problem.floor_nbytes:
        return _finished(Solution(Status.INFEASIBLE, NAME, None, bound_class=BOUND_CLASS), started)
    best, stopped = (None, False) if budget_nbytes is None else _best(task, budget_nbytes)
    smallest = None
    if best is None:
        known, cut_short = task.lowest()
        stopped |= cut_short
        smallest = min(plans.peak_nbytes for plans in known)
        if budget_nbytes is None or smallest <= budget_nbytes:
            best, cut_short = _planned(task, smallest if budget_nbytes is None else budget_nbytes, known)
            stopped |= cut_short
        else:
            unknown = Solution(Status.UNKNOWN, NAME, None, bound_class=BOUND_CLASS, smallest_nbytes=smallest)
            return _finished(unknown, started, stopped)
    return _finished(_answer(best, smallest), started, stopped)


def smallest_peak(
    problem: Problem | Prepared,
    *,
    time_limit_s: float | None = None,
    seed: int = 0,
    effort: str = "default",
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> int:
    """The smallest peak in bytes that the search reaches, without planning for it."""
    prepared = problem if isinstance(problem, Prepared) else Prepared(problem)
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    known, _ = _Task(prepared, deadline, progress, effort_named(effort), seed, stop).lowest()
    return min(plans.peak_nbytes for plans in known)


def _best(task: _Task, budget_nbytes: int) -> tuple[OneOrder | None, bool]:
    """The best plan under the default orders or chosen ones, None when there is none; and whether it was cut short."""
    default = task.run(budget_nbytes, task.prepared)
    default.start()
    default.finish()
    best, runs = default, [default]
    for other in _promising(task, default):
        if best.search.out_of_time():
            break
        runs.append(other)
        other.start()
        other.improve()
        if _cost(other) < _cost(best):
            best = other
    if best is not default:
        best.finish(improving=False)
    adapted = _reordered(task, best)
    if adapted is not None:
        runs.append(adapted)
        adapted.finish()
        best = adapted
    return None if best.search.best is None else best, any(run.search.stopped_early for run in runs)


def _planned(task: _Task, budget_nbytes: int, known: list[_Known]) -> tuple[OneOrder, bool]:
    """The best plan within a budget that some of the ``known`` plans, those of each variant, reach; as `_best`."""
    runs = []
    for plans in known:
        if plans.peak_nbytes <= budget_nbytes:
            run = task.run(budget_nbytes, plans.prepared, plans.orders)
            run.start(plans.candidates)
            run.improve()
            runs.append(run)
    found = min(runs, key=_cost)
    best = _reordered(task, found) or found
    best.finish()
    return best, any(run.search.stopped_early for run in runs)


def _reordered(task: _Task, run: OneOrder) -> OneOrder | None:
    """A search from a better plan than that of ``run`` in orders made for it; None where none was found."""
    search, problem = run.search, task.prepared.problem
    rounds = rounds_of(problem, task.effort.reorderings)
    room = _ORDER_WORTH * problem.store_all_ns
    best = search.best
    if best is None or not rounds or search.out_of_time() or best.found.recompute_ns <= search.bound_ns + room:
        return None
    start = Reordered(run.orders or default_orders(problem), search.evaluator, best.sequence, best.found)
    found = reorder(problem, start, search.budget_nbytes, rounds=rounds, seed=search.seed, stop=search.out_of_time)
    if found.found.recompute_ns >= best.found.recompute_ns:
        return None
    other = task.run(search.budget_nbytes, Prepared(found.evaluator.problem), found.orders)
    other.follow(Candidate(found.sequence, found.found))
    return other


def _promising(task: _Task, default: OneOrder) -> list[OneOrder]:
    """Searches under chosen orders whose bound leaves room for a better plan, the lowest bound first."""
    if default.search.out_of_time() or not task.effort.orders:
        return []
    room, best = _ORDER_WORTH * default.search.problem.store_all_ns, default.search.best
    if best is not None and best.found.recompute_ns <= default.search.bound_ns + room:
        return []  # orders lower peaks a little: where little is lost to the bound, little is to be had
    found = []
    for number, (orders, prepared) in enumerate(task.prepared.alternatives):
        run = task.run(default.search.budget_nbytes, prepared, orders)
        run.bound_quickly()
        if best is None or run.search.bound_ns + room < best.found.recompute_ns:
            found.append((run.search.bound_ns, number, run))
    return [run for _, _, run in sorted(found, key=lambda entry: entry[:2])][: task.effort.orders]


def _cost(run: OneOrder) -> tuple[bool, int, int]:
    best = run.search.best
    return (True, 0, 0) if best is None else (False, best.found.recompute_ns, best.found.peak_nbytes)


def _answer(run: OneOrder, smallest_nbytes: int | None) -> Solution:
    search = run.search
    assert search.best is not None
    found, bound_ns = search.best.found, search.bound_ns
    decisions = Decisions(tuple(search.best.sequence.tolist()))
    if run.orders is not None:
        assert search.problem.reorders is not None
        decisions = restored(decisions, run.orders)
        bound_ns = max(bound_ns, order_free_bound(search.problem.reorders, search.budget_nbytes))
    bound_ns = min(bound_ns, found.recompute_ns)
    return Solution(
        Status.OPTIMAL if bound_ns == found.recompute_ns else Status.FEASIBLE,
        NAME,
        decisions,
        objective_ns=found.recompute_ns,
        bound_ns=bound_ns,
        bound_class=BOUND_CLASS if run.orders is None else CHOSEN_CLASS,
        peak_nbytes=found.peak_nbytes,
        smallest_nbytes=smallest_nbytes,
    )


def _finished(solution: Solution, started: float, stopped_early: bool = False) -> Solution:
    return replace(solution, wall_s=time.perf_counter() - started, stopped_early=stopped_early)
