"""The certified strategy: a plan, and a proof of how little a better one could save.

1. Under the default orders: relaxations bound the cost and are rounded to plans (a minimum cut for the first
   backward, linear programs for several); every other strategy and a chain of blocks give plans, too.
2. If no plan fits under the default orders, alternate: reorder the backward for the plan of the smallest peak, anneal
   the plan in that order, and repeat until it fits, or down to the smallest peak (solve_context.py).
3. Anneal the best of these plans as retention; half-way alternate between order and plan if that lowers the
   cost. In parallel (for a thorough effort before it, too) a search in integers raises the bound, and its points are
   rounded to plans.

A solve of a cached problem starts from the plans of those before it, and does less (effort.py). All work is counted,
never timed, so a solve without a time limit, or a row of them, is deterministic.
"""

from __future__ import annotations

from dataclasses import replace

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Decisions, Solution, Status, with_bound
from ..orders.reordered_problem import default_orders, restored
from ..relaxation.order_free_bound import order_free_bound
from ..relaxation.stage_relaxation import BOUND_CLASS
from .alternate_orders import Reordered, reorder_in_parallel
from .effort import effort_named
from .fixed_order import FixedOrderSearch
from .incumbents import rank
from .initial_plans import offer_extremes
from .problem_cache import KnownPlans, ProblemCache
from .solve_context import SolveContext

NAME = "optimal"
CHOSEN_CLASS = "the backward order of this plan; any forward order, any number of recomputations"
_ORDER_WORTH = 0.003
"""Orders are made for a plan if the bound leaves room for saving this share of the step."""
_AT_SMALLEST = 0.3
"""The share of the annealing that is done within the smallest peak, where an iteration takes several times as long."""
AGAIN_NOTE = "begun from the plans for other budgets, with less work"
"""The note of a plan whose solve started from earlier plans."""
_BEFORE_REORDERING = 0.5
"""The share of the annealing that is done before an order is made for the plan: an order for a poor plan is poor."""


def solve(
    problem: Problem | ProblemCache,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    effort: str = "default",
) -> Solution:
    """The cheapest plan found within the budget, with a certified lower bound for the class of plans it names.

    Without a budget the peak is minimised first. Outside ``limits``, which threads of the search ask every fraction of
    a second, the search ends with what it has.

    Returns:
        A solution. INFEASIBLE means that the budget lies below the floor, which no order escapes. UNKNOWN carries the
        smallest peak found; every budget from there on has a plan under the same seed and effort.
    """
    cache = problem if isinstance(problem, ProblemCache) else ProblemCache(problem)
    context = SolveContext(cache, limits.latched(), effort_named(effort), seed).resumed()
    if budget_nbytes is not None and budget_nbytes < cache.problem.floor_nbytes:
        return Solution(Status.INFEASIBLE, NAME, None, bound_class=BOUND_CLASS)
    if context.effort.first is None:
        return replace(_solved(context, budget_nbytes)[0], notes=(AGAIN_NOTE,) if context.earlier else ())
    first, begun = _solved(replace(context, effort=effort_named(context.effort.first)), budget_nbytes)
    if first.stopped_early:
        return first
    found, _ = _solved(context, budget_nbytes)
    best = better(first, found, budget_nbytes)
    dearer = found.decisions is None or best.objective_ns < found.objective_ns
    if begun is not None and budget_nbytes is not None and dearer:
        best = better(best, _gone_on(context, begun), budget_nbytes)
    return best


def _solved(context: SolveContext, budget_nbytes: int | None) -> tuple[Solution, FixedOrderSearch | None]:
    """What one effort finds within a budget not below the floor, and the search that found it, if one did."""
    best = None if budget_nbytes is None else _best(context, budget_nbytes)
    smallest = None
    if best is None:
        known = context.smallest()
        smallest = min(plans.peak_nbytes for plans in known)
        best = _planned(context, budget_nbytes, known)
        assert best.best is not None
        reached = best.best.found.peak_nbytes  # may lie below what was asked for, but not in every solve
        if budget_nbytes is not None and reached > budget_nbytes:
            unknown = Solution(Status.UNKNOWN, NAME, None, bound_class=BOUND_CLASS, smallest_nbytes=smallest)
            return replace(unknown, stopped_early=context.limits.out_of_time()), None
    answer = _answer(best, smallest)
    if not answer.stopped_early:
        context.remember(best)
    return answer, best


