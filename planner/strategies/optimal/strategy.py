"""The certified strategy: a plan, and a proof of how little a better one could save.

1. Under the default orders: relaxations bound the cost and are rounded to plans (a minimum cut for the first
   backward, linear programs for several); every other strategy and a chain of blocks give plans, too.
2. Where the graph branches and they have no plan, the order follows the lowest plan there is, and the plan the order,
   until it fits (reach_budget.py; not for a high effort's own search). Where that fails, or the effort is high, the
   relaxations of orders that promise lower peaks are rounded, too, as far as their bound leaves room.
3. The best of these plans is annealed, as holds or labels; half-way the order follows the plan and the plan the order,
   where that lowers the cost. Beside that (where it takes long: before it, too) a search in integers raises the bound,
   and what it finds is rounded: an optimum that fits the budget is the best plan, or as near it as the effort asks for.

A solve of a prepared problem starts from the plans of those before it, and does less (effort.py). All work is counted,
never timed, so a solve without a time limit, or a row of them, is deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ...problem import Problem
from ...solution import Decisions, Solution, Status, with_bound
from ..orders.reordered_problem import default_orders, restored
from ..relaxation.order_free_bound import order_free_bound
from ..relaxation.stage_relaxation import BOUND_CLASS
from .alternate_orders import Reordered, rounds_of
from .alternative_orders import ORDER_WORTH, OtherOrders
from .effort import effort_named
from .fixed_order import OneOrder
from .incumbents import Progress, rank
from .problem_cache import Known, Prepared
from .reach_budget import Reaching
from .reorder_lanes import reorder_in_lanes
from .solve_context import Task
from .warm_up import prepare_kernels

NAME = "optimal"
CHOSEN_CLASS = "the backward order of this plan; any forward order, any number of recomputations"
_ELSEWHERE_OPS = 150
"""On graphs of no more ops, where that takes little, orders are made for a plan that is the best of its order, too."""
AGAIN_NOTE = "begun from the plans for other budgets, with less work"
"""What the plan of a solve says that starts from earlier ones."""
_SETTLING = 0.005
"""Integers seldom settle a gap wider than this share of the step, so a less than thorough effort does not wait for them
before it makes orders, where that takes little."""
_BEFORE_REORDERING = 0.5
"""The share of the annealing that is done before an order is made for the plan: that for a poor plan is poor, too."""


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

    Without a budget the peak is minimised first. ``stop`` is asked about every fraction of a second, also by threads of
    the search, and ends it with what it has. INFEASIBLE is answered only below the floor, which no order escapes;
    UNKNOWN carries the smallest peak found, and every budget from there on has a plan under the same seed and effort.
    """
    prepared = problem if isinstance(problem, Prepared) else Prepared(problem)
    if time_limit_s is not None:
        prepare_kernels()  # compiling them on a fresh machine is not part of the search
    started = time.perf_counter()
    deadline = None if time_limit_s is None else started + time_limit_s
    task = Task(prepared, deadline, progress, effort_named(effort), seed, stop).again()
    if budget_nbytes is not None and budget_nbytes < prepared.problem.floor_nbytes:
        return _finished(Solution(Status.INFEASIBLE, NAME, None, bound_class=BOUND_CLASS), started)
    if task.effort.first is None:
        notes = (AGAIN_NOTE,) if task.earlier else ()
        return _finished(replace(_solved(task, budget_nbytes)[0], notes=notes), started)
    first, begun = _solved(replace(task, effort=effort_named(task.effort.first)), budget_nbytes)
    if first.stopped_early:
        return _finished(first, started)
    found, _ = _solved(task, budget_nbytes)
    best = better(first, found, budget_nbytes)
    dearer = found.decisions is None or best.objective_ns < found.objective_ns
    if begun is not None and budget_nbytes is not None and dearer:
        best = better(best, _gone_on(task, begun), budget_nbytes)
    return _finished(best, started)


