"""Losses of class labels that are part of a file."""

from __future__ import annotations

import numpy as np

from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable


def _cross_entropy(call: Backward) -> None:
    """(softmax - one hot) times the share of each sample."""
    if call.arriving(1) is not None:
        raise call.refused("a gradient of its log-probabilities is not passed on")
    logs = call.y(1) if len(call.call.outputs) > 1 else call.x(0).apply("LogSoftmax", axis=1)
    share, hits = _shares(call, logs)
    call.give(0, (logs.apply("Exp") - hits) * share)


def _negative_log_likelihood(call: Backward) -> None:
    share, hits = _shares(call, call.x(0))
    call.give(0, -(hits * share))


def _shares(call: Backward, logs: Tensor) -> tuple[Tensor, Tensor]:
    """What the loss gives to each sample, and ones where the labels are."""
    labels = call.x(1).cast("int64")
    classes = call.shape[1]
    one_hot = call.w.op(
        "OneHot", labels, call.w.ints((classes,)), call.w.constant(np.asarray([0, 1], call.dtype)),
        shape=(*labels.shape, classes), dtype=call.dtype, axis=-1,
    )  # fmt: skip
    hits = one_hot.transpose((0, labels.rank, *range(1, labels.rank)))
    ignored = call.attr("ignore_index")
    counted = None
    if ignored is not None:
        counted = call.w.op("Equal", labels, call.w.constant(np.asarray(ignored, np.int64))).where(0.0, 1.0, call.dtype)
    weights = None
    if call.has(2):
        shape = (1, classes, *(1,) * (call.rank - 2))
        weights = (hits * call.x(2).reshape(shape)).sum((1,), keep=False)
        counted = weights if counted is None else weights * counted
    how = str(call.attr("reduction", "mean"))
    g = call.g
    if how == "mean":
        number = float(labels.nbytes // 8)
        g = g / (number if counted is None else counted.sum(keep=False))
    if counted is not None:
        g = counted * g
    if g.rank:
        g = g.reshape((labels.shape[0], 1, *labels.shape[1:]))
    return g, hits


LOSSES: GradientTable = {
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
}
