"""From a module to a plan and back: export, bind, within_budget."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ogc_plan.planner import pipeline
from ogc_plan.planner.annotations import Annotation, Source, dumps
from ogc_plan.planner.errors import AdapterError, BudgetSyntaxError, OgcPlanError, PlanMismatchError, UsageError
from ogc_plan.planner.model import from_annotation, store_all_timeline
from ogc_plan.planner.plan_reader import read_plan
from ogc_plan.planner.plan_record import Plan
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solving import Solver
from ogc_plan.planner.step_profile import OpTimes, StepProfile, applied, read_profile
from torch import nn

from .annotate import Annotated, annotate, device_of
from .autocast_state import AutocastState
from .bound_module import Executor, bound, executor_of, original
from .capture import UnsupportedModuleError, capture, first_line
from .exported_nodes import exported, ops_of_nodes
from .gradient_parts import accumulating_nbytes
from .onnx_file import write_onnx
from .profiling import op_times
from .signatures import Signature, Signatures
from .traced_step import TracedStep


@dataclass(frozen=True, slots=True)
class Prediction:
    """Peaks of one training step in bytes: everything, and without stationary memory and parameter gradients."""

    total_nbytes: int
    activation_nbytes: int


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    profile: StepProfile | str | os.PathLike[str] | None = None,
) -> None:
    """Write ``model`` as a standard ONNX file that also carries its real training graph.

    ``ogc-plan FILE --budget ...`` plans from it; `bind` runs the plan. Each distinct aten call of the step
    is run once, alone, to measure its workspace and time, unless a ``profile`` (see `profile`) has them.
    """
    model = original(model)
    _refuse_autocast(model)
    timed = _profile_of(profile)
    step, annotated = _annotated(model, args, kwargs, timed)
    annotation = annotated.annotation if timed is None else applied(annotated.annotation, timed)
    program = exported(model, args, dict(kwargs or {}))
    write_onnx(program, path, training_graph=dumps(annotation), op_of_node=ops_of_nodes(program, step, args, kwargs))


def bind(
    model: nn.Module,
    plan: Plan | str | os.PathLike[str],
    args: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The module training by ``plan``, on arguments like ``args``: same class, parameters and state_dict.

    Raises PlanMismatchError when the plan was made for another module, shape, device or torch version, or
    for a bare ONNX file; and whatever `pipeline.check` finds.
    """
    made = plan if isinstance(plan, Plan) else read_plan(plan)
    model = original(model)
    step, annotated = _with_graph(model, args, kwargs, made.model.fingerprint if made.model.annotations else "")
    _refuse_other_graphs(made, annotated, model)
    pipeline.check(made.graph, made.costs, made)
    return bound(model, Executor(model, step, made, annotated.visible))


