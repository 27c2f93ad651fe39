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
from dataclasses import replace

from ..problem import Problem
from ..solution import Decisions, Solution, Status
from .anneal import Annealer
from .anneal_holds import HoldAnnealer
from .certify import certifying
from .effort import effort_named
from .improve import HOLD_OPS, improve_holds, improve_labels, reach
from .labels import Label
from .lower_peak import lower_peak
from .prepared import Prepared
from .search import Candidate, Progress, Search
from .stage_lp import BOUND_CLASS, Relaxation
from .starts import baselines, chains, cut, generate_rows, repair
from .warm_up import prepare_kernels

NAME = "optimal"
_LP_OPS = 2000
"""On larger graphs the minimum cut alone gives the bound: a linear program of two stages takes too long."""
_LAST_SHARE = 0.5


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
            _plan(search, prepared, lowest)
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
        relaxed = prepared.relaxed if search.problem.op_count <= _LP_OPS else None
        lower_peak(search, relaxed, prepared.chain, prepared.rotor)
        assert search.lowest is not None
        assert search.lowest_labels is not None
        found = (search.lowest, search.lowest_labels)
        if search.stopped_early:
            return found, True
        prepared.lowest[key] = found
    return prepared.lowest[key], False


def _plan(search: Search, prepared: Prepared, known: tuple[Candidate, ...]) -> None:
    """Find and improve a plan, and bound it; ``known`` plans are candidates from the start."""
    for candidate in known:
        search.keep(candidate)
    search.offer(search.evaluator.labels(Label.DROP))
    if not search.problem.backward_order:
        return
    relaxed = prepared.relaxed if search.problem.op_count <= _LP_OPS else None
    cut(search, prepared.cut)
    if relaxed is not None:
        generate_rows(search, relaxed)
    if search.settled():
        return
    if relaxed is not None:
        repair(search, relaxed)
    baselines(search)
    for _ in range(search.effort.refinements):
        if not search.out_of_time():
            prepared.chain.refine(search.budget_nbytes)
    chains(search, prepared.chain, prepared.rotor)
    labels = Annealer(search.evaluator, search.seed)
    holds = HoldAnnealer(search.evaluator, search.seed) if search.problem.op_count <= HOLD_OPS else None
    if search.best is None:
        reach(search, labels, holds)
    points: tuple[Relaxation, ...] = ()
    for _ in range(search.effort.rounds):
        if search.best is None or search.settled() or search.out_of_time():
            return
        if relaxed is None:
            _improve(search, labels, holds, points)
            continue
        with certifying(search, relaxed) as certified:
            _improve(search, labels, holds, points)
            found = certified()
        search.bound_ns = max(search.bound_ns, found.bound_ns)
        points = found.points
    if holds is not None and points and not search.settled():
        improve_holds(search, holds, points, share=_LAST_SHARE)


def _improve(search: Search, labels: Annealer, holds: HoldAnnealer | None, points: tuple[Relaxation, ...]) -> None:
    improve_labels(search, labels)
    if holds is not None:
        improve_holds(search, holds, points)


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
