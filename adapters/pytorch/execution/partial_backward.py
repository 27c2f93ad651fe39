"""The backward of a step whose outputs get other gradients than it was traced with: traced again, it replaces that one.

Eager training runs nothing for an output that the loss leaves out. Zeros as its gradient would not be the same: they
decide the layout of a sum, turn -0.0 into 0.0, and become NaN when multiplied by infinity. So the calls that such a
gradient leads to are left out (absent_gradients.py); where that can't be told, the step is traced again with those
outputs detached. Nor would a gradient be the same that is copied into the layout it was traced with: kernels sum in the
order of the memory, so the step is traced again with the layout that the loss gives.

By then the forward has run and has saved what the plan says; the new trace must have the same forward calls. Its
backward follows the plan's schedule without the steps that have nothing to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from ....planner.errors import AdapterError, OgcPlanError
from ....planner.model import store_all_timeline
from ....planner.plan_file.record import BudgetRecord, Plan
from ....planner.schedule import Schedule, Step, StepKind
from ....planner.simulate import Timeline, simulate
from ....planner.training_graph import BackwardOp, OpCost, TrainingGraph
from ....planner.units import parse_budget
from ..errors import UnsupportedModuleError, warn
from ..joint import Joint, meta
from ..memory.allocations import tensors
from ..memory.inplace_kernels import KERNELS
from ..passes.absent_gradients import without_gradients
from ..step.backward_parts import Part, primals_read
from ..step.op_workspace import Workspace, workspaces
from ..step.step_graph import TracedStep
from .codegen import Program, generate
from .retrace import Retrace, Strides

_REMEDY = "plan a module that returns only what the loss uses, detach the others in it, or pass a larger budget"


class _ViewSpec(NamedTuple):
    """The storage of a saved value, and the view of it that a name is."""

    storages: tuple[int | None, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    kind: tuple[torch.dtype, bool, bool]


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward, and what it takes of the values that the forward kept.

    Attributes:
        tangents: indices of the output gradients that it takes.
        primals: indices of the step's inputs that it takes.
        saved: for each value its index among the step's saved values, and the view to make of it if it differs; None
            where it takes all of them as they are.
        gradients: for each part the primals that get a gradient.
        reads: for each part the primals that it reads and the step does not overwrite itself.
        outputs: indices of the step's saved values that share memory with a model output.
    """

    run: Callable[[list[Any], list[Any], list[Any]], Iterator[list[Any]]]
    tangents: tuple[int, ...]
    primals: tuple[int, ...]
    saved: tuple[tuple[int, _ViewSpec | None], ...] | None
    gradients: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    outputs: frozenset[int]

    def start(self, primals: Mapping[int, Any], saved: list[Any], tangents: list[Any]) -> Iterator[list[Any]]:
        """Start it. ``saved`` is emptied: this backward alone holds the values that it takes."""
        if self.saved is None:
            taken = saved.copy()
        else:
            taken = [
                saved[position] if look is None else saved[position].as_strided(look.shape, look.strides, look.offset)
                for position, look in self.saved
            ]
        saved.clear()
        return self.run([primals[i] for i in self.primals], taken, [tangents[i] for i in self.tangents])


def full_backward(program: Program, joint: Joint) -> Backward:
    """The backward in which every output has a gradient."""
    count = sum(tangent is not None for tangent in joint.tangents)
    gradients = tuple(part.primals for part in program.parts)
    reads, outputs = _reads(program, joint), frozenset(program.saved_outputs)
    return Backward(program.backward, tuple(range(count)), program.backward_primals, None, gradients, reads, outputs)


def _reads(program: Program, joint: Joint) -> tuple[tuple[int, ...], ...]:
    """For each part of a backward the primals that it reads, except those that the step overwrites itself."""
    kept = set(program.backward_primals) - joint.overwritten
    return tuple(tuple(primal for primal in part.reads if primal in kept) for part in program.parts)


