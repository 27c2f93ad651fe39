"""The whole line: model file -> training graph -> problem -> strategy -> schedule -> replay -> plan.

`check` is the gate: verify, the adapters and emit all replay a plan through it, and nothing above the
budget passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from .annotations import Source, fingerprint
from .autodiff.rule_table import RULES_VERSION
from .errors import BudgetSyntaxError, PlanMismatchError, ScheduleMismatchError, UsageError
from .infeasible import Asked, refusal, unfinished
from .limits import NO_LIMITS, Limits
from .model import Model, store_all_timeline
from .plan_file.record import EFFORT_NOTE, STOPPED_NOTE, BudgetRecord, Certificate, ModelRecord, Peaks, Plan, Times
from .problem import Problem, Scope, build_problem
from .schedule import Schedule, lower
from .simulate import Timeline, simulate
from .solution import Solution, Status
from .solver import CERTIFIED, DEFAULT_EFFORT, Solver
from .training_graph import OpCost, TrainingGraph
from .units import BudgetText, parse_budget


def scope_named(scope: Scope | str | None) -> Scope | None:
    """A scope by its name, or itself. Raises UsageError for one that does not exist."""
    names = [known.value for known in Scope]
    if scope is not None and not isinstance(scope, Scope) and scope not in names:
        raise UsageError(f"scope {scope!r} is unknown", remedy=f"choose one of {', '.join(names)}")
    return None if scope is None else Scope(scope)


def resolve_budget(budget: BudgetText, scope: Scope | str | None, store_all: Timeline) -> tuple[int | None, Scope]:
    """Bytes (None for ``min``) and scope: sizes bound the total, percentages and ``min`` the activations.

    A percentage is always of the store-all peak of the scope it bounds. Raises UsageError for an unknown scope.
    """
    scope = scope_named(scope)
    if budget.nbytes is not None:
        return budget.nbytes, scope or Scope.TOTAL
    chosen = scope or Scope.ACTIVATIONS
    return (None if budget.fraction is None else int(peak_of(store_all, chosen) * budget.fraction)), chosen


def peak_of(timeline: Timeline, scope: Scope) -> int:
    """The peak in bytes that a budget of ``scope`` bounds."""
    return timeline.peak_total_nbytes if scope is Scope.TOTAL else timeline.peak_activation_nbytes


def replay(problem: Problem, solution: Solution) -> tuple[Schedule, Timeline]:
    """The schedule of a solution that has decisions, and its replay.

    Raises ScheduleMismatchError where the replay gives other bytes or times than the strategy claims.
    """
    assert solution.decisions is not None
    schedule = lower(problem.graph, solution.decisions)
    timeline = simulate(problem.graph, problem.costs, schedule)
    peak = peak_of(timeline, problem.scope)
    if peak != solution.peak_nbytes or timeline.recompute_ns != solution.objective_ns:
        raise ScheduleMismatchError(
            f"strategy {solution.strategy!r} claims {solution.peak_nbytes} B and {solution.objective_ns} ns, the "
            f"replay gives {peak} B and {timeline.recompute_ns} ns",
            remedy="please report this with the model",
        )
    return schedule, timeline


def plan(
    model: Model,
    budget: str,
    *,
    scope: Scope | str | None = None,
    strategy: str = "optimal",
    headroom: str = "0%",
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    time_limit_s: float | None = None,
    seed: int = 0,
    effort: str = DEFAULT_EFFORT,
    limits: Limits = NO_LIMITS,
) -> Plan:
    """Plan one training step of ``model`` within ``budget`` (``3GB``, ``60%``, ``min``).

    ``effort``, ``time_limit_s`` and ``limits`` as in `Solver`. Raises UsageError, BudgetSyntaxError,
    InfeasibleBudgetError (with the smallest peak found and the proven floor), NoPlanInTimeError or SearchStoppedError.
    The returned plan has been replayed and lies within the budget.
    """
    solver = Solver(strategy, effort, time_limit_s, seed, limits)
    solver.check()
    store_all = model.store_all()
    nbytes, scope = resolve_budget(parse_budget(budget), scope, store_all)
    problem = model.problem(scope, keep, recompute)
    reserve = _headroom(headroom, nbytes)
    asked = Asked(budget, None if nbytes is None else nbytes - reserve, reserve)
    prepared = solver.prepared(problem)
    solution = solver.solve(prepared, asked.limit_nbytes)
    if solution.decisions is None:
        if solution.stopped_early and solution.status is not Status.INFEASIBLE:
            raise unfinished(asked, solver)
        smallest = solution.smallest_nbytes  # `optimal` has looked for it unless the budget lies below the floor
        if strategy != CERTIFIED or smallest is None:
            smallest = solver.smallest_peak(prepared)
        raise refusal(problem, asked, solution, solver, smallest, smaller=smaller_input(model))
    return assembled(model, problem, store_all, asked, solution, solver)


def smaller_input(model: Model) -> str:
    """What a user would make smaller to need less memory, in words."""
    smallest = model.batch == 1
    if model.annotations is not None:
        return "input in the export" if smallest else "batch in the export"
    return "input" if smallest else "--batch"


def assembled(
    model: Model, problem: Problem, store_all: Timeline, asked: Asked, solution: Solution, solver: Solver
) -> Plan:
    """The plan of a solution that has decisions, replayed and checked."""
    schedule, timeline = replay(problem, solution)
    result = Plan(
        ModelRecord(
            Path(model.path).name,
            model.sha256,
            model.training.fingerprint,
            model.producer,
            model.opset,
            model.dims,
            model.batch,
            model.inputs,
            model.training.assumed,
            _rules_version(model.annotations),
            model.annotations,
        ),
        BudgetRecord(
            asked.text,
            solution.peak_nbytes if asked.limit_nbytes is None else asked.limit_nbytes,
            problem.scope.value,
            asked.reserve_nbytes,
            model.optimizer,
            model.grad_accumulation,
            model.frozen,
            model.device,
        ),
        model.training,
        model.costs,
        schedule,
        timeline,
        _peaks(model, timeline, store_all),
        Times(timeline.recompute_ns, timeline.time_ns - timeline.recompute_ns, model.time_source),
        Certificate(
            solution.status.value,
            solution.bound_ns,
            solution.bound_class,
            solution.strategy,
            solver.seed,
            solution.stopped_early,
            f"ortools {version('ortools')}",
            (*solution.notes, *_search_notes(solution, solver)),
        ),
        tuple(
            (model.training.storages[s].name, scope)
            for op, scope in zip(model.training.ops, model.scopes, strict=True)
            for s in op.writes
            if scope
        ),
    )
    check(model.training, model.costs, result)
    return result


def _rules_version(annotations: Source | None) -> int:
    """The edition of the training rules behind a graph; 0 where an adapter's annotations took their place."""
    return RULES_VERSION if annotations is None else 0


