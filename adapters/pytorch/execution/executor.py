"""Runs the planned step of one architecture, after checking that everything is as it was planned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ....planner.annotations import OpWork
from ....planner.errors import PlanMismatchError
from ....planner.plan_file.record import Plan
from ....planner.units import counted
from .. import torch_private
from ..capture.argument_identity import same_tensors
from ..capture.diagnostics import signature_error
from ..capture.joint_graph import capture
from ..errors import warn
from ..guards.autocast_state import AutocastState
from ..guards.values.value_tape import Drawn
from ..joint import Joint, Meta, Primal, meta
from ..memory.allocator_record import DevicePeak
from ..memory.workspace_meter import WorkspaceMeter
from ..step.annotate import Annotated, cpu_text, device_of, device_text, visible_costs
from ..step.backward_parts import accumulating_nbytes
from ..step.step_graph import TracedStep
from ..torch_private import pytree
from ..unbind import original
from .attachment import Attachment, ChangedModuleError, Described, InputMismatchError, Order, VaryingStepError
from .autograd_function import Executable, Room
from .backend_switches import KERNELS_CHOSEN, KERNELS_TRACED
from .card_memory import CardMemory, Placed, Present, card_memory, placed, unknown_setting
from .codegen import EventKind, Program
from .module_settings import settings_of
from .partial_backward import PartialBackwards
from .retrace import OnArguments, Retrace, Strides
from .step_pool import StepPool


@dataclass(frozen=True, slots=True)
class Checked:
    """A step that a plan holds for: its module, the tensors of its primals, and how its graph is traced again."""

    module: nn.Module
    primals: list[torch.Tensor]
    retrace: Retrace


class Executor:
    """Runs the planned step of one architecture on any module attached to it."""

    def __init__(self, module: nn.Module, plan: Plan, annotated: Annotated, placement: Placed | None = None) -> None:
        self.plan = plan
        step, visible = annotated.step, annotated.visible
        self._annotated = annotated
        self.visible_costs = visible_costs(plan.costs, visible)
        self.program, self._space = placed(annotated, plan) if placement is None else placement
        partial_backwards = PartialBackwards(step, plan, visible, self.program)
        self._executable = Executable(step, self.program, partial_backwards, self._room(step))
        self._joint, self._order = step.joint, Order(step.joint.primals)
        self.autocast, self.enters_autocast = step.joint.autocast, step.joint.enters_autocast
        by_position, by_name = step.joint.in_spec.child(0), step.joint.in_spec.child(1)
        self._keywords: tuple[str, ...] = tuple(by_name.context)
        self._named = _named_parameters(module)
        self._given_by_position: int = by_position.num_children
        self._is_flat = all(
            part.child(i).is_leaf() for part in (by_position, by_name) for i in range(part.num_children)
        )
        self._alike: Callable[..., bool] | None = None  # true only of arguments like those that were checked last
        self._returned_primals = [i for i, primal in enumerate(step.joint.primals) if primal in step.joint.outputs]
        self._own_names = [primal.name for primal in step.joint.primals if primal.kind != "input"]
        self._draws = any(guard.draws for guard in step.joint.guards)
        self._all_differ = all(known is None for known in step.joint.same)
        self.shapes = [argument.shape for argument in step.joint.arguments if isinstance(argument, Meta)]
        self._settings = settings_of(module, step.joint.reads)
        self._described: Described | None = None
        self._traced_under, self._measured_under = KERNELS_TRACED.now(), KERNELS_CHOSEN.now()
        self._metas = [meta(tensor) for tensor in self.attach(module).own_tensors()]
        self._warned_of_gradients = self._warned_of_setup = False
        _check_accumulation(plan, self.program)
        self._uncovered_nbytes = _uncovered_nbytes(plan, self.program)
        self._measured_on = plan.model.annotations.device if plan.model.annotations is not None else ""

    @property
    def works(self) -> tuple[OpWork, ...]:
        """The work of each op of the step."""
        return self._annotated.annotation.works

    def meter_now(self) -> WorkspaceMeter | None:
        """What measured the calls of the step; None if kernels are chosen in another way now."""
        same = (self._traced_under, self._measured_under) == (KERNELS_TRACED.now(), KERNELS_CHOSEN.now())
        return self._annotated.meter if same and self._measured_on == device_text(self._annotated.step) else None

    @property
    def card_nbytes(self) -> int | None:
        """The memory of the GPU that the step runs on; None on a CPU."""
        device = device_of(self._annotated.step)
        return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else None

    @property
    def measuring_peak(self) -> DevicePeak | None:
        """The most that measuring took of the device so far; None where nothing was measured, and on a CPU."""
        return self._annotated.meter.peak

    def attach(self, module: nn.Module) -> Attachment:
        """Find the tensors of a module of this architecture."""
        made = Attachment(module, self._joint, self._settings, self._described)
        self._described = self._described or made.described
        return made

    def card_memory(self, module: nn.Module, *, accumulates: bool) -> CardMemory | None:
        """What the process needs of the CUDA device that the step of ``module`` runs on.

        None on a CPU, and where the allocator has settings that the model of it does not know.
        """
        if device_of(self._annotated.step).type != "cuda" or unknown_setting() is not None:
            return None
        present = Present.of(module.parameters(), module.buffers(), accumulates=accumulates)
        return card_memory(self._annotated, self.program, self._space, present)

    def __call__(self, attachment: Attachment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward, with the plan's backward as its history. Raises InputMismatchError."""
        return self.run(self.checked(attachment, args, kwargs))

    def checked(
        self, attachment: Attachment, args: tuple[Any, ...], kwargs: dict[str, Any], drawn: Drawn | None = None
    ) -> Checked:
        """The tensors of a step for which the plan holds. Raises InputMismatchError for another step.

        Nothing has run then. ChangedModuleError says that not the arguments but the module or its surroundings differ.
        """
        if tuple(kwargs) != self._keywords and kwargs.keys() == set(self._keywords):
            others = [name for name in kwargs if name not in self._named]  # a ``**kwargs`` has them in their order
            if others == [name for name in self._keywords if name not in self._named]:
                kwargs = {name: kwargs[name] for name in self._keywords}  # a trainer may pass them in another order
        leaves, spec = self._flattened(args, kwargs)
        self._check_arguments(attachment.module, leaves, spec)
        autocast = AutocastState.now_seen_by(self.enters_autocast)
        if autocast != self.autocast:
            raise InputMismatchError(
                f"{autocast}; the plan was bound with {self.autocast}",
                remedy="plan inside the autocast context that the forward runs in, or in the first training step",
            )
        attachment.check()
        self._check_switches()
        attachment.check_values(leaves, drawn)
        own = attachment.checked_tensors(self._joint.primals, self._metas)
        self._check_same(leaves, spec, own)
        attachment.check_reads()
        generator = torch.get_rng_state() if self._draws else None  # leads a trace after the step the same way
        retrace = partial(self._retrace, attachment.module, generator)
        arguments = OnArguments(retrace, leaves, spec, self._joint.arguments)
        return Checked(attachment.module, self._order(own, leaves), arguments)

    def check_module(self, attachment: Attachment) -> None:
        """Raise ChangedModuleError if the plan does not hold for the module as it is, whatever the arguments are."""
        attachment.check()
        self._check_switches()
        attachment.checked_tensors(self._joint.primals, self._metas)
        attachment.check_reads()

    def is_outgrown(self, checked: Checked) -> bool:
        """Whether the step exceeds its budget on a GPU for outputs of the last one that the caller holds."""
        return self._executable.room is not None and self._executable.room.is_outgrown(checked.primals)

    def run(self, checked: Checked) -> Any:
        """One forward of a step for which the plan holds, with the plan's backward as its history."""
        primals = checked.primals
        self._warn_of_gradients(primals)
        self._warn_of_setup()
        given = {self._joint.primals[position]: primals[position] for position in self._returned_primals}
        for assignment in self._joint.assignments:
            assignment.clear(checked.module)
        outputs = iter(self._executable(primals, checked.retrace))
        results = [
            next(outputs) if isinstance(value, torch.fx.Node) else given[value] if isinstance(value, Primal) else value
            for value in self._joint.outputs
        ]
        for assignment in self._joint.assignments:
            assignment.set(checked.module, results)
        return pytree.tree_unflatten([results[output] for output in self._joint.leaf_outputs], self._joint.out_spec)

    def _room(self, step: TracedStep) -> Room | None:
        if self._space is None:
            return None
        events = (*self.program.forward_events, *self.program.backward_events)
        return Room(
            StepPool.of(device_of(step)),
            self._space,
            [i for i, primal in enumerate(step.joint.primals) if primal.kind == "parameter"],
            [i for part in self.program.parts for i in part.primals if step.joint.primals[i].kind != "input"],
            filled=any(event.kind is EventKind.FILL for event in events),
        )

    def _check_switches(self) -> None:
        switches = KERNELS_TRACED.now()
        if switches != self._traced_under:
            name, _, now = KERNELS_TRACED.changed(self._traced_under, switches)
            raise ChangedModuleError(
                f"{name} is {now}, unlike when the plan was bound", remedy="train as the plan was bound"
            )

    def _retrace(
        self,
        module: nn.Module,
        generator: torch.Tensor | None,
        args: Any,
        kwargs: dict[str, Any],
        detached: frozenset[int],
        strides: Sequence[Strides | None],
    ) -> Joint:
        """The step of a forward that has run, for other gradients of its outputs. Raises what `capture` raises."""
        with ExitStack() as stack, torch_private.outside_of_modes(), self.autocast.entered(), torch.random.fork_rng([]):
            for assignment in self._joint.assignments:
                stack.enter_context(assignment.undone(module))
            if generator is not None:
                torch.set_rng_state(generator)
            return capture(original(module), args, kwargs, detached=detached, tangent_strides=strides)

    def _flattened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
        """The leaves of the arguments, and their structure: quick where they are as planned, and tensors."""
        if self._is_flat and len(args) == self._given_by_position and tuple(kwargs) == self._keywords:
            leaves = [*args, *kwargs.values()]
            if all(type(leaf) is torch.Tensor for leaf in leaves):
                return leaves, self._joint.in_spec
        found: tuple[list[Any], pytree.TreeSpec] = pytree.tree_flatten((args, kwargs))
        return found

    def _check_arguments(self, module: nn.Module, leaves: list[Any], spec: pytree.TreeSpec) -> None:
        if spec is not self._joint.in_spec and spec != self._joint.in_spec:
            fault = signature_error(module, *pytree.tree_unflatten(leaves, spec))
            if fault is not None:
                raise InputMismatchError(fault, remedy="pass what its forward takes")
            names = tuple(spec.child(1).context)
            if set(names) != set(self._keywords):
                raise InputMismatchError(
                    f"the keyword arguments are {_listed(names)}; the plan was bound for {_listed(self._keywords)}",
                    remedy="bind again with arguments of these names",
                )
            raise InputMismatchError(
                f"the plan was bound for other arguments: another structure, {counted(len(leaves), 'value')} in all",
                remedy="bind it again with arguments of this structure",
            )
        alike = self._alike  # which another thread may change
        if alike is not None and alike(*leaves):
            return
        given = [meta(leaf) for leaf in leaves]
        wanted = self._joint.arguments
        position = next(
            (number for number, pair in enumerate(zip(given, wanted, strict=True)) if pair[0] != pair[1]), -1
        )
        if position < 0:
            if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
                self._alike = torch_private.quick_check(leaves)
            return
        error = VaryingStepError if list(map(_kind, given)) == list(map(_kind, wanted)) else InputMismatchError
        fixed = not (isinstance(given[position], Meta) and isinstance(wanted[position], Meta))
        raise error(
            f"argument {_path(leaves, spec, position)} is {_described(given[position])}; "
            f"the plan was bound for {_described(wanted[position])}",
            remedy="pass a tensor, such as torch.tensor(5), here and where it is planned: "
            "a plan holds for one value of anything else"
            if fixed
            else "bind again for this input, pad it to the planned shape, or plan with within_budget, "
            "which makes a plan for each shape",
        )

    def _check_same(self, leaves: list[Any], spec: pytree.TreeSpec, own: list[torch.Tensor]) -> None:
        """Raise InputMismatchError if other arguments are one tensor than those that were when the step was traced."""
        tensors = {id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        if self._all_differ and len(tensors) == len(self.shapes) and tensors.isdisjoint(map(id, own)):
            return
        same = same_tensors(leaves, zip(self._own_names, own, strict=True))
        for position, (now, then) in enumerate(zip(same, self._joint.same, strict=True)):
            if now != then:
                raise InputMismatchError(
                    f"argument {_path(leaves, spec, position)} is {_identity(leaves, spec, now)}; "
                    f"the plan was bound for {_identity(leaves, spec, then)}",
                    remedy="pass a clone, or plan with within_budget, which makes a plan for each",
                )

    def _warn_of_gradients(self, primals: list[Any]) -> None:
        """Warn once if gradients exist, to accumulate into, for which a byte budget has no room."""
        if not self._uncovered_nbytes or self._warned_of_gradients:
            return
        tensors = (primal for primal in primals if isinstance(primal, torch.Tensor))
        if any(tensor.is_leaf and tensor.grad is not None for tensor in tensors):
            self._warned_of_gradients = True
            warn(
                f"parameters have gradients already, {self._uncovered_nbytes:,} B that the budget of "
                f"{self.plan.budget.nbytes:,} B does not cover: plan with grad_accumulation=True, or clear them "
                "with zero_grad(set_to_none=True)"
            )

    def _warn_of_setup(self) -> None:
        """Warn once if kernels run in other ways than those their workspace was measured with."""
        if self._warned_of_setup:
            return
        changed = ""
        if not self._measured_on.startswith("cpu"):
            switches = KERNELS_CHOSEN.now()
            if switches != self._measured_under:
                name, known, now = KERNELS_CHOSEN.changed(self._measured_under, switches)
                changed = f"with {name}={known}, this step runs with {now}"
        elif self._measured_on != cpu_text():
            changed = f"on {self._measured_on}, this step runs on {cpu_text()}"
        if changed:
            self._warned_of_setup = True
            warn(
                f"the plan's workspace was measured {changed}: its peak may lie above or below the prediction; "
                "plan again"
            )


def _check_accumulation(plan: Plan, program: Program) -> None:
    """Raise PlanMismatchError if an accumulating plan frees gradients earlier than the program that runs it."""
    if not plan.budget.grad_accumulation:
        return
    nbytes = accumulating_nbytes(plan.graph, plan.costs, plan.schedule, program.parts)
    if nbytes > plan.peak.total_nbytes:
        raise PlanMismatchError(
            f"the plan frees gradients earlier than this program does: a step that accumulates would hold {nbytes} B "
            f"and not {plan.peak.total_nbytes} B",
            remedy="make the plan again",
        )


def _uncovered_nbytes(plan: Plan, program: Program) -> int:
    """Bytes of existing gradients for which a budget on the total has no room; 0 if it has, or bounds activations."""
    full = plan.graph.parameter_gradient_nbytes
    if plan.budget.scope != "total" or plan.budget.grad_accumulation:
        return 0
    if plan.peak.total_nbytes + full <= plan.budget.nbytes:
        return 0
    return full if accumulating_nbytes(plan.graph, plan.costs, plan.schedule, program.parts) > plan.budget.nbytes else 0


def _named_parameters(module: nn.Module) -> frozenset[str]:
    """The names of the arguments that a forward takes by name, without those of its ``**kwargs``."""
    try:
        parameters = inspect.signature(original(module).forward).parameters.values()
    except (TypeError, ValueError):  # nothing is known of it
        return frozenset()
    return frozenset(each.name for each in parameters if each.kind is not each.VAR_KEYWORD)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(sorted(names)) or "none"


def _path(leaves: list[Any], spec: pytree.TreeSpec, position: int) -> str:
    """The name of an argument leaf in a call: ``0``, ``labels``, ``0['mask'][1]``."""
    named, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(leaves, spec))
    (_, first, *rest), _ = named[position]
    name = first.idx if isinstance(first, pytree.SequenceKey) else first.key
    return f"{name}{pytree.keystr(tuple(rest))}"


def _identity(leaves: list[Any], spec: pytree.TreeSpec, same: int | str | None) -> str:
    if same is None:
        return "a tensor of its own"
    return f"the module's {same!r}" if isinstance(same, str) else f"argument {_path(leaves, spec, same)} itself"


def _kind(given: Any) -> Any:
    """What a `Meta` tells but for sizes; anything else as it is."""
    return given._replace(shape=(), strides=(len(given.shape),)) if isinstance(given, Meta) else given


def _described(given: Any) -> str:
    return str(given) if isinstance(given, Meta) else " ".join(given)