def _gone_on(context: SolveContext, begun: FixedOrderSearch) -> Solution:
    """What the effort makes of the plan that less effort found, in the order of that plan."""
    assert begun.best is not None
    run = context.search(begun.incumbents.budget_nbytes, begun.cache, begun.orders)
    run.incumbents.bound_ns = begun.incumbents.bound_ns
    run.follow(begun.best)
    return _answer(_finish(context, run), None)


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
    problem: Problem | ProblemCache, *, limits: Limits = NO_LIMITS, seed: int = 0, effort: str = "default"
) -> int:
    """The smallest peak in bytes that the search reaches, without planning for it."""
    cache = problem if isinstance(problem, ProblemCache) else ProblemCache(problem)
    known = SolveContext(cache, limits.latched(), effort_named(effort), seed).smallest()
    return min(plans.peak_nbytes for plans in known)


def _best(context: SolveContext, budget_nbytes: int) -> FixedOrderSearch | None:
    """The search with the best plan within the budget, or None.

    It is one under the default orders or those of an earlier plan; if neither has a plan, one in orders made for it.
    """
    default = context.search(budget_nbytes, context.cache)
    if context.cache.problem.floor_of_order.nbytes <= budget_nbytes:
        default.start(context.earlier_in(None))
    best: FixedOrderSearch | None = min([default, *_followed(context, default)], key=_cost)
    if best is not None and best.best is None:
        best = _reached(context, default)
    return None if best is None else _finish(context, best)


def _reached(context: SolveContext, default: FixedOrderSearch) -> FixedOrderSearch | None:
    """A search from the known plan of the smallest peak, lowered into the budget in orders made for it, or None."""
    incumbents, problem = default.incumbents, context.cache.problem
    if not context.makes_orders or incumbents.out_of_time():
        return None
    incumbents.say("trying other orders")
    offer_extremes(incumbents)
    assert incumbents.smallest is not None
    known = [KnownPlans(context.cache, None, (incumbents.smallest,)), *context.earlier]
    starts = [start for plans in known for start in plans.starts_in(context.cache)]
    start = min(starts, key=lambda start: start.found.peak_nbytes)
    budget, orders, limits = incumbents.budget_nbytes, context.effort.orders, context.limits
    found = reorder_in_parallel(problem, [start], budget, orders, seed=context.seed, limits=limits)
    if found.found.peak_nbytes > budget and not limits.out_of_time():
        found = context.lowered_further(found, budget)
    return context.followed(found, budget) if found.found.peak_nbytes <= budget else None


def _followed(context: SolveContext, default: FixedOrderSearch) -> list[FixedOrderSearch]:
    """A search from the cheapest of the earlier plans in other orders that fit, if it costs less than ``default``'s."""
    budget = default.incumbents.budget_nbytes
    plans = [
        (plans, plan)
        for plans in context.earlier
        if plans.orders is not None
        for plan in plans.candidates
        if plan.found.peak_nbytes <= budget
    ]
    if not plans or default.incumbents.out_of_time():
        return []
    known, plan = min(plans, key=lambda pair: rank(pair[1].found, budget))
    best = default.best
    if best is not None and rank(best.found, budget) <= rank(plan.found, budget):
        return []
    run = context.search(budget, known.cache, known.orders)
    run.follow(plan)
    return [run]