def _headroom(text: str, budget_nbytes: int | None) -> int:
    """Bytes to keep free below the budget: a percentage of it or a size."""
    if text.strip() in ("0", "0%", ""):
        return 0
    parsed = parse_budget(text)
    if parsed.minimum or budget_nbytes is None:
        raise BudgetSyntaxError(
            f"headroom {text!r} cannot be set aside from a budget of {budget_nbytes or 'min'}",
            remedy="write --headroom 5% or --headroom 500MB together with a size or percentage budget",
        )
    reserve = parsed.nbytes if parsed.nbytes is not None else int(budget_nbytes * (parsed.fraction or 0))
    if reserve >= budget_nbytes:
        raise BudgetSyntaxError(f"headroom {text!r} leaves nothing of the budget", remedy="write a smaller --headroom")
    return reserve


def _peaks(model: Model, timeline: Timeline, store_all: Timeline) -> Peaks:
    return Peaks(
        timeline.peak_total_nbytes,
        timeline.peak_activation_nbytes,
        store_all.peak_total_nbytes,
        store_all.peak_activation_nbytes,
        build_problem(model.training, model.costs, Scope.TOTAL).floor_nbytes,
        build_problem(model.training, model.costs, Scope.ACTIVATIONS).floor_nbytes,
    )


def _search_notes(solution: Solution, solver: Solver) -> tuple[str, ...]:
    """What the plan file says of the search beyond its fields of their own."""
    effort = (f"{EFFORT_NOTE}{solver.effort}",) if solver.effort != DEFAULT_EFFORT else ()
    return (*effort, STOPPED_NOTE) if solution.stopped_early and solver.stopped() else effort


