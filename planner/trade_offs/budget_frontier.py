"""Plans for several budgets of one step: more memory never costs more recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..errors import OgcPlanError, UsageError
from ..infeasible import Asked, refusal, unfinished
from ..limits import NO_LIMITS, Limits
from ..model import Model
from ..pipeline import assembled, replays_of, resolve_budget, scope_named, smaller_input
from ..plan_file.record import Plan
from ..problem import Scope
from ..solution import Solution, Status, with_bound
from ..solver import CERTIFIED, DEFAULT_EFFORT, Solver
from ..units import parse_budget

Point = tuple["int | None", Solution]
"""A budget in bytes, None for the smallest peak, and the solution for it."""


def frontier(
    model: Model,
    budgets: Sequence[str],
    *,
    scope: Scope | str | None = None,
    strategy: str = CERTIFIED,
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    time_limit_s: float | None = None,
    seed: int = 0,
    effort: str = DEFAULT_EFFORT,
    limits: Limits = NO_LIMITS,
) -> tuple[Plan | OgcPlanError, ...]:
    """The plan for each of ``budgets``, or the error that `pipeline.plan` would raise, in the same order.

    A plan for a smaller budget is also one for every larger budget, so a larger budget never costs more. A bound for a
    larger budget is also one for every smaller budget. ``time_limit_s`` limits the search for each budget. All budgets
    bound one scope: raises UsageError for sizes together with percentages if no ``scope`` is given.
    """
    solver = Solver(strategy, effort, time_limit_s, seed, limits)
    solver.check()
    scope = _scope(budgets, scope)
    allowed = [resolve_budget(parse_budget(text), scope, model.store_all())[0] for text in budgets]
    problem = model.problem(scope, keep, recompute, limits.with_deadline(time_limit_s))
    prepared = solver.prepared(problem)
    order = sorted(set(allowed), key=lambda limit: (limit is None, -(limit or 0)))  # loosest first, `min` last
    names = dict(zip(allowed, budgets, strict=True))
    found = [(limit, replace(solver, limits=limits.named(names[limit])).solve(prepared, limit)) for limit in order]
    answers = dict(monotone(found, lambda limit: solver.bound_in_any_order(problem, limit)))
    smallest = _smallest(answers, solver)
    made: list[Plan | OgcPlanError] = []
    replays = replays_of(model)
    for text, limit in zip(budgets, allowed, strict=True):
        asked, solution = Asked(text, limit), answers[limit]
        if solution.decisions is not None:
            made.append(assembled(model, problem, asked, solution, solver, replays))
        elif solution.stopped_early and solution.status is not Status.INFEASIBLE:
            made.append(unfinished(asked, solver))
        else:
            if smallest is None:
                smallest = solver.smallest_peak(prepared)
            made.append(refusal(problem, asked, solution, solver, smallest, smaller=smaller_input(model)))
    return tuple(made)


def monotone(points: Sequence[Point], any_order: Callable[[int], tuple[int, str]]) -> list[Point]:
    """Give every budget the best plan found whose peak fits, and the best bound that is valid for it.

    The plan of the smallest peak is the one with the lowest of all peaks found. A bound is valid for one backward
    order. A plan that was found for another budget and has another backward order gets the bound that ``any_order``
    returns for its budget: a bound in ns that is valid for every order, and the name of its class.
    """
    found = [solution for _, solution in points if solution.decisions is not None]
    lowest = min((solution.peak_nbytes for solution in found), default=None)
    shared: list[Point] = []
    for limit, own in points:
        reach = lowest if limit is None else limit
        fitting = [solution for solution in found if reach is not None and solution.peak_nbytes <= reach]
        if not fitting:
            shared.append((limit, own))
            continue
        best = own if own in fitting else fitting[0]
        for other in fitting:
            if (other.objective_ns, other.peak_nbytes) < (best.objective_ns, best.peak_nbytes):
                best = other
        answer = replace(own, decisions=best.decisions, objective_ns=best.objective_ns, peak_nbytes=best.peak_nbytes)
        if own.bound_class and own.decisions is not None and _backward(own) != _backward(best):
            bound_ns, bound_class = any_order(reach if reach is not None else best.peak_nbytes)
        else:
            bound_class = own.bound_class
            bound_ns = max([own.bound_ns] + [
                other.bound_ns
                for other_limit, other in points
                if other_limit is not None and reach is not None and other_limit >= reach and _same_class(own, other)
            ])  # fmt: skip
        shared.append((limit, with_bound(answer, bound_ns, bound_class)))
    return shared


def _same_class(one: Solution, other: Solution) -> bool:
    """Whether the bounds of two solutions are valid for the same plans."""
    if not one.bound_class or one.bound_class != other.bound_class:
        return False
    return one is other or _backward(one) == _backward(other) is not None


def _backward(solution: Solution) -> tuple[int, ...] | None:
    """The order in which a solution runs its backward ops."""
    decisions = solution.decisions
    return None if decisions is None else tuple(entry for entry in decisions.sequence if entry < 0)


def _scope(budgets: Sequence[str], scope: Scope | str | None) -> Scope:
    parsed = [parse_budget(text) for text in budgets]
    if not parsed:
        raise UsageError("no budget is given", remedy="write for example 80%,60%,40%,min")
    known = scope_named(scope)
    if known is not None:
        return known
    sizes, shares = (any(getattr(budget, kind) is not None for budget in parsed) for kind in ("nbytes", "fraction"))
    if sizes and shares:
        raise UsageError(
            "sizes bound the total peak, percentages the activation peak: they do not belong to one frontier",
            remedy="pass --scope total or --scope activations, or budgets of one kind",
        )
    return Scope.TOTAL if sizes else Scope.ACTIVATIONS


def _smallest(answers: dict[int | None, Solution], solver: Solver) -> int | None:
    """The smallest peak in bytes that `optimal` is known to reach, None if it has not searched for it."""
    if solver.strategy != CERTIFIED:
        return None
    reached = [solution.peak_nbytes for solution in answers.values() if solution.decisions is not None]
    looked = [
        solution.smallest_nbytes
        for limit, solution in answers.items()
        if solution.smallest_nbytes is not None and (limit is None or solution.decisions is None)
    ]
    return min(looked + reached) if looked else None
