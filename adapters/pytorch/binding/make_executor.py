"""Makes executors: for a given plan, or for a new plan made on request."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ....planner import pipeline
from ....planner.annotations import Annotation, Source
from ....planner.costs.profile import StepProfile, read_profile
from ....planner.display.interrupt import stoppable
from ....planner.display.terminal import Activity, activity
from ....planner.errors import AdapterError, OgcPlanError, PlanMismatchError, SearchStoppedError
from ....planner.model import from_annotation
from ....planner.plan_file.record import Plan
from ....planner.replan.kept_decisions import replan
from ....planner.solver import CERTIFIED
from ..capture.diagnostics import first_line, is_of_the_forward
from ..capture.joint_graph import capture
from ..errors import UnsupportedModuleError
from ..execution.executor import Executor
from ..execution.step_pool import StepPool
from ..onnx_module.module import OnnxModule
from ..step.annotate import Annotated, annotate
from ..step.step_graph import TracedStep
from ..unbind import original
from .card_overhead import CardOverhead, card_overhead
from .kept_steps import SCALED_NOTE, meter_with, noted, of_same_structure, with_times_of
from .messages import tell, warn_of_the_card, warn_of_the_optimizer
from .plan_of_file import on_calls
from .request import Request

_PATIENCE_S = 1.0
"""Planning that takes no longer shows no progress."""


def by_plan(plan: Plan, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Executor:
    """An executor of ``plan`` for modules like this one. Raises PlanMismatchError."""
    module = original(module)
    step = traced(module, args, kwargs)
    if plan.model.annotations is None and isinstance(module, OnnxModule):
        annotated = annotate(step)
        return Executor(module, on_calls(plan, module, annotated), annotated)
    annotated = _annotated_as(step, {plan.model.fingerprint} if plan.model.annotations else ())
    return _checked(plan, module, annotated)


def planned(
    request: Request,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    profile: StepProfile | None = None,
    kept: Sequence[Executor] = (),
) -> Executor:
    """An executor of a plan for ``module`` with these arguments.

    Where only sizes differ from those of a plan that was ``kept``, its times are scaled, and its decisions are taken
    over if they fit. Raises what `within_budget` raises.
    """
    module, began = original(module), time.perf_counter()
    if profile is not None and request.device is not None:
        raise AdapterError("device and profile both give times", remedy="pass one of them")
    with activity(quiet=False, after_s=_PATIENCE_S) as line:
        executor = _planned(request, module, args, kwargs, profile, kept, line)
    if not any(executor.plan is plan for plan in request.made):
        tell(line, type(module).__name__, executor.plan, request, time.perf_counter() - began)
        if executor.card_nbytes is not None:
            warn_of_the_card(executor.plan, executor.card_nbytes)
        if not kept:
            warn_of_the_optimizer(executor.plan, request)
    return executor


def planned_quietly(
    request: Request, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> Executor:
    """As `planned`, for one of many sizes, which tells nothing."""
    with activity(quiet=True) as line:
        return _planned(request, original(module), args, kwargs, None, (), line)


def _planned(
    request: Request,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    profile: StepProfile | None,
    kept: Sequence[Executor],
    line: Activity,
) -> Executor:
    _free_idle_memory()
    name = type(module).__name__
    line.now(f"planning {name}: tracing")
    step = traced(module, args, kwargs)
    annotated = None if profile is None else _annotated_as_profiled(step, profile)
    if request.made:
        known = {plan.model.fingerprint: plan for plan in request.made}
        as_known = _annotated_as(step, known)
        plan = known.get(as_known.annotation.graph.fingerprint)
        if plan is not None:
            overhead = card_overhead(request, module, args, kwargs, as_known, plan.graph)
            return _checked(plan, module, as_known, overhead)
        annotated = annotated or as_known  # measured, since no plan has its fingerprint
    like = of_same_structure(step, kept) if profile is None else []
    if annotated is None:
        line.now(f"planning {name}: measuring memory and times of its calls")
        annotated = annotate(step, timed=request.device is None and not like, known=meter_with(step, kept))
    scaled = bool(like) and request.device is None and not annotated.annotation.timed
    if scaled:
        annotated = with_times_of(like[0], annotated)
    prepared = from_annotation(
        annotated.annotation,
        name=name,
        device=request.device,
        optimizer=request.optimizer,
        grad_accumulation=request.grad_accumulation,
        profile=profile,
    )
    overhead = card_overhead(request, module, args, kwargs, annotated, prepared.training)
    limits: dict[str, Any] = {
        "scope": request.scope,
        "headroom": request.headroom,
        "keep": request.keep,
        "recompute": request.recompute,
        "overhead": overhead,
    }
    solver = request.solver
    plans = [executor.plan for executor in like]
    line.now(f"planning {name}: searching")
    made = replan(prepared, plans, request.budget, solver, **limits) if like else None
    if made is None:
        store_all_ns = sum(cost.forward_ns + cost.backward_ns for cost in prepared.costs)
        with stoppable() if solver.strategy == CERTIFIED else nullcontext() as stop:
            try:
                made = pipeline.plan(
                    prepared,
                    request.budget,
                    strategy=solver.strategy,
                    time_limit_s=solver.time_limit_s,
                    seed=solver.seed,
                    effort=solver.effort,
                    limits=line.limits(store_all_ns, f"{name}: ", stop, keeps="it"),
                    **limits,
                )
            except SearchStoppedError:
                raise KeyboardInterrupt from None
    if scaled:
        made = noted(made, f"{SCALED_NOTE}{like[0].plan.model.fingerprint[:12]}")
    return Executor(module, made, annotated, overhead.placement(made) if overhead is not None else None)


def _free_idle_memory() -> None:
    """Give back to CUDA devices what steps and others do not use: calls are measured there, and bytes predicted."""
    if torch.cuda.is_initialized():
        StepPool.release_idle()


def profile_of(profile: StepProfile | str | os.PathLike[str] | None) -> StepProfile | None:
    """The profile, read if it is a path."""
    return profile if profile is None or isinstance(profile, StepProfile) else read_profile(profile)


def annotated_step(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, profile: StepProfile | None
) -> Annotated:
    """The annotated step, measured unless there is a profile. Raises PlanMismatchError for another machine's."""
    step = traced(model, args, kwargs)
    return annotate(step) if profile is None else _annotated_as_profiled(step, profile)


