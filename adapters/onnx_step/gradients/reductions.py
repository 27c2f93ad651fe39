"""Reductions, softmax, cumulative sums and choices of elements."""

from __future__ import annotations

from ..forward.upgrade import softmax_axes
from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable


def _kept(call: Backward, tensor: Tensor) -> Tensor:
    """A result with its reduced dimensions as ones."""
    axes = call.axes()
    return tensor.reshape([1 if axis in axes else size for axis, size in enumerate(call.shape)])


def _total(call: Backward) -> None:
    call.give(0, _kept(call, call.g).expand(call.shape))


def _mean(call: Backward) -> None:
    count = 1
    for axis in call.axes():
        count *= call.shape[axis]
    call.give(0, (_kept(call, call.g) * (1.0 / max(count, 1))).expand(call.shape))


def _sum_square(call: Backward) -> None:
    call.give(0, call.x() * (_kept(call, call.g) * 2.0))


def _extremum(call: Backward) -> None:
    """Equal extrema share the gradient, as torch.amax does."""
    hits = call.w.op("Equal", call.x(), _kept(call, call.y())).cast(call.dtype)
    call.give(0, hits * (_kept(call, call.g) / hits.sum(call.axes())))


def _norm1(call: Backward) -> None:
    call.give(0, call.x().apply("Sign") * _kept(call, call.g))


def _norm2(call: Backward) -> None:
    y = _kept(call, call.y())
    share = call.w.op("Equal", y, 0.0).where(0.0, _kept(call, call.g) / y)
    call.give(0, call.x() * share)


def _log_sum_exp(call: Backward) -> None:
    call.give(0, (call.x() - _kept(call, call.y())).apply("Exp") * _kept(call, call.g))


def _log_of_sum(call: Backward) -> None:
    call.give(0, _kept(call, call.g / call.hidden(0)).expand(call.shape))


def _product(call: Backward) -> None:
    """The product of all other elements, as quotients: an element that is zero has no gradient here."""
    call.give(0, _kept(call, call.g * call.y()) / call.x())


def _softmax(call: Backward) -> None:
    shape, axis = softmax_axes(call)
    y, g = call.y().reshape(shape), call.g.reshape(shape)
    if call.call.op_type == "Softmax":
        made = (g - (g * y).sum((axis,))) * y
    else:
        made = g - y.apply("Exp") * g.sum((axis,))
    call.give(0, made.reshape(call.shape))


def _cumulated_sum(call: Backward) -> None:
    axis = call.w.constant(call.known(1).reshape(()))
    turned, exclusive = 1 - int(call.attr("reverse", 0)), int(call.attr("exclusive", 0))
    call.give(0, call.w.op("CumSum", call.g, axis, shape=call.shape, dtype=call.g.dtype, reverse=turned,
                           exclusive=exclusive))  # fmt: skip


def _top(call: Backward) -> None:
    zeros = call.w.full(call.shape, 0.0, call.dtype)
    call.give(0, call.w.op("ScatterElements", zeros, call.y(1), call.g, shape=call.shape, axis=call.axis(-1)))


def _global_average(call: Backward) -> None:
    count = 1
    for size in call.shape[2:]:
        count *= size
    call.give(0, (call.g * (1.0 / max(count, 1))).expand(call.shape))


REDUCTIONS: GradientTable = {
    "ReduceSum": _total,
    "ReduceMean": _mean,
    "ReduceSumSquare": _sum_square,
    "ReduceMax": _extremum,
    "ReduceMin": _extremum,
    "ReduceL1": _norm1,
    "ReduceL2": _norm2,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceLogSum": _log_of_sum,
    "ReduceProd": _product,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "CumSum": _cumulated_sum,
    "TopK": _top,
    "GlobalAveragePool": _global_average,
}