@dataclass(frozen=True, slots=True)
class Given:
    """The gradients that a loss gives, where they are not those that the step was traced with.

    Attributes:
        absent: the output gradients that are not given.
        strides: for each output gradient its strides, None if it has those of the trace or is absent.
    """

    absent: frozenset[int]
    strides: tuple[Strides | None, ...]

    @property
    def as_traced(self) -> bool:
        """Whether they are those that the step was traced with."""
        return not self.absent and not any(self.strides)


class PartialBackwards:
    """Makes the backward for gradients unlike those of the trace when they first occur, and keeps it.

    ``visible`` is the workspace of the planned step that a meter of tensors sees.
    """

    def __init__(self, step: TracedStep, plan: Plan, visible: tuple[Workspace, ...], program: Program) -> None:
        self._step, self._plan, self._visible, self._program = step, plan, visible, program
        self._known: dict[Given, Backward] = {}

    def backward(self, given: Given, retrace: Retrace) -> Backward:
        """The backward for the gradients that are given.

        Raises UnsupportedModuleError if its forward is not the one that has run, or if it does not fit.
        """
        if given not in self._known:
            self._known[given] = self._make(given, retrace)
        return self._known[given]

    def _make(self, given: Given, retrace: Retrace) -> Backward:
        positions, absent = _positions(self._step), given.absent
        if len(absent) == len(positions):
            parts = self._program.parts
            nothing: tuple[tuple[int, ...], ...] = ((),) * len(parts)
            return Backward(lambda *_: iter([[] for _ in parts]), (), (), (), nothing, nothing, frozenset())
        outputs = frozenset(positions[position] for position in absent)
        strides = [strides for position, strides in enumerate(given.strides) if position not in absent]
        if not any(strides) and (joint := without_gradients(self._step.joint, outputs)) is not None:
            with suppress(OgcPlanError):  # the calls of a step that is traced again may come in another order
                return self._following(joint, given)
        try:
            return self._following(retrace(outputs, strides if any(strides) else ()), given)
        except OgcPlanError as error:
            if not absent:
                raise
            raise UnsupportedModuleError(
                f"the loss {_left_out(given, self._step)}, and the backward without it cannot be run: {error.message}",
                remedy=_REMEDY,
            ) from error

    def _following(self, joint: Joint, given: Given) -> Backward:
        """The backward of ``joint``, by the plan. Raises OgcPlanError where it cannot follow it."""
        step = TracedStep(joint, like=self._step)
        return _Follower(self._step, step, self._plan, self._visible, self._program).backward(given)


def _positions(step: TracedStep) -> list[int]:
    """The outputs that take a gradient."""
    return [position for position, tangent in enumerate(step.joint.tangents) if tangent is not None]


def _left_out(given: Given, step: TracedStep) -> str:
    positions = _positions(step)
    names = ", ".join(str(positions[position]) for position in sorted(given.absent))
    return f"leaves out output {names}" if names else ""