def _solved(task: Task, budget_nbytes: int | None) -> tuple[Solution, OneOrder | None]:
    """What one effort finds within a budget that is not below the floor, and the search that found it, if one did."""
    best, stopped = (None, False) if budget_nbytes is None else _best(task, budget_nbytes)
    smallest = None
    if best is None:
        known, cut_short = task.lowest()
        stopped |= cut_short
        smallest = min(plans.peak_nbytes for plans in known)
        best, cut_short = _planned(task, smallest if budget_nbytes is None else max(budget_nbytes, smallest), known)
        stopped |= cut_short
        assert best.search.best is not None
        reached = best.search.best.found.peak_nbytes  # may lie below what was asked for, but not in every solve
        if budget_nbytes is not None and reached > budget_nbytes:
            unknown = Solution(
                Status.UNKNOWN, NAME, None, bound_class=BOUND_CLASS, smallest_nbytes=smallest, stopped_early=stopped
            )
            return unknown, None
    if not stopped:
        task.remember(best)
    return replace(_answer(best, smallest), stopped_early=stopped), best


def _gone_on(task: Task, begun: OneOrder) -> Solution:
    """What the effort makes of the plan that less effort found, in the order of that plan."""
    assert begun.search.best is not None
    run = task.run(begun.search.budget_nbytes, begun.prepared, begun.orders)
    run.search.bound_ns = begun.search.bound_ns
    run.follow(begun.search.best)
    best = _finish(task, run)
    return replace(_answer(best, None), stopped_early=run.search.stopped_early or best.search.stopped_early)


def better(first: Solution, second: Solution, budget_nbytes: int | None) -> Solution:
    """The better of two answers to one question, with the higher of their bounds where both bound the same plans.

    Of two that cost the same it is the one with the higher bound.
    """

    def key(answer: Solution) -> tuple[bool, int, int, int]:
        if answer.decisions is None:
            return True, answer.smallest_nbytes or 0, 0, 0
        within = 0 if budget_nbytes is not None else answer.peak_nbytes or 0
        return False, within, answer.objective_ns, -answer.bound_ns

    best = min(second, first, key=key)
    same = budget_nbytes is not None and first.bound_class == second.bound_class == BOUND_CLASS
    if same and best.decisions is not None:
        best = with_bound(best, max(first.bound_ns, second.bound_ns), BOUND_CLASS)
    return replace(best, stopped_early=first.stopped_early or second.stopped_early)


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
    known, _ = Task(prepared, deadline, progress, effort_named(effort), seed, stop).lowest()
    return min(plans.peak_nbytes for plans in known)


def _best(task: Task, budget_nbytes: int) -> tuple[OneOrder | None, bool]:
    """The best plan under the default orders or others, None when there is none; and whether it was cut short.

    Where the default ones, and the orders of earlier plans, have none, an order is made for the lowest plan there is,
    if the effort has iterations for it; where that leads to none in a first solve, or the effort is eager, other orders
    are asked. The order whose first plan is the cheapest is searched in full, or those that follow that plan once it
    is annealed.
    """
    default, others = task.run(budget_nbytes, task.prepared), OtherOrders(task, budget_nbytes)
    reaching = Reaching(task, default)

    def unreached() -> None:
        others.begin()
        reaching.begin()

    with others.beside(), reaching.beside():
        if task.prepared.problem.floor_of_order.nbytes <= budget_nbytes:
            default.start(task.earlier_in(None), unreached=unreached)
            if default.search.best is None and not reaching.possible:
                default.reach()
        runs = [default, *_followed(task, default)]
        if all(run.search.best is None for run in runs):
            runs += reaching.found()
        if (not task.earlier and all(run.search.best is None for run in runs)) or task.effort.eager:
            runs += others.promising(default.search)
    if len(runs) > 1 and task.effort.thorough:
        for run in runs:
            run.improve()
    best = _finish(task, min(runs, key=_cost))
    return None if best.search.best is None else best, any(run.search.stopped_early for run in (*runs, best))


def _followed(task: Task, default: OneOrder) -> list[OneOrder]:
    """A search from the cheapest of the earlier plans in other orders that fit, if it costs less than ``default``'s."""
    budget = default.search.budget_nbytes
    plans = [
        (plans, plan)
        for plans in task.earlier
        if plans.orders is not None
        for plan in plans.candidates
        if plan.found.peak_nbytes <= budget
    ]
    if not plans or default.search.out_of_time():
        return []
    known, plan = min(plans, key=lambda pair: rank(pair[1].found, budget))
    best = default.search.best
    if best is not None and rank(best.found, budget) <= rank(plan.found, budget):
        return []
    run = task.run(budget, known.prepared, known.orders)
    run.follow(plan)
    return [run]