def within_budget(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    budget: str | int,
    kwargs: Mapping[str, Any] | None = None,
    scope: Scope | Literal["total", "activations"] | None = None,
    strategy: str = "optimal",
    headroom: str | int = "0%",
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    optimizer: str | None = None,
    grad_accumulation: bool = False,
    device: str | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    effort: str = "default",
    signatures: Literal["raise", "plan"] = "raise",
    profile: StepProfile | str | os.PathLike[str] | None = None,
) -> nn.Module:
    """Plan ``model`` within ``budget`` straight from its graph, and bind it.

    ``budget`` is ``3GB``, ``60%``, ``min`` or a number of bytes, ``headroom`` a size like it. Under autocast, call
    it inside the context that the forward will run in.
    Times are measured, each distinct call alone, unless ``device`` names a roofline to take them from or
    ``profile`` (what `profile` returned, or its file) has them, measured in a step with these arguments.
    Arguments unlike ``args`` in shape, type, strides or gradient, and another autocast state, raise
    InputMismatchError when training; with ``signatures="plan"`` each new kind is planned when it first
    comes, told in a warning, and kept (the 8 used last are). ``grad_accumulation`` plans a step that finds
    gradients there: a full set all step, and beside it new ones until their part of the backward ends
    (gradient_parts.py); its peak is what ``predict(..., gradients_present=True)`` tells. The other options are
    those of the command line.
    Raises InfeasibleBudgetError and what `capture` raises.
    """
    if signatures not in ("raise", "plan"):
        raise AdapterError(f"signatures is {signatures!r}", remedy='write "raise" or "plan"')
    held, rerun = _names("keep", keep), _names("recompute", recompute)
    asked, reserve = _size_text("budget", budget), _size_text("headroom", "0%" if headroom == 0 else headroom)
    Solver(strategy, effort, time_limit_s, seed).check()

    def executor_for(
        module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, timed: StepProfile | None = None
    ) -> Executor:
        module = original(module)
        if timed is not None and device is not None:
            raise AdapterError("device and profile both give times", remedy="pass one of them")
        step, annotated = _annotated(module, args, kwargs, timed)
        prepared = from_annotation(
            annotated.annotation,
            name=type(module).__name__,
            device=device,
            optimizer=optimizer,
            grad_accumulation=grad_accumulation,
            profile=timed,
        )
        made = pipeline.plan(
            prepared,
            asked,
            scope=scope,
            strategy=strategy,
            headroom=reserve,
            keep=held,
            recompute=rerun,
            time_limit_s=time_limit_s,
            seed=seed,
            effort=effort,
        )
        return Executor(module, step, made, annotated.visible)

    model = original(model)
    executor = executor_for(model, args, kwargs, _profile_of(profile))
    if signatures == "raise":
        return bound(model, executor)
    known = Signatures(executor_for)
    trained = bound(model, executor, known)
    known.add(Signature.of(args, kwargs or {}, executor.autocast), executor, trained)
    return trained


def profile(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    budget: str | int | None = None,
    rounds: int = 9,
) -> StepProfile:
    """Measure the training step of ``model`` on ``args`` op by op: times in real steps, and workspace.

    Times are medians of ``rounds`` steps that store everything, or with a ``budget`` of steps by a plan within
    it, where storing everything does not fit: CUDA events, on the CPU wall-clock time, with one thread its
    processor time. Workspace is that of each distinct call alone. `within_budget`, `export` and the command line
    take the result. The module, its buffers and gradients, and random generators stay as they are. Raises
    AdapterError where a step fails, and what `capture` raises.
    """
    if type(rounds) is not int or rounds < 1:
        raise AdapterError(f"rounds is {rounds!r}", remedy="pass a whole number from 1")
    model = original(model)
    step = _traced(model, args, kwargs)
    annotation = annotate(step).annotation
    prepared = from_annotation(annotation, name=type(model).__name__)
    if budget is None:
        schedule, _ = store_all_timeline(prepared.training, prepared.costs)
    else:
        schedule = pipeline.plan(prepared, _size_text("budget", budget)).schedule
    times = op_times(step, model, args, kwargs, schedule, device_of(step), rounds)
    ops = [
        OpTimes(
            op.name,
            *took,
            work.forward_workspace_nbytes,
            work.backward_workspace_nbytes,
            work.backward_activation_workspace_nbytes,
        )
        for op, took, work in zip(annotation.graph.ops, times, annotation.works, strict=True)
    ]
    return StepProfile(prepared.training.fingerprint, annotation.framework, annotation.device, rounds, tuple(ops))


def plan_of(module: nn.Module) -> Plan:
    """The plan a bound module trains by."""
    return executor_of(module).plan


def plans_of(module: nn.Module) -> tuple[Plan, ...]:
    """The plans that a bound module keeps, one per signature of its arguments; the one used last at the end."""
    executor, signatures = executor_of(module), module.__dict__["_ogc_plan_signatures"]
    return (executor.plan,) if signatures is None else signatures.plans


def predict(module: nn.Module, *, kernel_workspace: bool = True, gradients_present: bool = False) -> Prediction:
    """The peaks of a bound module's training step.

    Without ``kernel_workspace``, memory that a kernel takes and returns inside one call is left out, as a
    meter of tensors sees it. ``gradients_present``: every parameter has a ``.grad`` already, into which
    the step accumulates; a gradient that it makes lives to the end of its part of the backward
    (gradient_parts.py).
    """
    executor = executor_of(module)
    made = executor.plan
    stationary = replace(made.graph.stationary, accumulated_gradient_nbytes=0)
    costs = made.costs if kernel_workspace else executor.visible_costs
    timeline = simulate(replace(made.graph.without_ends(), stationary=stationary), costs, made.schedule)
    total = timeline.peak_total_nbytes
    if gradients_present:
        total = accumulating_nbytes(made.graph, costs, made.schedule, executor.program.parts)
    return Prediction(total, timeline.peak_activation_nbytes)