class _Follower:
    """Makes ``step`` continue where the forward of ``planned`` ended, by the rest of the plan's schedule."""

    def __init__(
        self, planned: TracedStep, step: TracedStep, plan: Plan, visible: tuple[Workspace, ...], program: Program
    ) -> None:
        self.planned, self.step, self.plan, self.visible, self.program = planned, step, plan, visible, program
        self.position = {op.name: index for index, op in enumerate(planned.ops)}
        # Views that are only returned are traced after the backward, so their numbers depend on it.
        outputs = zip(step.joint.outputs, planned.joint.outputs, strict=True)
        run = {node.name for op in step.ops for node in op.runs}
        known = {mine.name: theirs.name for mine, theirs in outputs if isinstance(mine, fx.Node)}
        self.names = [op.name if op.name in run else known.get(op.name, op.name) for op in step.ops]
        self.op_of = {self.position.get(name, ~index): index for index, name in enumerate(self.names)}
        theirs, mine = _storages(planned, [op.name for op in planned.ops]), _storages(step, self.names)
        self.storage_of = {theirs[key]: storage for key, storage in mine.items() if key in theirs}
        if _primals(planned) != _primals(step):
            raise _CannotFollow("it has other inputs then")
        ran = _forward(planned)
        for name, call in _forward(step).items():
            if ran.get(name) != call:
                raise _CannotFollow(f"{name} is traced otherwise then")

    def backward(self, given: Given) -> Backward:
        """The backward for the gradients that are given.

        In the layout of the trace they would be copies, which no plan counts: so much may kernels copy in their place.
        """
        schedule, ends = self._schedule()
        seeds = [self.planned.graph.gradients[seed].nbytes for seed in self.planned.graph.seeds]
        kept = [nbytes for position, nbytes in enumerate(seeds) if position not in given.absent]
        moved = sum(nbytes for nbytes, strides in zip(seeds, given.strides, strict=True) if strides)
        why = f"the loss {_left_out(given, self.planned) or 'gives a gradient in another layout'}"
        self._check_peak(schedule, kept, moved, why)
        program = generate(self.step, schedule, parts=tuple(self._parts(schedule, ends)))
        saved = tuple(self._saved(value) for value in program.saved)
        return Backward(
            program.backward,
            tuple(position for position in range(len(seeds)) if position not in given.absent),
            program.backward_primals,
            saved,
            tuple(part.primals for part in program.parts),
            _reads(program, self.step.joint),
            frozenset(position for position, _ in saved).intersection(self.program.saved_outputs),
        )

    def _schedule(self) -> tuple[Schedule, list[int]]:
        """The plan's schedule for the ops of the new trace, and where each part of its backward ends.

        A view may have a backward that it did not have before: a gradient is copied if its layout differs.
        """
        planned = {(step.kind, step.index) for step in self.plan.schedule}
        mine = dict(enumerate(self.step.ops))
        theirs = {mine: theirs for theirs, mine in self.op_of.items()}
        steps = [Step(StepKind.FORWARD, i) for i in mine if (StepKind.FORWARD, theirs[i]) not in planned]
        new = [i for i in mine if mine[i].backward and (StepKind.BACKWARD, theirs[i]) not in planned]
        ends, waiting = [], [part.end for part in self.program.parts]
        for position, step in enumerate(self.plan.schedule):
            if step.kind is StepKind.FREE and not step.random_state:
                if step.index in self.storage_of:
                    steps.append(replace(step, index=self.storage_of[step.index]))
            elif step.index in self.op_of:
                index = self.op_of[step.index]
                while step.kind is StepKind.BACKWARD and new and new[-1] > index:
                    steps.append(Step(StepKind.BACKWARD, new.pop()))
                if step.kind is not StepKind.BACKWARD or self.step.ops[index].backward:
                    steps.append(replace(step, index=index))
            if waiting and waiting[0] == position:
                if waiting.pop(0) and not waiting:
                    steps += [Step(StepKind.BACKWARD, index) for index in reversed(new)]
                ends.append(len(steps) - 1)
        steps, ends = _once_complete(self.step.graph, steps, ends)
        return Schedule(tuple(steps)), ends

    def _parts(self, schedule: Schedule, ends: list[int]) -> Iterator[Part]:
        """The parts of the plan's backward with the gradients and reads of the new trace."""
        read = primals_read(self.step, schedule)
        begin = 0
        position = {primal: number for number, (primal, _) in enumerate(self.step.joint.gradients)}
        for part, end in zip(self.program.parts, ends, strict=True):
            primals = tuple(primal for primal in part.primals if primal in position)
            reads = tuple(sorted(set().union(*read[begin : end + 1])))
            gradients = tuple(position[primal] for primal in primals)
            yield replace(part, end=end, gradients=gradients, primals=primals, reads=reads)
            begin = end + 1

    def _check_peak(self, schedule: Schedule, seeds_nbytes: Sequence[int], copies_nbytes: int, why: str) -> None:
        """Raise if the backward needs more memory than the plan, and than its budget, copies of gradients aside.

        The gaps of a gradient are the caller's.
        """
        storages = list(self.step.graph.storages)
        for theirs, mine in self.storage_of.items():  # measured storages may be larger than traced
            storages[mine] = replace(storages[mine], nbytes=self.planned.graph.storages[theirs].nbytes)
        gradients = list(self.step.graph.gradients)
        for seed, nbytes in zip(self.step.graph.seeds, seeds_nbytes, strict=True):
            gradients[seed] = replace(gradients[seed], nbytes=nbytes)
        graph = replace(
            self.step.graph,
            storages=tuple(storages),
            gradients=tuple(gradients),
            stationary=self.plan.graph.stationary,
        )
        costs = tuple(self._costs())
        peak = simulate(graph, costs, schedule)
        planned, budget = self.plan.peak, self.plan.budget
        if peak.peak_total_nbytes > planned.total_nbytes or peak.peak_activation_nbytes > planned.activation_nbytes:
            held = _in_scope(budget, peak)
            if held <= budget.nbytes + copies_nbytes:
                return
            if held > self._allowed_nbytes(graph, costs, held) + copies_nbytes:
                raise _CannotFollow(f"it takes {held:,} B, and the budget is {budget.nbytes:,} B")
            warn(f"{why}: this step takes {held:,} B; the budget of the one that was planned is {budget.nbytes:,} B")

    def _allowed_nbytes(self, graph: TrainingGraph, costs: tuple[OpCost, ...], held: int) -> int:
        """The bytes that the budget allows this step: a share is of its own peak; ``"min"`` is what can be reached."""
        budget = self.plan.budget
        text = parse_budget(budget.text)
        if text.nbytes is not None:
            return budget.nbytes
        if text.minimum:
            return held  # it follows the plan of the smallest peak that was found
        _, everything = store_all_timeline(graph, costs)
        planned = self.plan.peak
        whole = planned.store_all_total_nbytes if budget.scope == "total" else planned.store_all_activation_nbytes
        return budget.nbytes * _in_scope(budget, everything) // whole

    def _costs(self) -> Iterator[OpCost]:
        """The cost of each op: temporaries of the new trace, and memory inside calls as measured for the plan.

        A call that was not measured, on tensors of another layout, may copy them; it is charged for the copies.
        """
        known = {_signature(node) for node in self.planned.calls}
        found = zip(self.names, self.step.ops, workspaces(self.step, None), strict=True)
        for name, op, (_, backward, activations) in found:
            cost, seen = OpCost(0, 0, 0, 0, 0), Workspace(0, 0, 0)
            if name in self.position:
                cost, seen = self.plan.costs[self.position[name]], self.visible[self.position[name]]
            new = [node for node in op.backward if isinstance(node, fx.Node) and _signature(node) not in known]
            copies = max((_copied_nbytes(node) for node in new), default=0)
            inside = max(0, cost.backward_workspace_nbytes - seen.backward_nbytes)
            activation_inside = cost.backward_activation_workspace_nbytes
            activation_inside = (
                cost.backward_workspace_nbytes if activation_inside is None else activation_inside
            ) - seen.backward_activation_nbytes
            yield OpCost(
                cost.forward_ns,
                cost.backward_ns,
                cost.forward_workspace_nbytes,
                backward + copies + inside,
                activations + copies + max(0, activation_inside),
            )

    def _saved(self, value: fx.Node | int) -> tuple[int, _ViewSpec | None]:
        """The index of a value, or of an op's generator state, among those that the plan's forward saved."""
        for position, kept in enumerate(self.program.saved):
            if isinstance(value, int) and isinstance(kept, int) and self.op_of.get(kept) == value:
                return position, None
        if isinstance(value, fx.Node):
            wanted = _view_spec(self.step, value, self.step.storage_of)
            here = {allocation: self.storage_of.get(storage) for allocation, storage in self.planned.storage_of.items()}
            looks = [
                (_view_spec(self.planned, kept, here), position)
                for position, kept in enumerate(self.program.saved)
                if isinstance(kept, fx.Node)
            ]
            for look, position in looks:
                if look == wanted:
                    return position, None
            for look, position in looks:
                if (look.storages, look.kind) == (wanted.storages, wanted.kind):
                    return position, wanted
        raise _CannotFollow(f"it needs {value}, which the plan does not save")