def _annotated_as_profiled(step: TracedStep, profile: StepProfile) -> Annotated:
    annotated = _annotated_as(step, {profile.graph})
    _refuse_other_machines("profile", profile, annotated.annotation)
    return annotated


def _checked(plan: Plan, module: nn.Module, annotated: Annotated, overhead: CardOverhead | None = None) -> Executor:
    _refuse_other_graphs(plan, annotated, module)
    pipeline.check(plan.graph, plan.costs, plan)
    return Executor(module, plan, annotated, overhead.placement(plan) if overhead is not None else None)


def _annotated_as(step: TracedStep, fingerprints: Collection[str]) -> Annotated:
    """The annotated step; measured only if it does not have one of the ``fingerprints`` without a measurement.

    Some kernels return more memory than tracing tells. Only a measurement finds that, and it changes the fingerprint.
    """
    annotated = annotate(step, measure=False)
    if fingerprints and annotated.annotation.graph.fingerprint not in fingerprints:
        annotated = annotate(step)
    return annotated


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
            f"the plan was made from the bare file {made.model.file!r}, whose ops {type(model).__name__} does not have",
            remedy="bind it to from_onnx(FILE), or write the file with ogc_plan.adapters.pytorch.export and plan again",
        )
    _refuse_other_machines("plan", made.model.annotations, mine)
    if made.model.fingerprint != mine.graph.fingerprint:
        raise PlanMismatchError(
            f"the plan was made for graph {made.model.fingerprint[:12]}, {type(model).__name__} with these arguments "
            f"has {mine.graph.fingerprint[:12]}",
            remedy="export with arguments of the same shapes and types under the same autocast, and plan again",
        )


def traced(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> TracedStep:
    """Capture a step and analyse it.

    Raises what `capture` raises, what the forward raises, and UnsupportedModuleError for any other error.
    """
    try:
        return TracedStep(capture(model, args, kwargs))
    except OgcPlanError:
        raise
    except Exception as error:
        if is_of_the_forward(error):
            raise
        raise UnsupportedModuleError(
            f"the graph of {type(model).__name__} cannot be planned: {first_line(error)}",
            remedy="report this with the module",
        ) from error