def check(graph: TrainingGraph, costs: tuple[OpCost, ...], made: Plan) -> Timeline:
    """Replay a plan's schedule on ``graph`` and hold it to everything the plan promises.

    Raises PlanMismatchError when the graph is another one, when a step breaks a rule, when the replay
    gives other bytes or times than the plan states, or when the peak lies above the budget.
    """
    remedy = "make the plan again for this model"
    if graph.fingerprint != made.model.fingerprint:
        raise PlanMismatchError(
            f"the plan was made for graph {made.model.fingerprint[:12]}, this one is {graph.fingerprint[:12]}",
            remedy=remedy,
        )
    if [op.name for op in graph.ops] != [op.name for op in made.graph.ops]:
        raise PlanMismatchError("the plan's ops are not this graph's ops", remedy=remedy)
    if made.model.annotations is not None and fingerprint(made.graph) != made.model.fingerprint:
        raise PlanMismatchError("the graph in the plan is not the one its fingerprint names", remedy=remedy)
    timeline = simulate(graph, costs, made.schedule)
    reference = store_all_timeline(graph, costs)[1]
    for scope, promised in (
        (Scope.TOTAL, made.peak.floor_total_nbytes),
        (Scope.ACTIVATIONS, made.peak.floor_activation_nbytes),
    ):
        problem = build_problem(graph, costs, scope)
        # earlier plans state what the dependences alone force, or the floor of the default backward order
        if promised not in (problem.floor_nbytes, problem.forced_floor.nbytes, problem.floor_of_order.nbytes):
            raise PlanMismatchError(
                f"the plan promises a floor of the {scope.value} of {promised}, its graph gives {problem.floor_nbytes}",
                remedy=remedy,
            )
    for what, promised, replayed in (
        ("store-all total peak", made.peak.store_all_total_nbytes, reference.peak_total_nbytes),
        ("store-all activation peak", made.peak.store_all_activation_nbytes, reference.peak_activation_nbytes),
        ("total peak", made.peak.total_nbytes, timeline.peak_total_nbytes),
        ("activation peak", made.peak.activation_nbytes, timeline.peak_activation_nbytes),
        ("recomputation time", made.time.recompute_ns, timeline.recompute_ns),
        ("step time", made.time.store_all_ns, timeline.time_ns - timeline.recompute_ns),
    ):
        if promised != replayed:
            raise PlanMismatchError(
                f"the plan promises a {what} of {promised}, its replay gives {replayed}", remedy=remedy
            )
    for what, promised_series, series in (
        ("total", made.timeline.total_nbytes, timeline.total_nbytes),
        ("activation", made.timeline.activation_nbytes, timeline.activation_nbytes),
        ("after-step", made.timeline.after_nbytes, timeline.after_nbytes),
    ):
        if promised_series != series:
            step = next(
                (i for i, pair in enumerate(zip(promised_series, series, strict=False)) if pair[0] != pair[1]), -1
            )
            raise PlanMismatchError(f"the plan's {what} timeline differs from its replay at step {step}", remedy=remedy)
    bound = peak_of(timeline, Scope(made.budget.scope))
    if bound > made.budget.nbytes:
        raise PlanMismatchError(
            f"the plan's peak of {bound} B lies above its budget of {made.budget.nbytes} B", remedy=remedy
        )
    return timeline


def verify(made: Plan, model: Model | None = None) -> Timeline:
    """Replay a plan from its own graph and, where the model is given, from a graph derived afresh."""
    timeline = check(made.graph, made.costs, made)
    if model is None:
        return timeline
    if (model.annotations is None) != (made.model.annotations is None):
        which = ("with", "without") if model.annotations is None else ("without", "with")
        raise PlanMismatchError(
            f"the plan was made {which[0]} annotations, the model is read {which[1]} them",
            remedy="verify with the file the plan was made for",
        )
    if made.model.rules_version != _rules_version(model.annotations):
        raise PlanMismatchError(
            f"the plan follows edition {made.model.rules_version} of the training rules, this program {RULES_VERSION}",
            remedy="make the plan again",
        )
    plain = replace(model.training, ops=tuple(replace(op, forward=-1) for op in model.training.ops))
    if model.training.fingerprint == made.model.fingerprint and (plain != made.graph or model.costs != made.costs):
        raise PlanMismatchError(
            "the plan's storages, ops or costs differ from those derived from the model", remedy="make the plan again"
        )
    return check(model.training, model.costs, made)