def _once_complete(graph: TrainingGraph, steps: list[Step], ends: list[int]) -> tuple[list[Step], list[int]]:
    """The steps, with each backward after those that make what it takes, and where each part ends then.

    The plan may run a backward earlier, if what is left out made it wait for other ones. What it reads is freed later.
    """
    backwards = [op.backward for op in graph.ops if op.backward is not None]
    missing = Counter(edge.gradient for backward in backwards for edge in backward.gives)
    missing.update(total.result for backward in backwards for total in backward.sums)
    made: list[tuple[int, Step]] = []  # the position of each step in the plan's order, and the step
    late: list[tuple[int, Step]] = []

    def backward_of(step: Step) -> BackwardOp | None:
        return graph.ops[step.index].backward if step.kind is StepKind.BACKWARD else None

    def waits(step: Step) -> bool:
        if step.kind is StepKind.FREE and not step.random_state:
            found = (backward_of(other) for _, other in late)
            return any(backward is not None and step.index in backward.reads for backward in found)
        backward = backward_of(step)
        if backward is None:
            return False
        own = Counter(edge.gradient for edge in backward.gives)
        operands = (operand for total in backward.sums for operand in total.operands)
        return any(missing[taken] for taken in backward.takes) or any(missing[each] > own[each] for each in operands)

    def run(position: int, step: Step) -> None:
        made.append((position, step))
        backward = backward_of(step)
        if backward is not None:
            missing.subtract(edge.gradient for edge in backward.gives)
            missing.subtract(total.result for total in backward.sums)

    for position, step in enumerate(steps):
        if waits(step):
            late.append((position, step))
            continue
        run(position, step)
        while (ready := next((each for each in late if not waits(each[1])), None)) is not None:
            late.remove(ready)
            run(*ready)
    made += late
    at = {position: number for number, (position, _) in enumerate(made)}
    return [step for _, step in made], [max((at[each] for each in range(end + 1)), default=-1) for end in ends]


