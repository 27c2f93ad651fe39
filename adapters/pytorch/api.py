"""The public functions: export, bind, within_budget, profile, predict, binding_peak."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from ...planner import pipeline
from ...planner.annotations import dumps
from ...planner.autodiff.derive import states_nbytes
from ...planner.costs.devices import Device, device_named
from ...planner.costs.profile import OpTimes, StepProfile, applied
from ...planner.errors import AdapterError, BudgetSyntaxError, UsageError
from ...planner.model import from_annotation, store_all_timeline
from ...planner.plan_file.reader import read_plan
from ...planner.plan_file.record import Plan
from ...planner.problem import Scope
from ...planner.simulate import simulate
from ...planner.solver import Solver
from ...planner.trade_offs.largest_input import Fit
from ...planner.units import parse_budget, parse_headroom
from .binding.bound_module import bound, bound_by, runner_of
from .binding.largest_batch import largest_batch
from .binding.make_executor import annotated_step, by_plan, profile_of, traced
from .binding.onnx_export import exported, ops_of_nodes, write_onnx
from .binding.optimizer_memory import OptimizerMemory, memory_of
from .binding.plans import LIMIT, Plans
from .binding.request import Request
from .errors import UnsupportedModuleError
from .execution.card_memory import CardMemory
from .execution.op_timing import op_times
from .guards.autocast_state import AutocastState
from .memory.allocator_record import DevicePeak
from .step.annotate import annotate, device_of
from .step.backward_parts import accumulating_nbytes
from .unbind import original


@dataclass(frozen=True, slots=True)
class Prediction:
    """Peaks of one training step in bytes: of everything, and without stationary memory and parameter gradients.

    ``card`` is what the process needs of a CUDA device for it, from the present state of PyTorch's allocator; None on a
    CPU.
    """

    total_nbytes: int
    activation_nbytes: int
    card: CardMemory | None = None


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    profile: StepProfile | str | os.PathLike[str] | None = None,
) -> None:
    """Write ``model`` as a standard ONNX file that also carries its real training graph.

    ``ogc-plan FILE --budget ...`` plans from it; `bind` runs the plan. Each distinct call of the step runs once,
    alone, to measure its workspace and time, unless a ``profile`` has them.

    Args:
        model: the module that is called in training.
        args, kwargs: example arguments of its forward.
        path: where the file is written.
        profile: what `profile` returned, or its file.

    Raises:
        UnsupportedModuleError: the module cannot be traced, or an autocast is on.
        PlanMismatchError: the profile is of another machine.

    Example:
        >>> export(torch.nn.Linear(4, 4), (torch.ones(2, 4),), "model.onnx")
    """
    model = original(model)
    _refuse_autocast(model)
    timed = profile_of(profile)
    annotated = annotated_step(model, args, kwargs, timed)
    annotation = annotated.annotation if timed is None else applied(annotated.annotation, timed)
    program = exported(model, args, dict(kwargs or {}))
    write_onnx(
        program, path, training_graph=dumps(annotation), op_of_node=ops_of_nodes(program, annotated.step, args, kwargs)
    )


def bind(
    model: nn.Module,
    plan: Plan | str | os.PathLike[str],
    args: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The module training by ``plan``, on arguments like ``args``: same class, parameters and state_dict.

    A plan of a bare ONNX file fits the module that `from_onnx` makes of it; its peak is predicted again.

    Args:
        model: the module that is called in training.
        plan: a plan, or its file.
        args, kwargs: example arguments of its forward.

    Returns:
        A module of the same class that shares its parameters.

    Raises:
        PlanMismatchError: the plan was made for another module, shape, device or torch version, or for a bare ONNX
            file that the module is not from, or does not keep what it promises.
        UnsupportedModuleError: the module cannot be traced.

    Example:
        >>> model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
        >>> made = plan_of(within_budget(model, (x,), budget="100%"))
        >>> trained = bind(model, made, (x,))
    """
    made = plan if isinstance(plan, Plan) else read_plan(plan)
    model = original(model)
    return bound(model, by_plan(made, model, args, kwargs))


