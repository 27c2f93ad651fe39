"""Reductions, cumulative ops and choices of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .node import Builder, Node, Run, Table, torch_dtype

_Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _axes(node: Node) -> tuple[int, ...] | None:
    """The reduced dimensions; None for an op that reduces nothing."""
    axes = node.ints("axes", 1)
    if not axes:
        return None if node.attr("noop_with_empty_axes", 0) else tuple(range(node.rank))
    return tuple(axis % max(node.rank, 1) for axis in axes)


def _reduction(reduce: _Reduce, alone: Run = lambda x: x) -> Builder:
    """An op of one input; ``alone`` is what it does to single elements."""

    def build(node: Node) -> Run:
        axes, keep, dtype = _axes(node), bool(node.attr("keepdims", 1)), torch_dtype(node.call.outputs[0].dtype)
        if axes is None or not axes:
            return lambda x, *_: alone(x).clone()
        return lambda x, *_: reduce(x, axes, keep).to(dtype)

    return build


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if len(axes) == x.dim() and not keep:
        return x.prod()
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _norm(power: float) -> _Reduce:
    def reduce(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        if x.is_floating_point():
            return torch.linalg.vector_norm(x, power, axes, keepdim=keep)
        return torch.linalg.vector_norm(x.double(), power, axes, keepdim=keep)

    return reduce


def _mean(node: Node) -> Run:
    axes, keep, dtype = _axes(node), bool(node.attr("keepdims", 1)), node.out_dtype
    if axes is None or not axes:
        return lambda x, *_: x.to(dtype)
    wide = None if node.call.outputs[0].dtype == node.operand(0).dtype else dtype
    return lambda x, *_: x.mean(axes, keepdim=keep, dtype=wide)


def _chosen(choose: Any) -> Builder:
    def build(node: Node) -> Run:
        axis, keep = node.axis(0), bool(node.attr("keepdims", 1))
        if node.attr("select_last_index", 0):
            size = node.shape()[axis]
            return lambda x: size - 1 - choose(x.flip(axis), axis, keepdim=keep)
        return lambda x: choose(x, axis, keepdim=keep)

    return build


def _cumulated(call: Any, neutral: float) -> Builder:
    def build(node: Node) -> Run:
        axis = int(node.known(1).ravel()[0]) % node.rank
        turned, shifted, dtype = node.attr("reverse", 0), node.attr("exclusive", 0), node.out_dtype

        def run(x: Tensor, *_: Any) -> Tensor:
            x = x.flip(axis) if turned else x
            if shifted:
                first = torch.full_like(x.narrow(axis, 0, 1), neutral)
                x = torch.cat((first, x.narrow(axis, 0, x.shape[axis] - 1)), axis)
            made = call(x, axis, dtype=dtype)
            return made.flip(axis) if turned else made

        return run

    return build


def _top(node: Node) -> Run:
    count, axis = int(node.number("k", 1)), node.axis(-1)
    largest, ordered = bool(node.attr("largest", 1)), bool(node.attr("sorted", 1))
    return lambda x, *_: tuple(torch.topk(x, count, axis, largest, ordered))


OPS: Table = {
    "ReduceSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "ReduceMean": _mean,
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduction(_product),
    "ReduceL1": _reduction(_norm(1), torch.abs),
    "ReduceL2": _reduction(_norm(2), torch.abs),
    "ReduceLogSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep).log(), torch.log),
    "ReduceLogSumExp": _reduction(lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep)),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: x.square().sum(axes, keepdim=keep), torch.square),
    "ArgMax": _chosen(torch.argmax),
    "ArgMin": _chosen(torch.argmin),
    "CumSum": _cumulated(torch.cumsum, 0),
    "CumProd": _cumulated(torch.cumprod, 1),
    "TopK": _top,
    "Det": lambda node: torch.linalg.det,
}
FUSED: Table = {}
