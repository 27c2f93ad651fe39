"""The certified strategy: a proven bound from the stage LP, a plan from its rounding, repair and annealing.

1. Row generation: solve the stage LP, round E[0,.], replay the roundings, add the stages where they peak.
2. Repair: bisect the LP's own budget until a rounding fits; take the best of it and of every baseline.
3. Annealing with the exact evaluator, with first-level and then second-level (temporary) checkpoints.
4. The bound is solved again with the stages where the plan found is tight.

All work is counted in iterations, never in seconds, so a solve without a time limit is deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..problem import Problem
from ..solution import Decisions, Solution, Status
from .effort import effort_named
from .evaluate import Evaluator
from .improve import improve, lower_peak
from .labels import Label
from .search import Candidate, Progress, Search
from .stage_lp import BOUND_CLASS, StageLP
from .starts import baselines, generate_rows, repair
from .tighten import tighten
from .warm_up import prepare_kernels

NAME = "optimal"


@dataclass
class Prepared:
    """What solves of one problem share, whatever the budget: give it to several and each after the first is faster."""

    problem: Problem
    lowest: dict[tuple[str, int], tuple[Candidate, ...]] = field(default_factory=dict)
    """Plans of the smallest peak found, by effort and seed; only of searches that ran to their end."""

    @cached_property
    def evaluator(self) -> Evaluator:
        """The problem ready for evaluation."""
        return Evaluator(self.problem)

    @cached_property
    def relaxed(self) -> StageLP:
        """The relaxation that bounds the problem."""
        return StageLP(self.problem)


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
    """The cheapest plan found within the budget, with a certified lower bound of BOUND_CLASS.

    Without a budget the peak is minimised first. ``stop`` is asked every fraction of a second and ends the
    search with what it has. INFEASIBLE is answered only below the proven floor; UNKNOWN carries the smallest
    peak found, and every budget from there on has a plan under the same seed and effort.
    """
    prepared = problem if isinstance(problem, Prepared) else Prepared(problem)
    if time_limit_s is not None:
        prepare_kernels()  # compiling them on a fresh machine is not part of the search
    started = time.perf_counter()
    deadline = None if time_limit_s is None else started + time_limit_s
    floor = prepared.problem.floor_nbytes
    if budget_nbytes is not None and budget_nbytes < floor:
        return Solution(Status.INFEASIBLE, NAME, None, bound_class=BOUND_CLASS, wall_s=time.perf_counter() - started)

    def search_for(budget: int) -> Search:
        return Search(prepared.evaluator, budget, deadline, progress, effort_named(effort), seed, stop)

    if budget_nbytes is None:
        lowest, stopped = _lowest(prepared, search_for(max(1, floor)))
        search = search_for(min(plan.found.peak_nbytes for plan in lowest))
        search.stopped_early = stopped
        _plan(search, prepared, lowest)
        return replace(_answer(search, started), smallest_nbytes=search.budget_nbytes)
    search = search_for(budget_nbytes)
    search.offer(search.evaluator.labels(Label.KEEP))
    if not search.settled():
        _plan(search, prepared, ())
    if search.best is None and not search.stopped_early:
        lowest, search.stopped_early = _lowest(prepared, search_for(max(1, floor)))
        search.lowest = None  # only what every budget can reach is promised, not what this one met on its way
        for candidate in lowest:
            search.keep(candidate)
        if search.best is not None:
            improve(search)
    return _answer(search, started)


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
    budget = max(1, prepared.problem.floor_nbytes)
    search = Search(prepared.evaluator, budget, deadline, progress, effort_named(effort), seed, stop)
    return min(plan.found.peak_nbytes for plan in _lowest(prepared, search)[0])


def _lowest(prepared: Prepared, search: Search) -> tuple[tuple[Candidate, ...], bool]:
    """Plans of the smallest peak, the best and the best labelling, and whether the search for them was cut short."""
    key = (search.effort.name, search.seed)
    if key not in prepared.lowest:
        lower_peak(search)
        assert search.lowest is not None
        assert search.lowest_labels is not None
        found = (search.lowest, search.lowest_labels)
        if search.stopped_early:
            return found, True
        prepared.lowest[key] = found
    return prepared.lowest[key], False


def _plan(search: Search, prepared: Prepared, known: tuple[Candidate, ...]) -> None:
    for candidate in known:
        search.keep(candidate)
    search.offer(search.evaluator.labels(Label.DROP))
    if not search.problem.backward_order:
        return
    relaxed = prepared.relaxed
    generate_rows(search, relaxed)
    if not search.settled():
        repair(search, relaxed)
        baselines(search)
        improve(search)
        tighten(search, relaxed)


def _answer(search: Search, started: float) -> Solution:
    smallest = search.lowest.found.peak_nbytes if search.lowest else None
    if search.best is None:
        return Solution(
            Status.UNKNOWN, NAME, None, bound_class=BOUND_CLASS, smallest_nbytes=smallest,
            wall_s=time.perf_counter() - started, stopped_early=search.stopped_early,
        )  # fmt: skip
    found = search.best.found
    bound_ns = min(search.bound_ns, found.recompute_ns)
    return Solution(
        Status.OPTIMAL if bound_ns == found.recompute_ns else Status.FEASIBLE,
        NAME,
        Decisions(tuple(search.best.sequence.tolist())),
        objective_ns=found.recompute_ns,
        bound_ns=bound_ns,
        bound_class=BOUND_CLASS,
        peak_nbytes=found.peak_nbytes,
        smallest_nbytes=smallest,
        wall_s=time.perf_counter() - started,
        stopped_early=search.stopped_early,
    )