def _finish(task: Task, run: OneOrder) -> OneOrder:
    """Improve the best plan in its order, or in one made for it; the search that did it in the end."""
    run.solve()
    if not _may_reorder(task, run):
        run.finish()
        if not _may_reorder(task, run):  # integers may have settled it only now
            return run
    small = task.prepared.problem.op_count <= task.effort.compared
    with run.proving() as begun:
        run.improve(share=1.0 if small else _BEFORE_REORDERING)  # all where the order may be chosen from many already
        waits = not small or task.effort.thorough or run.search.gap() <= _SETTLING
        if waits:
            run.learn(begun)  # where integers settle it, no other order is worth more
        adapted = _reordered(task, run)
        if adapted is None:
            if not waits:
                run.learn(begun)
            run.finish(begun, share=1 - _BEFORE_REORDERING)
            return run
    if task.effort.thorough:  # else its plan was annealed enough in these orders already
        adapted.solve()
    adapted.finish(tried=waits and begun is not None)
    return adapted


def _planned(task: Task, budget_nbytes: int, known: list[Known]) -> tuple[OneOrder, bool]:
    """The best plan within a budget that some of the ``known`` plans, those of each variant, reach; as `_best`."""
    runs = []
    for plans in known:
        if plans.peak_nbytes <= budget_nbytes:
            run = task.run(budget_nbytes, plans.prepared, plans.orders)
            run.start([*plans.candidates, *task.earlier_in(plans.orders)])
            run.improve(share=task.effort.at_lowest)
            runs.append(run)
    found = min(runs, key=_cost)
    best = (_reordered(task, found) if task.effort.thorough else None) or found
    best.finish(share=task.effort.at_lowest)
    return best, any(run.search.stopped_early for run in (*runs, best))


def _reordered(task: Task, run: OneOrder) -> OneOrder | None:
    """A search from a better plan than that of ``run`` in orders made for it; None where none was found."""
    search, problem = run.search, task.prepared.problem
    best = search.best
    rounds = _rounds(task)
    if best is None or not _may_reorder(task, run):
        return None
    start = Reordered(run.orders or default_orders(problem), search.evaluator, best.sequence, best.found)
    found = reorder_in_lanes(
        problem, [start], search, search.budget_nbytes, rounds=rounds, restarts=task.effort.restarts,
        iterations=task.effort.adapting,
    )  # fmt: skip
    if found.found.recompute_ns >= best.found.recompute_ns:
        return None
    return task.followed(found, search.budget_nbytes)


def _may_reorder(task: Task, run: OneOrder) -> bool:
    """Whether orders made for the best plan may be tried, and promise enough."""
    search = run.search
    if not _rounds(task) or search.best is None or search.out_of_time():
        return False
    problem, room = task.prepared.problem, ORDER_WORTH * search.problem.store_all_ns
    if search.best.found.recompute_ns > search.bound_ns + room:
        return True
    if not search.settled() or problem.op_count > _ELSEWHERE_OPS or task.effort.thorough:
        return False
    return search.best.found.recompute_ns > order_free_bound(problem, search.budget_nbytes) + room


def _rounds(task: Task) -> int:
    """Rounds of adapting orders to the best plan."""
    problem = task.prepared.problem
    return rounds_of(problem, task.effort.reorderings_on(problem.op_count))


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
    solution = Solution(
        Status.FEASIBLE,
        NAME,
        decisions,
        objective_ns=found.recompute_ns,
        peak_nbytes=found.peak_nbytes,
        smallest_nbytes=smallest_nbytes,
    )
    return with_bound(solution, bound_ns, BOUND_CLASS if run.orders is None else CHOSEN_CLASS)


def _finished(solution: Solution, started: float) -> Solution:
    return replace(solution, wall_s=time.perf_counter() - started)