def _finish(context: SolveContext, run: FixedOrderSearch) -> FixedOrderSearch:
    """Improve the best plan in its order, or in one made for it; the search that did it in the end."""
    run.solve()
    if not _may_reorder(context, run):
        run.finish()
        return run
    with run.proving() as begun:
        run.improve(share=_BEFORE_REORDERING)
        run.learn(begun)  # if integers settle it, no other order is worth more
        adapted = _reordered(context, run)
        if adapted is None:
            run.finish(begun, share=1 - _BEFORE_REORDERING)
            return run
    if context.effort.thorough:  # else its plan was annealed enough in these orders already
        adapted.solve()
    adapted.finish(tried=begun is not None)
    return adapted


def _planned(context: SolveContext, budget_nbytes: int | None, known: list[KnownPlans]) -> FixedOrderSearch:
    """The search with the best plan within a budget, or within the smallest peak, from the ``known`` plans in it."""
    smallest = min(plans.peak_nbytes for plans in known)
    limit = smallest if budget_nbytes is None else max(budget_nbytes, smallest)
    runs = []
    for plans in known:
        if plans.peak_nbytes <= limit:
            run = context.search(limit, plans.cache, plans.orders)
            run.start([*plans.candidates, *context.earlier_in(plans.orders)])
            run.improve(share=_AT_SMALLEST)
            runs.append(run)
    best = min(runs, key=_cost)
    if limit > smallest:
        return _finish(context, best)
    best.finish(share=_AT_SMALLEST)
    return best


def _reordered(context: SolveContext, run: FixedOrderSearch) -> FixedOrderSearch | None:
    """A search from a cheaper plan than that of ``run`` in orders made for it; None if none was found."""
    problem, best, budget = context.cache.problem, run.best, run.incumbents.budget_nbytes
    if best is None or not _may_reorder(context, run):
        return None
    start = Reordered(run.orders or default_orders(problem), run.incumbents.evaluator, best.sequence, best.found)
    orders = context.effort.orders.resumed() if context.earlier else context.effort.orders
    found = reorder_in_parallel(problem, [start], budget, orders, seed=context.seed, limits=context.limits)
    return None if found.found.recompute_ns >= best.found.recompute_ns else context.followed(found, budget)


def _may_reorder(context: SolveContext, run: FixedOrderSearch) -> bool:
    """Whether orders may be made for the best plan, and a bound leaves room for a cheaper plan in one of them.

    That is the bound of all orders if the plan is optimal in its own.
    """
    incumbents, problem = run.incumbents, context.cache.problem
    if not context.makes_orders or incumbents.best is None or incumbents.out_of_time():
        return False
    cost_ns, room_ns = incumbents.best.found.recompute_ns, _ORDER_WORTH * problem.store_all_ns
    if cost_ns > incumbents.bound_ns + room_ns:
        return True
    if cost_ns <= room_ns or not incumbents.settled():
        return False
    return cost_ns > order_free_bound(problem, incumbents.budget_nbytes, context.limits) + room_ns


def _cost(run: FixedOrderSearch) -> tuple[bool, int, int]:
    best = run.best
    return (True, 0, 0) if best is None else (False, best.found.recompute_ns, best.found.peak_nbytes)


def _answer(run: FixedOrderSearch, smallest_nbytes: int | None) -> Solution:
    incumbents = run.incumbents
    assert incumbents.best is not None
    found, bound_ns = incumbents.best.found, incumbents.bound_ns
    decisions = Decisions(tuple(incumbents.best.sequence.tolist()))
    if run.orders is not None:
        assert incumbents.problem.reorders is not None
        decisions = restored(decisions, run.orders)
        bound_ns = max(bound_ns, order_free_bound(incumbents.problem.reorders, incumbents.budget_nbytes))
    solution = Solution(
        Status.FEASIBLE,
        NAME,
        decisions,
        objective_ns=found.recompute_ns,
        peak_nbytes=found.peak_nbytes,
        smallest_nbytes=smallest_nbytes,
        stopped_early=incumbents.out_of_time(),
    )
    return with_bound(solution, bound_ns, BOUND_CLASS if run.orders is None else CHOSEN_CLASS)
