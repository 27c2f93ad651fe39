"""Makes executors: for a given plan, or for a new plan made on request."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ....planner import pipeline
from ....planner.annotations import Annotation, Source
from ....planner.costs.devices import Device
from ....planner.costs.profile import StepProfile, read_profile
from ....planner.device_overhead import Overhead
from ....planner.errors import AdapterError, OgcPlanError, PlanMismatchError
from ....planner.model import from_annotation
from ....planner.plan_file.record import Plan
from ....planner.problem import Scope
from ....planner.solver import Solver
from ....planner.training_graph import TrainingGraph
from ..capture.diagnostics import first_line
from ..capture.joint_graph import capture
from ..capture.tensor_attributes import attributes_of
from ..errors import UnsupportedModuleError
from ..execution.card_memory import Present, card_memory, step_segment, unknown_setting
from ..execution.codegen import generate
from ..execution.executor import Executor
from ..execution.step_pool import StepPool
from ..step.annotate import Annotated, annotate, device_of
from ..step.step_graph import TracedStep
from ..torch_private import pytree
from ..unbind import original


def by_plan(plan: Plan, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Executor:
    """An executor of ``plan`` for modules like this one. Raises PlanMismatchError."""
    module = original(module)
    annotated = _annotated_as(module, args, kwargs, {plan.model.fingerprint} if plan.model.annotations else ())
    return _checked(plan, module, annotated)


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `api.within_budget`, with which each new signature is planned.

    A graph that one of the plans ``made`` before has is not planned again.
    """

    budget: str
    scope: Scope | str | None
    headroom: str
    keep: tuple[str, ...]
    recompute: tuple[str, ...]
    optimizer: str | None
    grad_accumulation: bool
    device: str | Device | None
    solver: Solver
    made: tuple[Plan, ...] = ()


def planned(
    request: Request,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    profile: StepProfile | None = None,
) -> Executor:
    """An executor of a plan for ``module`` with these arguments. Raises what `within_budget` raises."""
    module = original(module)
    _free_idle_memory()
    if profile is not None and request.device is not None:
        raise AdapterError("device and profile both give times", remedy="pass one of them")
    if request.made:
        known = {plan.model.fingerprint: plan for plan in request.made}
        annotated = _annotated_as(module, args, kwargs, known)
        plan = known.get(annotated.annotation.graph.fingerprint)
        if plan is not None:
            return _checked(plan, module, annotated)
    else:
        annotated = annotated_step(module, args, kwargs, profile)
    prepared = from_annotation(
        annotated.annotation,
        name=type(module).__name__,
        device=request.device,
        optimizer=request.optimizer,
        grad_accumulation=request.grad_accumulation,
        profile=profile,
    )
    made = pipeline.plan(
        prepared,
        request.budget,
        scope=request.scope,
        strategy=request.solver.strategy,
        headroom=request.headroom,
        keep=request.keep,
        recompute=request.recompute,
        time_limit_s=request.solver.time_limit_s,
        seed=request.solver.seed,
        effort=request.solver.effort,
        overhead=_overhead(request, module, args, kwargs, annotated, prepared.training),
    )
    return Executor(module, made, annotated)


def _overhead(
    request: Request,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    annotated: Annotated,
    graph: TrainingGraph,
) -> Overhead | None:
    """What a plan's step takes of a CUDA device beyond its peak; None on a CPU."""
    if device_of(annotated.step).type != "cuda":
        return None
    leaves = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    present = Present.of(
        module.parameters(),
        (*module.buffers(), *attributes_of(module).values(), *leaves),
        states_nbytes=graph.stationary.optimizer_nbytes,
        accumulates=request.grad_accumulation,
    )

    def beyond(plan: Plan) -> int:
        if (setting := unknown_setting()) is not None:
            raise AdapterError(
                f"a budget in bytes bounds what the CUDA allocator reserves, which is not known with {setting}",
                remedy='leave it out of PYTORCH_CUDA_ALLOC_CONF, or pass a share such as budget="60%"',
            )
        program = generate(annotated.step, plan.schedule)
        segment_nbytes = step_segment(annotated, program, accumulates=request.grad_accumulation)
        found = card_memory(annotated, program, present, segment_nbytes)
        return found.step_nbytes - plan.peak.total_nbytes

    return beyond


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
    if profile is None:
        return annotate(traced(model, args, kwargs))
    annotated = _annotated_as(model, args, kwargs, {profile.graph})
    _refuse_other_machines("profile", profile, annotated.annotation)
    return annotated


def _checked(plan: Plan, module: nn.Module, annotated: Annotated) -> Executor:
    _refuse_other_graphs(plan, annotated, module)
    pipeline.check(plan.graph, plan.costs, plan)
    return Executor(module, plan, annotated)


def _annotated_as(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, fingerprints: Collection[str]
) -> Annotated:
    """The annotated step; measured only if it does not have one of the ``fingerprints`` without a measurement.

    Some kernels return more memory than tracing tells. Only a measurement finds that, and it changes the fingerprint.
    """
    step = traced(model, args, kwargs)
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


def traced(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> TracedStep:
    """Capture a step and analyse it. Raises what `capture` raises, and UnsupportedModuleError for any other error."""
    try:
        return TracedStep(capture(model, args, kwargs))
    except OgcPlanError:
        raise
    except Exception as error:
        raise UnsupportedModuleError(
            f"the graph of {type(model).__name__} cannot be planned: {first_line(error)}",
            remedy="report this with the module",
        ) from error