def _in_scope(budget: BudgetRecord, peak: Timeline) -> int:
    return peak.peak_total_nbytes if budget.scope == "total" else peak.peak_activation_nbytes


class _CannotFollow(AdapterError):
    """Why a backward cannot follow the plan."""

    def __init__(self, message: str) -> None:
        super().__init__(message, remedy=_REMEDY)


def _storages(step: TracedStep, names: Sequence[str]) -> dict[tuple[str, int], int]:
    """The storages by the name of the op that makes them."""
    pairs = zip(names, step.graph.ops, strict=True)
    return {(name, number): made for name, traced in pairs for number, made in enumerate(traced.writes)}


def _primals(step: TracedStep) -> list[tuple[str, str, int]]:
    return [(primal.kind, primal.name, primal.index) for primal in step.joint.primals]


def _forward(step: TracedStep) -> dict[str, Any]:
    """The forward calls by op: each call, where its arguments come from, and what writes over its result."""

    def source(node: fx.Node) -> Any:
        makers = [step.allocations.entries[allocation].node for allocation in step.allocations.of[node]]
        return [maker.name for maker in makers], _layouts(node)

    def call(node: fx.Node) -> str:
        return repr((str(node.target), fx.map_arg((node.args, node.kwargs), source)))

    return {op.name: ([call(node) for node in op.runs], [node.name for node in op.fused]) for op in step.ops if op.runs}


def _view_spec(step: TracedStep, node: fx.Node, storage_of: Mapping[int, int | None]) -> _ViewSpec:
    (tensor,) = tensors(node)
    storages = tuple(storage_of[allocation] for allocation in step.allocations.of[node])
    kind = tensor.dtype, tensor.is_conj(), tensor.is_neg()
    return _ViewSpec(storages, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), kind)


def _signature(node: fx.Node) -> str:
    return repr((str(node.target), fx.map_arg((node.args, node.kwargs), _layouts)))


def _layouts(node: fx.Node) -> list[Any]:
    return [tuple(meta(tensor))[:4] for tensor in tensors(node)]


def _copied_nbytes(node: fx.Node) -> int:
    if node.target in KERNELS or {torch.Tag.pointwise, torch.Tag.reduction} & set(getattr(node.target, "tags", ())):
        return 0  # works on tensors of any layout
    given = (tensor for argument in node.all_input_nodes for tensor in tensors(argument))
    return sum(tensor.numel() * tensor.element_size() for tensor in given if not tensor.is_contiguous())