def within_budget(
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    *,
    budget: str | int,
    kwargs: Mapping[str, Any] | None = None,
    scope: Scope | Literal["total", "activations"] | None = None,
    strategy: str = "optimal",
    headroom: str | int = "0%",
    keep: Iterable[str] = (),
    recompute: Iterable[str] = (),
    optimizer: str | torch.optim.Optimizer | None = None,
    grad_accumulation: bool = False,
    device: str | Device | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    effort: str = "default",
    on_change: Literal["plan", "raise"] = "plan",
    max_plans: int = LIMIT,
    bucket: Mapping[int, int] | None = None,
    profile: StepProfile | str | os.PathLike[str] | None = None,
    compile: bool = False,
) -> nn.Module:
    """Bind ``model`` to train within ``budget``, by plans made straight from its graph.

    With ``args`` or ``kwargs`` the first plan is made now, for a module in training mode under the autocast of the
    caller. Without them, or in evaluation mode, it is made in the first training step, for what that step is given.

    Args:
        model: the module that is called in training.
        args, kwargs: example arguments of its forward.
        budget: ``"3GB"``, ``"60%"``, ``"min"`` or a number of bytes. Bytes bound parameters, gradients, buffers,
            arguments, activations and workspace, and on CUDA the context, what cuBLAS keeps and what the allocator
            reserves; a share bounds activations and workspace.
        optimizer: the optimizer whose states a budget in bytes covers: those that it has as they are, and those that
            its first step will make. Or its name (``"adamw"``, ``"adam"``, ``"momentum"``, ``"sgd"``), a name with a
            size (``"Lion:340MB"``), or ``"none"``. Without it such a budget leaves them out, with a warning.
        headroom: a size like ``budget`` that is kept free.
        grad_accumulation: plan a step that finds gradients: a full set lives through the step, and each new gradient
            until its part of the backward ends; the peak is that of ``predict(..., gradients_present=True)``.
        device: the roofline to take times from, by name or as `read_device` returns it. Without it each distinct call
            is timed alone.
        profile: what `profile` returned, or its file, measured with these arguments; replaces timing.
        on_change: what happens in a training step for which no plan holds: its arguments have another shape, dtype,
            strides, structure or value, the autocast state is another, parameters were frozen, a submodule changed its
            mode, or an attribute that the forward reads changed. With "plan" another plan is made, with a warning that
            tells why and what it took. With "raise" it raises InputMismatchError.
        max_plans: how many plans are kept; those for other sizes alone, or for another way that random numbers decide,
            do not count. A plan that no longer holds for the module makes room for another; if all hold, the step
            raises AdapterError.
        bucket: multiples by dimension, such as ``{1: 128}``: one plan is searched for the next multiple of 128 of the
            size of the first tensor along dimension 1, and of all others with that size there. Smaller sizes take over
            its decisions, and its budget where that is a share. Nothing is padded.
        scope, strategy, keep, recompute, seed, effort: as on the command line.
        time_limit_s: seconds for the search. Ctrl-C ends it, too, with the best plan so far.
        compile: return ``torch.compile(model)`` within the budget (../inductor/README.md). It takes ``budget`` and
            ``grad_accumulation`` alone, and is planned when it is compiled.

    Returns:
        A module of the same class that shares its parameters; what ``torch.compile`` returns with ``compile``.

    Raises:
        AdapterError, UsageError, BudgetSyntaxError: an argument cannot be used.
        InfeasibleBudgetError: no plan was found; the first training step raises it if it makes the plan.
        UnsupportedModuleError: the module cannot be traced; again, perhaps in the first step.
        KeyboardInterrupt: Ctrl-C before there was a plan, or a second one.

    Example:
        >>> trained = within_budget(torch.nn.Linear(4, 4), budget="100%")
        >>> trained(torch.ones(2, 4)).sum().backward()
    """
    if on_change not in ("plan", "raise"):
        raise AdapterError(f"on_change is {on_change!r}", remedy='write "plan" or "raise"')
    if type(max_plans) is not int or max_plans < 1:
        raise AdapterError(f"max_plans is {max_plans!r}", remedy="pass a whole number from 1")
    buckets = _buckets(bucket)
    held, rerun = _names("keep", keep), _names("recompute", recompute)
    asked, reserve = _size_text("budget", budget), _size_text("headroom", "0%" if headroom == 0 else headroom)
    solver = Solver(strategy, effort, time_limit_s, seed)
    solver.check()
    parse_budget(asked)
    parse_headroom(reserve)
    pipeline.scope_named(scope)
    _check_device(device)
    _check_module(model)
    if compile:
        given = {
            "args": args, "kwargs": kwargs, "scope": scope, "keep": held, "recompute": rerun, "optimizer": optimizer,
            "device": device, "time_limit_s": time_limit_s, "profile": profile, "headroom": reserve.strip("0% "),
            "strategy": strategy != "optimal", "seed": seed, "effort": effort != "default",
            "on_change": on_change != "plan", "max_plans": max_plans != LIMIT, "bucket": buckets,
        }  # fmt: skip
        return _compiled(original(model), asked, [name for name, value in given.items() if value], grad_accumulation)
    states, memory = _states_of(optimizer, model)
    request = Request(
        asked, scope, reserve, held, rerun, states, grad_accumulation, device, solver, optimizer_memory=memory,
        bucket=buckets,
    )  # fmt: skip
    model, known = original(model), profile_of(profile)
    plans = Plans(request, replans=on_change == "plan", limit=max_plans, profile=known)
    if model.training and not (args is None and kwargs is None):
        first = plans.planned(model, () if args is None else args, kwargs or {})
        return bound_by(model, lambda made: plans.with_first(first, made))
    return bound_by(model, lambda _: plans)