def _refuse_autocast(model: nn.Module) -> None:
    """An exported program shows no casts of the autocast that it was exported under."""
    state = AutocastState.now()
    if state.enabled:
        raise UnsupportedModuleError(
            f"{type(model).__name__} cannot be exported under {state}, whose casts the file would not have",
            remedy="use within_budget, which needs no file, or enter autocast inside the module's forward",
        )


def _profile_of(profile: StepProfile | str | os.PathLike[str] | None) -> StepProfile | None:
    return profile if profile is None or isinstance(profile, StepProfile) else read_profile(profile)


def _annotated(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, profile: StepProfile | None
) -> tuple[TracedStep, Annotated]:
    """The step, measured unless there is a profile for it; refuses one of another machine."""
    if profile is None:
        step = _traced(model, args, kwargs)
        return step, annotate(step)
    step, annotated = _with_graph(model, args, kwargs, profile.graph)
    _refuse_other_machines("profile", profile, annotated.annotation)
    return step, annotated


def _with_graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, graph: str
) -> tuple[TracedStep, Annotated]:
    """The step without a measurement where it then has the fingerprint ``graph`` (or none is wanted), else with one."""
    step = _traced(model, args, kwargs)
    annotated = annotate(step, measure=False)
    if graph and graph != annotated.annotation.graph.fingerprint:
        step = TracedStep(step.joint)  # some kernels return more memory than tracing tells; a measurement does
        annotated = annotate(step)
    return step, annotated


def _refuse_other_machines(what: str, theirs: Source | StepProfile, mine: Annotation) -> None:
    kinds = [source.device.split(",")[0] for source in (theirs, mine)]
    if theirs.framework != mine.framework or kinds[0] != kinds[1]:
        raise PlanMismatchError(
            f"the {what} was made for {theirs.framework} on {theirs.device}, this is {mine.framework} on {mine.device}",
            remedy="export and plan again here" if what == "plan" else "measure it again here",
        )


def _refuse_other_graphs(made: Plan, annotated: Annotated, model: nn.Module) -> None:
    mine = annotated.annotation
    if made.model.annotations is None:
        raise PlanMismatchError(
            f"the plan was made from the bare file {made.model.file!r}, whose ops are not those PyTorch runs",
            remedy="write the file with ogc_plan.adapters.pytorch.export and plan again",
        )
    _refuse_other_machines("plan", made.model.annotations, mine)
    if made.model.fingerprint != mine.graph.fingerprint:
        raise PlanMismatchError(
            f"the plan was made for graph {made.model.fingerprint[:12]}, {type(model).__name__} with these arguments "
            f"has {mine.graph.fingerprint[:12]}",
            remedy="export with arguments of the same shapes and types under the same autocast, and plan again",
        )


def _traced(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> TracedStep:
    """Capture and analyse; whatever torch or the analysis stumbles over is an error in one line."""
    joint = capture(model, args, kwargs)
    try:
        return TracedStep(joint)
    except OgcPlanError:
        raise
    except Exception as error:
        raise UnsupportedModuleError(
            f"the graph of {type(model).__name__} cannot be planned: {first_line(error)}",
            remedy="report this with the module",
        ) from error


def _size_text(option: str, size: str | int) -> str:
    if isinstance(size, str):
        return size
    if type(size) is int:
        return f"{size}B"
    raise BudgetSyntaxError(f"{option} {size!r} is no text and no whole number", remedy='write "3GB", "60%" or bytes')


def _names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (names,)
    for name in found:
        if not isinstance(name, str):
            raise UsageError(f"{option} {name!r} is no name of a tensor", remedy="pass names, or globs like 'block.*'")
    return found
