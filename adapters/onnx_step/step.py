"""The schedule of a plan, step by step, as nodes: forwards, recomputations, the loss, backwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...planner.errors import UsageError
from ...planner.graph import View
from ...planner.onnx_import.reader import ForwardCalls
from ...planner.onnx_import.values.values import Call, Value
from ...planner.schedule import Schedule, StepKind
from ...planner.training_graph import TrainingGraph
from .forward.forward_table import forward
from .gradients.backward_call import Backward, Sources
from .gradients.gradient_table import gradient_of
from .gradients.moving import unviewed
from .losses import Loss, Seeds, chosen_output, write_loss
from .nodes.call_view import CallView, refused
from .nodes.writer import Tensor, Writer
from .values import StepValues


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """The nodes of a step. ``gradients`` and ``statistics`` go by the names of parameters and running statistics."""

    writer: Writer
    stored: dict[str, tuple[Tensor, np.ndarray]]
    inputs: tuple[Tensor, ...]
    seeds: Seeds
    outputs: tuple[tuple[str, Tensor], ...]
    gradients: dict[str, Tensor]
    statistics: dict[str, Tensor]


def write_step(
    schedule: Schedule, training: TrainingGraph, read: ForwardCalls, folder: Path, loss: Loss
) -> WrittenStep:
    """Write a step. Raises UnsupportedOpError for an op without a gradient function, UsageError for a wrong loss."""
    return _StepWriter(schedule, training, read, folder, loss).run()


@dataclass(slots=True)
class _Run:
    """The last run of a call: what it made for its backward, and operands that the backward may take from it."""

    hidden: tuple[Tensor, ...]
    operands: dict[int, Tensor]


class _StepWriter:
    def __init__(
        self, schedule: Schedule, training: TrainingGraph, read: ForwardCalls, folder: Path, loss: Loss
    ) -> None:
        self._schedule, self._training, self._read, self._loss = schedule, training, read, loss
        self._values = StepValues(read, folder)
        self._w = self._values.writer
        graph = read.graph
        self._calls = [self._values.makers[graph.tensors[graph.ops[op.forward].outputs[0]].name] for op in training.ops]
        self._storage = {name: index for index, names in enumerate(training.aliases) for name in names}
        self._runs: dict[int, _Run] = {}
        self._count: Counter[int] = Counter()
        self._alive: set[int] = set()
        self._gradients: dict[str, Tensor] = {}
        self._statistics: dict[str, Tensor] = {}
        for op, call in zip(training.ops, self._calls, strict=True):
            if op.backward is not None and gradient_of(call) is None:
                raise refused(call, "it has no gradient function")
        if loss.kind != "gradients":
            chosen_output(loss, read.outputs)

    def run(self) -> WrittenStep:
        """Go through the schedule."""
        seeds: Seeds | None = None
        outputs: list[tuple[str, Tensor]] = []
        for step in self._schedule:
            if step.kind is StepKind.FREE:
                if not step.random_state:
                    self._values.free(self._training.aliases[step.index])
                    self._alive.discard(step.index)
                continue
            if step.kind is StepKind.BACKWARD and seeds is None:
                outputs, seeds = self._between()
            call = self._calls[step.index]
            if step.kind is StepKind.BACKWARD:
                self._values.next_step(f"{call.name}/backward")
                self._backward(step.index, call)
            elif call.view is View.NONE:
                self._count[step.index] += 1
                again = f"/again{self._count[step.index]}" if self._count[step.index] > 1 else ""
                self._values.next_step(call.name + again)
                self._forward(step.index, call)
        if seeds is None:
            outputs, seeds = self._between()
        inputs = tuple(self._values.of(value) for value in self._read.inputs)
        trained = {name: g for name, g in self._gradients.items() if name in self._values.stored}
        if not trained:
            raise UsageError(
                f"no trained parameter has a part in the {self._loss.kind} loss, so the step would train nothing",
                remedy="pass --loss-output with another output, or plan the model with fewer --frozen ones",
            )
        return WrittenStep(self._w, self._values.stored, inputs, seeds, tuple(outputs), trained, self._statistics)

    def _between(self) -> tuple[list[tuple[str, Tensor]], Seeds]:
        """The loss, once every output is there."""
        self._values.next_step("loss")
        outputs = list(dict.fromkeys(self._read.outputs))
        pairs = [(value, self._values.of(value)) for value in outputs]
        differentiated = {
            output.name
            for op, call in zip(self._training.ops, self._calls, strict=True)
            if op.backward is not None
            for output in call.outputs
        }
        trained = frozenset(
            value.name for value in outputs if value.is_float and self._values.base(value).name in differentiated
        )
        seeds = write_loss(self._loss, pairs, trained, self._w)
        for value, gradient in seeds.gradients:
            self._give(value, gradient)
        return [(value.name, tensor) for value, tensor in pairs], seeds

    def _forward(self, index: int, call: Call) -> None:
        op = self._training.ops[index]
        made = forward(call, self._values.opset, self._w, self._values.of)
        self._values.enter(zip(call.outputs, made.outputs, strict=True))
        self._alive.update(op.writes)
        if op.backward is not None:
            visible = set(op.backward.reads)
            kept = {
                position: tensor
                for position, value in enumerate(call.inputs)
                if value is not None
                and self._storage.get(value.name) not in visible
                and (tensor := self._values.at_hand(value)) is not None
            }
            self._runs[index] = _Run(made.hidden, kept)
        if call.op_type == "BatchNormalization" and self._count[index] == 1 and made.hidden:
            self._move_statistics(call, *made.hidden)

    def _move_statistics(self, call: Call, mean: Tensor, variance: Tensor) -> None:
        """Running statistics after the first run; the variance without the bias of the batch, as torch moves it."""
        view = CallView(call, self._values.opset)
        momentum = float(view.attr("momentum", 0.9))
        count = int(np.prod(view.shape)) // max(view.shape[1] if view.rank > 1 else 1, 1)
        for position, found in ((3, mean), (4, variance * (count / max(count - 1, 1)))):
            value = view.operand(position)
            old = self._statistics.get(value.name) or self._values.of(value)
            self._statistics[value.name] = old * momentum + found * (1 - momentum)

    def _backward(self, index: int, call: Call) -> None:
        backward = self._training.ops[index].backward
        assert backward is not None
        arriving = {at: self._gradients.get(output.name) for at, output in enumerate(call.outputs)}
        if any(gradient is not None for gradient in arriving.values()):
            needed = frozenset(edge.position for edge in backward.gives)
            sources = self._sources(index, call, arriving)
            function = gradient_of(call)
            assert function is not None
            function(Backward(call, self._values.opset, needed, sources, self._w))
        for output in call.outputs:
            self._gradients.pop(output.name, None)

    def _sources(self, index: int, call: Call, arriving: dict[int, Tensor | None]) -> Sources:
        """Ways to tensors that refuse what the planner's rule of the op does not charge."""
        op = self._training.ops[index]
        assert op.backward is not None
        visible, run = set(op.backward.reads), self._runs.get(index, _Run((), {}))
        hidden = [storage for storage in op.writes[len(call.outputs) :] if storage in self._alive]
        free = sorted(hidden, key=lambda storage: self._training.storages[storage].nbytes)
        claimed: dict[object, Tensor] = {}

        def claim(key: object, tensor: Tensor) -> Tensor:
            if key not in claimed:
                fits = [s for s in free if self._training.storages[s].nbytes >= tensor.nbytes]
                if not fits:
                    raise refused(call, f"its gradient reads {key}, more than its rule charges")
                free.remove(fits[0])
                claimed[key] = tensor
            return claimed[key]

        def found(value: Value, key: object, position: int) -> Tensor:
            storage = self._storage.get(value.name)
            if storage is None or storage in visible:
                return self._values.of(value)
            if position not in run.operands:
                raise refused(call, f"its gradient reads {key}, which its rule does not charge")
            return claim(key, run.operands[position])

        def read(position: int) -> Tensor:
            value = call.inputs[position]
            assert value is not None
            return found(value, f"input {position}", position)

        return Sources(
            read,
            lambda position: found(call.outputs[position], f"output {position}", -1),
            lambda position: claim(f"hidden buffer {position}", run.hidden[position]),
            lambda position: arriving.get(position),
            lambda position, gradient: self._give_to(call.inputs[position], gradient),
            lambda position: self._storage.get(call.outputs[position].name) in visible,
        )

    def _give_to(self, value: Value | None, gradient: Tensor) -> None:
        assert value is not None
        self._give(value, gradient)

    def _give(self, value: Value, gradient: Tensor) -> None:
        """Add to the gradient of a value; that of a bijective view goes to what it is a view of."""
        assert gradient.shape == tuple(value.shape), f"{value.name}: {gradient.shape} for {value.shape}"
        call = self._values.makers.get(value.name)
        while call is not None and call.view is View.WHOLE and call.inputs[0] is not None:
            gradient = unviewed(CallView(call, self._values.opset), gradient)
            value = call.inputs[0]
            call = self._values.makers.get(value.name)
        old = self._gradients.get(value.name)
        self._gradients[value.name] = gradient if old is None else old + gradient