def fit(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    memory: str | int,
    kwargs: Mapping[str, Any] | None = None,
    batch_axis: int = 0,
    multiple_of: int = 1,
    optimizer: str | torch.optim.Optimizer | None = None,
    grad_accumulation: bool = False,
    device: str | Device | None = None,
    effort: str = "default",
    time_limit_s: float | None = None,
) -> Fit:
    """The largest batch whose training step fits a memory: without recomputation, the fastest, and at all.

    Each size that is planned is measured first, as by `within_budget`, which would make the same plan.

    Args:
        model: the module that is called in training, in training mode.
        args, kwargs: example arguments of its forward. Each tensor whose size along ``batch_axis`` is that of the first
            tensor carries the batch; its samples are repeated or left out.
        memory: what a budget in bytes bounds: ``"24GB"`` or a number of bytes.
        batch_axis: the dimension of the batch.
        multiple_of: only multiples of it are sizes.
        optimizer, grad_accumulation, device, effort: as for `within_budget`.
        time_limit_s: seconds for the search of each size. Ctrl-C ends all, with what is found by then.

    Returns:
        The sizes with their plans: ``without``, ``fastest``, ``largest``, and why the next size does not fit.

    Raises:
        AdapterError, UsageError, BudgetSyntaxError: an argument cannot be used.
        InfeasibleBudgetError: not even the smallest batch fits.
        UnsupportedModuleError: the module cannot be traced.

    Example:
        >>> found = fit(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()), (torch.ones(2, 64),),
        ...             memory="100kB", optimizer="sgd", device="a100")
        >>> found.without.size <= found.largest.size
        True
    """
    asked = _size_text("memory", memory)
    _check_device(device)
    _check_module(model)
    states, held = _states_of(optimizer, model)
    solver = Solver("optimal", effort, time_limit_s, 0)
    solver.check()
    request = Request(
        asked, Scope.TOTAL, "0%", (), (), states, grad_accumulation, device, solver, optimizer_memory=held
    )
    return largest_batch(request, original(model), args, dict(kwargs or {}), batch_axis, multiple_of)


def _check_device(device: object) -> None:
    """Raise UsageError or AdapterError for a device that is not known now, and not in the first step."""
    if isinstance(device, str):
        device_named(device)
    elif device is not None and not isinstance(device, Device):
        raise AdapterError(f"device is {device!r}", remedy='write the name of one, as device="a100"')


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise AdapterError(f"{model!r} is no torch.nn.Module", remedy="wrap it in a module")


def _states_of(
    optimizer: str | torch.optim.Optimizer | None, model: nn.Module
) -> tuple[str | None, OptimizerMemory | None]:
    """The text that names an optimizer's states, and what the optimizer itself has. Raises UsageError."""
    memory = None if optimizer is None or isinstance(optimizer, str) else memory_of(optimizer, model)
    states = optimizer if memory is None else memory.text
    if states is not None:
        states_nbytes(states, 0)  # refuses an unknown name now, not in the first step
    return states, memory


def _compiled(model: nn.Module, budget: str, given: list[str], grad_accumulation: bool) -> nn.Module:
    from ..inductor.api import compiled  # its door to PyTorch's compiler is opened only for those who compile

    if given:
        raise UsageError(f"{given[0]} has no meaning with compile=True", remedy=f"leave out {', '.join(given)}")
    return compiled(model, budget, grad_accumulation=grad_accumulation)


