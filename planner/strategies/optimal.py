"""The certified strategy: a proven bound from the stage LP, a plan from its rounding, repair and annealing.

1. Row generation: solve the stage LP, round E[0,.], replay the roundings, add the stages where they peak.
2. Repair: bisect the LP's own budget until a rounding fits; take the best of it and of every baseline.
3. Annealing with the exact evaluator, with first-level and then second-level (temporary) checkpoints.
4. The bound is solved again with the stages where the plan found is tight.

All work is counted in iterations, never in seconds, so a solve without a time limit is deterministic.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ..problem import Problem
from ..solution import Solution, Status
from .evaluate import Evaluator
from .labels import Label
from .search import Progress, Search, baselines, generate_rows, improve, lower_peak, prepare_kernels, repair, tighten
from .stage_lp import BOUND_CLASS, StageLP

NAME = "optimal"


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    time_limit_s: float | None = None,
    seed: int = 0,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Solution:
    """The cheapest plan found within the budget, with a certified lower bound of BOUND_CLASS.

    Without a budget the peak is minimised first. ``effort`` scales the annealing. INFEASIBLE is
    answered only below the proven floor; UNKNOWN carries the smallest peak found, and every budget from
    there on has a plan under the same seed and effort.
    """
    if time_limit_s is not None:
        prepare_kernels()  # compiling them on a fresh machine is not part of the search
    started = time.perf_counter()
    deadline = None if time_limit_s is None else started + time_limit_s
    evaluator = Evaluator(problem)
    if budget_nbytes is None:
        lowest = Search(evaluator, max(1, problem.floor_nbytes), deadline, progress, effort, seed)
        lower_peak(lowest)
        assert lowest.lowest is not None
        assert lowest.lowest_found is not None
        reached = lowest.lowest_found.peak_nbytes
        search = Search(evaluator, reached, deadline, progress, effort, seed, stopped_early=lowest.stopped_early)
        search.offer(lowest.lowest)
        _plan(search)
        return replace(_answer(search, started), smallest_nbytes=reached)
    if budget_nbytes < problem.floor_nbytes:
        return Solution(Status.INFEASIBLE, NAME, None, bound_class=BOUND_CLASS, wall_s=time.perf_counter() - started)
    search = Search(evaluator, budget_nbytes, deadline, progress, effort, seed)
    search.offer(evaluator.labels(Label.KEEP))
    if not search.settled():
        _plan(search)
    if search.best is None and not search.stopped_early:
        lowest = Search(evaluator, max(1, problem.floor_nbytes), deadline, progress, effort, seed)
        lower_peak(lowest)
        assert lowest.lowest is not None
        search.offer(lowest.lowest)
        search.stopped_early |= lowest.stopped_early
        improve(search)
        if search.best is None:  # only what every budget can reach is promised, not what this one met on its way
            search.lowest_found = lowest.lowest_found
    return _answer(search, started)


def smallest_peak(
    problem: Problem, *, time_limit_s: float | None = None, seed: int = 0, progress: Progress | None = None
) -> int:
    """The smallest peak in bytes that the search reaches, without planning for it."""
    deadline = None if time_limit_s is None else time.perf_counter() + time_limit_s
    search = Search(Evaluator(problem), max(1, problem.floor_nbytes), deadline, progress, seed=seed)
    lower_peak(search)
    assert search.lowest_found is not None
    return search.lowest_found.peak_nbytes


def _plan(search: Search) -> None:
    search.offer(search.evaluator.labels(Label.DROP))
    if not search.problem.backward_order:
        return
    relaxed = StageLP(search.problem)
    generate_rows(search, relaxed)
    if not search.settled():
        repair(search, relaxed)
        baselines(search)
        improve(search)
        tighten(search, relaxed)


def _answer(search: Search, started: float) -> Solution:
    smallest = search.lowest_found.peak_nbytes if search.lowest_found else None
    if search.best is None:
        return Solution(
            Status.UNKNOWN, NAME, None, bound_class=BOUND_CLASS, smallest_nbytes=smallest,
            wall_s=time.perf_counter() - started, stopped_early=search.stopped_early,
        )  # fmt: skip
    solution = search.evaluator.solution(search.best, search.budget_nbytes, NAME, started=started)
    bound_ns = min(search.bound_ns, solution.objective_ns)
    return replace(
        solution,
        status=Status.OPTIMAL if bound_ns == solution.objective_ns else Status.FEASIBLE,
        bound_ns=bound_ns,
        bound_class=BOUND_CLASS,
        smallest_nbytes=smallest,
        stopped_early=search.stopped_early,
    )
