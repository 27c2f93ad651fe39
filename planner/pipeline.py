"""From a model and a budget to a plan: problem -> solution -> schedule -> timeline -> plan, and the check of plans."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from .annotations import Source, fingerprint
from .autodiff.rule_table import RULES_VERSION
from .device_overhead import Overhead, with_overhead
from .errors import BudgetSyntaxError, PlanMismatchError, ScheduleMismatchError, UsageError, needed
from .infeasible import Asked, refusal, unfinished
from .limits import NO_LIMITS, Limits
from .model import Model, store_all_decisions, store_all_timeline
from .peak_bounds.step_floor import Floor
from .plan_file.record import EFFORT_NOTE, STOPPED_NOTE, BudgetRecord, Certificate, ModelRecord, Peaks, Plan, Times
from .problem import Problem, Scope, build_problem
from .schedule import Schedule, lower
from .simulate import Timeline, simulate
from .solution import Decisions, Solution, Status
from .solver import CERTIFIED, DEFAULT_EFFORT, Solver
from .training_graph import OpCost, TrainingGraph
from .units import BudgetText, format_both, parse_budget, parse_headroom

_REDO = "make the plan again for this model"


def scope_named(scope: Scope | str | None) -> Scope | None:
    """The scope of that name. Raises UsageError for a name that no scope has."""
    names = [known.value for known in Scope]
    if scope is not None and not isinstance(scope, Scope) and scope not in names:
        raise UsageError(f"scope {scope!r} is unknown", remedy=f"choose one of {', '.join(names)}")
    return None if scope is None else Scope(scope)


def resolve_budget(budget: BudgetText, scope: Scope | str | None, store_all: Timeline) -> tuple[int | None, Scope]:
    """Bytes (None for ``min``) and scope: sizes bound the total peak, percentages and ``min`` the activation peak.

    A percentage is a share of the store-all peak of the scope that it bounds. Raises UsageError for an unknown scope.
    """
    scope = scope_named(scope)
    if budget.nbytes is not None:
        return budget.nbytes, scope or Scope.TOTAL
    chosen = scope or Scope.ACTIVATIONS
    return (None if budget.fraction is None else int(peak_of(store_all, chosen) * budget.fraction)), chosen


def peak_of(timeline: Timeline, scope: Scope) -> int:
    """The peak in bytes that a budget of ``scope`` bounds."""
    return timeline.peak_total_nbytes if scope is Scope.TOTAL else timeline.peak_activation_nbytes


Replays = dict[Decisions, tuple[Schedule, Timeline]]
"""The schedules of one step that have been replayed, by the decisions that they state."""


def replays_of(model: Model) -> Replays:
    """The replay that is known before anything is planned: that of the step that recomputes nothing."""
    return {store_all_decisions(model.training): model.store_all_replay}


def replay(problem: Problem, solution: Solution, known: Replays | None = None) -> tuple[Schedule, Timeline]:
    """The schedule of a solution that has decisions, and its replay; what is ``known`` is not replayed again.

    Raises ScheduleMismatchError where the replay gives other bytes or times than the strategy claims.
    """
    assert solution.decisions is not None
    known = {} if known is None else known
    if solution.decisions not in known:
        schedule = lower(problem.graph, solution.decisions)
        known[solution.decisions] = schedule, simulate(problem.graph, problem.costs, schedule)
    schedule, timeline = known[solution.decisions]
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
    overhead: Overhead | None = None,
) -> Plan:
    """Plan one training step of ``model`` within a budget. The plan has been replayed and fits the budget.

    Args:
        model: What to plan.
        budget: ``3GB``, ``60%`` or ``min``.
        scope: Which bytes the budget bounds; by default the total for a size, the activations otherwise.
        strategy: The name of a strategy.
        headroom: How much of the budget to leave free, a size or a percentage of it.
        keep, recompute: Globs on the names of tensors to keep or to recompute.
        time_limit_s, seed, effort, limits: As in `Solver`.
        overhead: What a plan's step takes of the device beyond its peak. A budget on the total in bytes holds both.

    Raises:
        UsageError, BudgetSyntaxError: An argument cannot be used.
        InfeasibleBudgetError: No plan was found; the error has the smallest peak found and the proven floor.
        NoPlanInTimeError, SearchStoppedError: The search ended before it found one.
    """
    solver = Solver(strategy, effort, time_limit_s, seed, limits)
    solver.check()
    nbytes, scope = resolve_budget(parse_budget(budget), scope, model.store_all())
    reserve = headroom_nbytes(headroom, nbytes)
    all_solves = limits.with_deadline(time_limit_s)
    problem = model.problem(scope, keep, recompute, all_solves)
    prepared = solver.prepared(problem)

    def within(asked: Asked) -> Plan:
        timed = replace(solver, time_limit_s=all_solves.remaining_s())  # several solves share the time of one
        solution = timed.solve(prepared, asked.limit_nbytes)
        if solution.decisions is None:
            if solution.stopped_early and solution.status is not Status.INFEASIBLE:
                raise unfinished(asked, solver)
            smallest = solution.smallest_nbytes  # `optimal` has looked for it unless the budget lies below the floor
            if strategy != CERTIFIED or smallest is None:
                smallest = solver.smallest_peak(prepared)
            raise refusal(problem, asked, solution, solver, smallest, smaller=smaller_input(model))
        return assembled(model, problem, asked, solution, solver)

    asked = Asked(budget, None if nbytes is None else nbytes - reserve, reserve)
    if overhead is None or nbytes is None or scope is not Scope.TOTAL:
        return within(asked)
    return with_overhead(within, asked, overhead)


def smaller_input(model: Model) -> str:
    """What a user would make smaller to need less memory."""
    if model.annotations is None:
        return "input" if model.batch == 1 else "--batch"
    return "batch in the export" if model.sha256 else "batch"


def assembled(
    model: Model, problem: Problem, asked: Asked, solution: Solution, solver: Solver, known: Replays | None = None
) -> Plan:
    """The plan of a solution that has decisions, replayed, and within what was asked for."""
    schedule, timeline = replay(problem, solution, replays_of(model) if known is None else known)
    with needed("ortools"):
        solvers = f"ortools {version('ortools')}"
    limit_nbytes = solution.peak_nbytes if asked.limit_nbytes is None else asked.limit_nbytes
    if solution.peak_nbytes > limit_nbytes:
        raise ScheduleMismatchError(
            f"strategy {solution.strategy!r} gives a peak of {solution.peak_nbytes} B for a budget of {limit_nbytes} B",
            remedy="please report this with the model",
        )
    return Plan(
        _model_record(model),
        BudgetRecord(
            asked.text,
            limit_nbytes,
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
        _peaks(model, timeline),
        Times(timeline.recompute_ns, timeline.time_ns - timeline.recompute_ns, model.time_source),
        Certificate(
            solution.status.value,
            solution.bound_ns,
            solution.bound_class,
            solution.strategy,
            solver.seed,
            solution.stopped_early,
            solvers,
            (*solution.notes, *_search_notes(solution, solver)),
        ),
        tuple(
            (model.training.storages[s].name, scope)
            for op, scope in zip(model.training.ops, model.scopes, strict=True)
            for s in op.writes
            if scope
        ),
    )


def _model_record(model: Model) -> ModelRecord:
    name = Path(model.path).name
    if model.sha256:  # a file: the same name in every locale
        name = os.fsencode(name).decode("utf-8", "surrogateescape")
    return ModelRecord(
        name,
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
    )


def _rules_version(annotations: Source | None) -> int:
    """The edition of the training rules that a graph follows; 0 for the annotations of an adapter."""
    return RULES_VERSION if annotations is None else 0


def headroom_nbytes(text: str, budget_nbytes: int | None) -> int:
    """The bytes of a headroom: a size, or a percentage of the budget."""
    nbytes, fraction = parse_headroom(text)
    if not nbytes and not fraction:
        return 0
    if budget_nbytes is None:
        raise BudgetSyntaxError(
            f"--headroom {text!r} cannot be kept free of a budget of min, which has no size",
            remedy="write a size or a percentage as the budget, or leave --headroom out",
        )
    reserve = nbytes or int(budget_nbytes * fraction)
    if reserve >= budget_nbytes:
        raise BudgetSyntaxError(
            f"--headroom {text!r} leaves nothing of the budget of {format_both(budget_nbytes)}",
            remedy="write a smaller --headroom",
        )
    return reserve


def _peaks(model: Model, timeline: Timeline) -> Peaks:
    store_all, floors = model.store_all(), model.floors
    return Peaks(
        timeline.peak_total_nbytes,
        timeline.peak_activation_nbytes,
        store_all.peak_total_nbytes,
        store_all.peak_activation_nbytes,
        floors[Scope.TOTAL].nbytes,
        floors[Scope.ACTIVATIONS].nbytes,
    )


def _search_notes(solution: Solution, solver: Solver) -> tuple[str, ...]:
    """What the plan file says of the search in its notes."""
    effort = (f"{EFFORT_NOTE}{solver.effort}",) if solver.effort != DEFAULT_EFFORT else ()
    return (*effort, STOPPED_NOTE) if solution.stopped_early and solver.stopped() else effort


@dataclass(frozen=True, slots=True)
class Checked:
    """What the check of a plan gave: its replay, that of the step that recomputes nothing, and the floors."""

    timeline: Timeline
    store_all: tuple[Schedule, Timeline]
    floors: dict[Scope, Floor]


def check(graph: TrainingGraph, costs: tuple[OpCost, ...], made: Plan) -> Timeline:
    """Replay a plan's schedule on ``graph`` and compare it with everything that the plan promises.

    Raises PlanMismatchError when the graph is another one, when a step breaks a rule, when the replay
    gives other bytes or times than the plan states, or when the peak lies above the budget.
    """
    return checked(graph, costs, made).timeline


def checked(graph: TrainingGraph, costs: tuple[OpCost, ...], made: Plan) -> Checked:
    """`check`, with all that was found on the way."""
    _check_graph(graph, made)
    timeline = simulate(graph, costs, made.schedule)
    store_all = store_all_timeline(graph, costs)
    floors = {}
    for scope, promised in (
        (Scope.TOTAL, made.peak.floor_total_nbytes),
        (Scope.ACTIVATIONS, made.peak.floor_activation_nbytes),
    ):
        problem = build_problem(graph, costs, scope)
        floors[scope] = problem.floor
        # earlier plans, and hurried ones, state what the dependences force, or the floor of the default backward order
        if promised != problem.floor_nbytes and promised not in (
            problem.forced_floor.nbytes,
            problem.floor_of_order.nbytes,
        ):
            raise PlanMismatchError(
                f"the plan promises a floor of the {scope.value} of {promised}, its graph gives {problem.floor_nbytes}",
                remedy=_REDO,
            )
    for what, promised, replayed in (
        ("store-all total peak", made.peak.store_all_total_nbytes, store_all[1].peak_total_nbytes),
        ("store-all activation peak", made.peak.store_all_activation_nbytes, store_all[1].peak_activation_nbytes),
        ("total peak", made.peak.total_nbytes, timeline.peak_total_nbytes),
        ("activation peak", made.peak.activation_nbytes, timeline.peak_activation_nbytes),
        ("recomputation time", made.time.recompute_ns, timeline.recompute_ns),
        ("step time", made.time.store_all_ns, timeline.time_ns - timeline.recompute_ns),
    ):
        if promised != replayed:
            raise PlanMismatchError(
                f"the plan promises a {what} of {promised}, its replay gives {replayed}", remedy=_REDO
            )
    for what, promised_series, series in (
        ("total", made.timeline.total_nbytes, timeline.total_nbytes),
        ("activation", made.timeline.activation_nbytes, timeline.activation_nbytes),
        ("after-step", made.timeline.after_nbytes, timeline.after_nbytes),
    ):
        if promised_series != series:
            differing = (i for i, (a, b) in enumerate(zip(promised_series, series, strict=False)) if a != b)
            raise PlanMismatchError(
                f"the plan's {what} timeline differs from its replay at step {next(differing, -1)}", remedy=_REDO
            )
    peak = peak_of(timeline, Scope(made.budget.scope))
    if peak > made.budget.nbytes:
        raise PlanMismatchError(
            f"the plan's peak of {peak} B lies above its budget of {made.budget.nbytes} B", remedy=_REDO
        )
    _check_budget(made, peak, peak_of(store_all[1], Scope(made.budget.scope)))
    return Checked(timeline, store_all, floors)


def _check_budget(made: Plan, peak_nbytes: int, store_all_nbytes: int) -> None:
    """Raise PlanMismatchError where the bytes of a plan's budget do not follow from its text.

    An adapter's budget may hold what the device takes, too, and be met by the smallest peak alone: it is then smaller.
    """
    budget = made.budget
    try:
        text = parse_budget(budget.text)
    except BudgetSyntaxError as error:
        raise PlanMismatchError(f"the plan's {error.message}", remedy=_REDO) from error
    stated, asked = budget.nbytes + budget.headroom_nbytes, text.nbytes
    if asked is None:
        asked = peak_nbytes if text.fraction is None else int(store_all_nbytes * text.fraction)
    with_device = budget.scope == Scope.TOTAL.value and made.model.annotations is not None
    if stated != asked and not (with_device and stated < asked and budget.nbytes == peak_nbytes):
        raise PlanMismatchError(
            f"the plan's budget of {budget.text!r} is {asked} B, it states {budget.nbytes} B and a headroom of "
            f"{budget.headroom_nbytes} B",
            remedy=_REDO,
        )


def _check_graph(graph: TrainingGraph, made: Plan) -> None:
    """Raise PlanMismatchError where the plan was made for another graph."""
    if graph.fingerprint != made.model.fingerprint:
        raise PlanMismatchError(
            f"the plan was made for graph {made.model.fingerprint[:12]}, this one is {graph.fingerprint[:12]}",
            remedy=_REDO,
        )
    if [op.name for op in graph.ops] != [op.name for op in made.graph.ops]:
        raise PlanMismatchError("the plan's ops are not this graph's ops", remedy=_REDO)
    if made.model.annotations is not None and fingerprint(made.graph) != made.model.fingerprint:
        raise PlanMismatchError("the graph in the plan is not the one its fingerprint names", remedy=_REDO)


def verify(made: Plan, model: Model | None = None) -> Timeline:
    """Replay a plan on its own graph and, where the model is given, compare that graph with one derived afresh."""
    timeline = check(made.graph, made.costs, made)
    if model is not None:
        check_model(made, model)
    return timeline


def check_model(made: Plan, model: Model) -> None:
    """Raise PlanMismatchError where a plan's graph and costs are not exactly those of ``model``.

    The replay on the plan's own graph is then that on the model's, too.
    """
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
    _check_graph(model.training, made)
    plain = replace(model.training, ops=tuple(replace(op, forward=-1) for op in model.training.ops))
    if made.graph.execution is not None and made.graph.execution != model.training.execution:
        raise PlanMismatchError(
            "the plan ties its ops to other nodes than the model has: key 'execution'", remedy="make the plan again"
        )
    if plain != made.graph or model.costs != made.costs:
        raise PlanMismatchError(
            "the plan's storages, ops or costs differ from those derived from the model", remedy="make the plan again"
        )