def profile(
    model: nn.Module,
    args: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    budget: str | int | None = None,
    rounds: int = 9,
) -> StepProfile:
    """Measure the training step of ``model`` on ``args`` op by op: times in real steps, and workspace.

    Times are those of CUDA events or wall-clock time; with one CPU thread, its processor time. Workspace is that of
    each distinct call alone. The module, its buffers and gradients, and random generators stay as they are.

    Args:
        model: the module that is called in training.
        args, kwargs: example arguments of its forward.
        budget: profile steps by a plan within it, where a step that stores everything does not fit.
        rounds: how many steps are measured; a time is their median.

    Returns:
        Nanoseconds and bytes of each op, which `within_budget`, `export` and the command line take.

    Raises:
        AdapterError: a step fails, or ``rounds`` is no number from 1.
        UnsupportedModuleError: the module cannot be traced.

    Example:
        >>> measured = profile(torch.nn.Linear(4, 4), (torch.ones(2, 4),), rounds=1)
    """
    if type(rounds) is not int or rounds < 1:
        raise AdapterError(f"rounds is {rounds!r}", remedy="pass a whole number from 1")
    model = original(model)
    annotated = annotate(traced(model, args, kwargs))
    step, annotation = annotated.step, annotated.annotation
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
    """The plan that a bound module trains by; where there are several, the one made first.

    Args:
        module: what `bind` or `within_budget` returned.

    Returns:
        The plan.

    Raises:
        AdapterError: the module is not bound, or not planned yet.

    Example:
        >>> trained = within_budget(torch.nn.Linear(4, 4), (torch.ones(2, 4),), budget="100%")
        >>> plan_of(trained).peak.activation_nbytes <= plan_of(trained).budget.nbytes
        True
    """
    return runner_of(module).plan


def plans_of(module: nn.Module) -> tuple[Plan, ...]:
    """The plans that a bound module keeps.

    Args:
        module: what `bind` or `within_budget` returned.

    Returns:
        The plans; the one used last is at the end.

    Raises:
        AdapterError: the module is not bound.

    Example:
        >>> len(plans_of(within_budget(torch.nn.Linear(4, 4), budget="100%")))
        0
    """
    return runner_of(module).plans


def predict(module: nn.Module, *, kernel_workspace: bool = True, gradients_present: bool = False) -> Prediction:
    """The peaks of a bound module's training step.

    Args:
        module: what `bind` or `within_budget` returned.
        kernel_workspace: without it, memory that a kernel allocates and frees inside one call is left out, as a meter
            of tensors sees it.
        gradients_present: every parameter has a ``.grad`` into which the step accumulates; a gradient that the step
            makes lives to the end of its part of the backward.

    Returns:
        The peaks in bytes.

    Raises:
        AdapterError: the module is not bound, or not planned yet.

    Example:
        >>> trained = within_budget(torch.nn.Linear(4, 4), (torch.ones(2, 4),), budget="100%")
        >>> predict(trained).total_nbytes >= predict(trained).activation_nbytes
        True
    """
    executor = runner_of(module).executor
    made = executor.plan
    stationary = replace(made.graph.stationary, accumulated_gradient_nbytes=0)
    costs = made.costs if kernel_workspace else executor.visible_costs
    timeline = simulate(replace(made.graph.without_ends(), stationary=stationary), costs, made.schedule)
    total = timeline.peak_total_nbytes
    if gradients_present:
        total = accumulating_nbytes(made.graph, costs, made.schedule, executor.program.parts)
    card = executor.card_memory(module, accumulates=gradients_present) if kernel_workspace else None
    return Prediction(total, timeline.peak_activation_nbytes, card)


def binding_peak(module: nn.Module) -> DevicePeak | None:
    """The most bytes of the GPU that planning a bound module took, with what was in use before.

    It is that of measuring calls one at a time, each with its arguments and results.

    Args:
        module: what `bind` or `within_budget` returned.

    Returns:
        Bytes; None on a CPU, and for a plan from a file, which is bound without measuring.

    Raises:
        AdapterError: the module is not bound, or not planned yet.

    Example:
        >>> binding_peak(within_budget(torch.nn.Linear(4, 4), (torch.ones(2, 4),), budget="100%")) is None
        True
    """
    return runner_of(module).executor.measuring_peak


def _refuse_autocast(model: nn.Module) -> None:
    """An exported program does not show the casts of the autocast that it was exported under."""
    state = AutocastState.now()
    if state.enabled:
        raise UnsupportedModuleError(
            f"{type(model).__name__} cannot be exported under {state}, whose casts the file would not have",
            remedy="use within_budget, which needs no file, or enter autocast inside the module's forward",
        )


def _size_text(option: str, size: str | int) -> str:
    if isinstance(size, str):
        return size
    if type(size) is int:
        return f"{size}B"
    raise BudgetSyntaxError(f"{option} {size!r} is no text and no whole number", remedy='write "3GB", "60%" or bytes')


def _buckets(bucket: Mapping[int, int] | None) -> dict[int, int]:
    found = dict(bucket) if isinstance(bucket, Mapping) else {} if bucket is None else {-1: 0}
    if any(type(axis) is not int or type(size) is not int or axis < 0 or size < 1 for axis, size in found.items()):
        raise AdapterError(f"bucket is {bucket!r}", remedy="write {1: 128}: a multiple for each dimension in buckets")
    return found


def _names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (names,)
    for name in found:
        if not isinstance(name, str):
            raise UsageError(f"{option} {name!r} is no name of a tensor", remedy="pass names, or globs like 'block.*'")
    return found
