"""What a step computes between forward and backward: a loss and its gradient, or gradients that are handed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps as quoted
from math import prod

import numpy as np

from ...planner.errors import UsageError
from ...planner.onnx_import.values.values import Value
from .nodes.writer import Tensor, Writer

LOSSES = ("mse", "cross_entropy", "gradients")
TARGET = "target"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of one output, the first unless named. The classes of ``cross_entropy`` lie along ``class_axis``."""

    kind: str = "mse"
    output: str | None = None
    class_axis: int = 1


@dataclass(frozen=True, slots=True)
class Seeds:
    """Further inputs of the step, the loss, the gradient of each output that has one, and the number of classes."""

    inputs: tuple[Tensor, ...]
    loss: Tensor | None
    gradients: tuple[tuple[Value, Tensor], ...]
    classes: int | None = None


def chosen_output(loss: Loss, outputs: Sequence[Value]) -> Value:
    """The output that a loss is of. Raises UsageError for a kind or a name that is unknown."""
    if loss.kind not in LOSSES:
        raise UsageError(f"loss {loss.kind!r} is unknown", remedy=f"choose one of {', '.join(LOSSES)}")
    names = [value.name for value in outputs]
    if loss.output is not None and loss.output not in names:
        raise UsageError(
            f"--loss-output {loss.output!r} is no output of the model",
            remedy=f"pass one of {', '.join(map(quoted, names))}",
        )
    value = outputs[0 if loss.output is None else names.index(loss.output)]
    if not value.is_float:
        raise UsageError(
            f"output {quoted(value.name)} is of type {value.dtype}, which has no loss", remedy="pass --loss gradients"
        )
    if loss.kind == "cross_entropy" and not -len(value.shape) <= loss.class_axis < len(value.shape):
        raise UsageError(
            f"--class-axis {loss.class_axis} is no dimension of output {quoted(value.name)} {value.shape}",
            remedy="pass --class-axis -1",
        )
    return value


def write_loss(loss: Loss, outputs: Sequence[tuple[Value, Tensor]], trained: frozenset[str], writer: Writer) -> Seeds:
    """Write the nodes of a loss; ``trained`` are the outputs that parameters have a part in."""
    if loss.kind == "gradients":
        made = []
        for value, tensor in outputs:
            if value.name in trained:
                name = writer.fresh(f"gradient of {value.name}")
                made.append((value, writer.tensor(name, tensor.shape, tensor.dtype)))
        return Seeds(tuple(tensor for _, tensor in made), None, tuple(made))
    chosen = chosen_output(loss, [value for value, _ in outputs])
    predicted = next(tensor for value, tensor in outputs if value is chosen)
    target, result, gradient = (_mean_square if loss.kind == "mse" else _cross_entropy)(loss, predicted, writer)
    classes = predicted.shape[loss.class_axis] if loss.kind == "cross_entropy" else None
    return Seeds((target,), result, ((chosen, gradient),), classes)


def _mean_square(loss: Loss, predicted: Tensor, writer: Writer) -> tuple[Tensor, Tensor, Tensor]:
    target = writer.tensor(writer.fresh(TARGET), predicted.shape, predicted.dtype)
    difference = predicted - target
    result = (difference * difference).mean(keep=False) if predicted.rank else difference * difference
    return target, result, difference * (2.0 / max(prod(predicted.shape), 1))


def _cross_entropy(loss: Loss, predicted: Tensor, writer: Writer) -> tuple[Tensor, Tensor, Tensor]:
    """The mean over all labels of minus the logarithm of the softmax at the label; class numbers are int64."""
    axis = loss.class_axis % predicted.rank
    shape = (*predicted.shape[:axis], *predicted.shape[axis + 1 :])
    target = writer.tensor(writer.fresh(TARGET), shape, "int64")
    logs = predicted.apply("LogSoftmax", axis=axis)
    labels = target.reshape((*shape[:axis], 1, *shape[axis:]))
    picked = writer.op("GatherElements", logs, labels, shape=labels.shape, dtype=logs.dtype, axis=axis)
    share = 1.0 / max(prod(shape), 1)
    result = -(picked.mean(keep=False))
    probabilities = logs.apply("Exp") * share
    minus = writer.constant(np.asarray(-share, predicted.dtype)).expand(labels.shape)
    gradient = writer.op(
        "ScatterElements", probabilities, labels, minus, shape=predicted.shape, dtype=predicted.dtype, axis=axis,
        reduction="add",
    )  # fmt: skip
    return target, result, gradient
