"""Plans a step of another size by the decisions of a plan that is there, without a search.

The decisions of a plan are an order of computations. They can be taken over by every step of the same structure, whose
sizes alone differ, and are replayed on its sizes. Whether they are good there is not known: no bound is proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..device_overhead import Overhead
from ..infeasible import Asked
from ..model import Model, store_all_decisions
from ..pipeline import Replays, assembled, headroom_nbytes, peak_of, replays_of, resolve_budget
from ..plan_file.record import TAKEN_OVER_NOTES, Plan
from ..problem import Problem, Scope
from ..schedule import StepKind, lower
from ..simulate import simulate
from ..solution import Decisions, Solution, Status
from ..solver import CERTIFIED, Solver
from ..strategies import FIXED
from ..units import parse_budget

KEPT_NOTE = f"{TAKEN_OVER_NOTES[0]}for graph "
"""Prefix of the note that names the graph whose plan's decisions were taken over."""
STORE_ALL_NOTE = f"{TAKEN_OVER_NOTES[1]}a step that recomputes nothing fits"


def decisions_of(plan: Plan) -> Decisions:
    """The order of computations that a plan's schedule states."""
    return Decisions(
        tuple(
            ~step.index if step.kind is StepKind.BACKWARD else step.index
            for step in plan.schedule
            if step.kind is not StepKind.FREE
        )
    )


def replan(
    model: Model,
    plans: Sequence[Plan],
    budget: str,
    solver: Solver,
    *,
    scope: Scope | str | None = None,
    headroom: str = "0%",
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    overhead: Overhead | None = None,
) -> Plan | None:
    """A plan within ``budget`` that keeps everything or has the decisions of one of ``plans``; None if none fits.

    ``plans`` are of steps of the same structure, made with the same options, and are tried in order. A budget of
    ``min`` is met by a plan whose peak is the proven floor. None for a strategy that takes no budget: it decides by
    sizes, and at once. The other arguments are those of `pipeline.plan`.
    """
    if solver.strategy.partition(":")[0] in FIXED:
        return None
    recompute = tuple(recompute)
    nbytes, scope = resolve_budget(parse_budget(budget), scope, model.store_all())
    reserve = headroom_nbytes(headroom, nbytes)
    problem = model.problem(scope, keep, recompute)
    asked = Asked(budget, None if nbytes is None else nbytes - reserve, reserve)
    limit = problem.floor.nbytes if asked.limit_nbytes is None else asked.limit_nbytes
    device_limit = limit if overhead is not None and nbytes is not None and scope is Scope.TOTAL else None
    known = replays_of(model)
    for decisions, why in _candidates(model, plans, store_all=solver.strategy == CERTIFIED and not recompute):
        if decisions not in known:
            schedule = lower(model.training, decisions)
            known[decisions] = schedule, simulate(model.training, model.costs, schedule)
        timeline = known[decisions][1]
        peak = peak_of(timeline, scope)
        if peak > limit:
            continue
        made = by_decisions(model, problem, asked, decisions, solver, known, (why,))
        if device_limit is None or overhead is None or made.peak.total_nbytes + overhead(made) <= device_limit:
            return made
    return None


def by_decisions(
    model: Model,
    problem: Problem,
    asked: Asked,
    decisions: Decisions,
    solver: Solver,
    known: Replays,
    notes: tuple[str, ...],
) -> Plan:
    """The plan of decisions that were not searched for and fit; ``known`` has their replay. No bound is proven."""
    timeline = known[decisions][1]
    solution = Solution(
        Status.FEASIBLE if timeline.recompute_ns else Status.OPTIMAL,
        solver.strategy,
        decisions,
        objective_ns=timeline.recompute_ns,
        peak_nbytes=peak_of(timeline, problem.scope),
        notes=notes,
    )
    return assembled(model, problem, asked, solution, solver, known)


def _candidates(model: Model, plans: Sequence[Plan], *, store_all: bool) -> Iterator[tuple[Decisions, str]]:
    """Decisions to try, with the note that says where they come from."""
    if store_all:
        yield store_all_decisions(model.training), STORE_ALL_NOTE
    for plan in plans:
        yield decisions_of(plan), f"{KEPT_NOTE}{plan.model.fingerprint[:12]}"
