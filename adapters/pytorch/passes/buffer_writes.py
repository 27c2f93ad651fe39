"""A pass that lets calls write buffers themselves, as in eager training, in place of copying new values into them."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx

from .. import torch_private
from ..joint import Joint, is_backward
from ..memory.allocations import tensors

_aten = torch.ops.aten


class _Norm(NamedTuple):
    """What eager training calls for a batch norm as traced: ``results`` remain, then come the new statistics.

    ``flag`` is the argument that says whether it trains, if there is one.
    """

    call: Any
    results: int
    flag: int | None


_AFFINE = (1, 2)
_STATISTICS = (3, 4)
"""The arguments of a batch norm that are its weight and bias, and its running mean and variance."""
_NORMS = {
    _aten._native_batch_norm_legit_functional.default: _Norm(_aten.native_batch_norm.default, 3, 5),
    _aten._batch_norm_with_update_functional.default: _Norm(_aten.cudnn_batch_norm.default, 4, None),
}


def write_buffers_in_calls(joint: Joint) -> Joint:
    """Let a batch norm write its running statistics, and a sum with a number the buffer that it counts in.

    Tracing makes new tensors of both, which the step would copy into the buffers: five small kernels for each norm
    that eager training does not run.

    Pre: the backward of no batch norm reads running statistics (`drop_unread_statistics`).
    Post: a call in `Joint.writes` is the only reader of the buffers that it writes, and no update names them.
    """
    private = _Private(joint)
    writes: list[tuple[int, fx.Node]] = []
    for node in list(joint.graph.nodes):
        if node.op != "call_function" or is_backward(node):
            continue
        if node.target in _NORMS:
            writes += _write_statistics(node, private)
        elif node.target is _aten.add.Tensor:
            writes += _count_in_place(node, private)
    written = {primal for primal, _ in writes}
    left = tuple((primal, node) for primal, node in joint.updates if primal not in written)
    return replace(joint, updates=left, writes=(*joint.writes, *writes))


class _Private:
    """The updates of buffers that one call reads and replaces, and nothing else sees, old or new."""

    def __init__(self, joint: Joint) -> None:
        named = Counter(node for node in joint.outputs if isinstance(node, fx.Node))
        named.update(node for _, node in (*joint.updates, *joint.gradients))
        updated = Counter(primal for primal, _ in joint.updates)
        memory = Counter(key for primal in joint.primals for key in _memory(primal.node))
        self._update_of: dict[tuple[fx.Node, fx.Node], int] = {}
        for primal, new in joint.updates:
            old = joint.primals[primal].node
            alone = len(old.users) == updated[primal] == 1 and all(memory[key] == 1 for key in _memory(old))
            if alone and named[new] == 1 and all(user.op == "output" for user in new.users):
                self._update_of[old, new] = primal

    def update(self, reader: fx.Node, old: Any, new: fx.Node) -> int | None:
        """The primal of the buffer ``old``, an argument of ``reader`` that ``new`` replaces; None if others see it."""
        once = sum(argument is old for argument in (*reader.args, *reader.kwargs.values())) == 1
        return self._update_of.get((old, new)) if once else None


def _write_statistics(node: fx.Node, private: _Private) -> list[tuple[int, fx.Node]]:
    """Make a norm the call that writes its statistics, if nothing else sees those."""
    norm = _NORMS[node.target]
    if (norm.flag is not None and node.args[norm.flag] is not True) or not _may_lack_statistics(node):
        return []
    news: list[fx.Node] = []
    writes = []
    for position, place in zip(_STATISTICS, (norm.results, norm.results + 1), strict=True):
        made = [user for user in node.users if user.target is operator.getitem and user.args[1] == place]
        stored = _stored(made[0]) if len(made) == 1 else None
        primal = None if stored is None else private.update(node, node.args[position], stored)
        if stored is None or primal is None:
            return []
        news += dict.fromkeys((stored, made[0]))
        writes.append((primal, node))
    for new in news:
        _leave_out(new)
        node.graph.erase_node(new)
    flag = () if norm.flag is not None else (True,)
    node.target = norm.call
    node.args = (*node.args[:5], *flag, *node.args[5:])
    node.meta["val"] = tuple(node.meta["val"][: norm.results])
    return writes


def _stored(new: fx.Node) -> fx.Node:
    """What is copied into the buffer of a new statistic: tracing makes one of 16 bits in 32, and casts it."""
    users = list(new.users)
    return users[0] if len(users) == 1 and users[0].target is _aten._to_copy.default else new


def _may_lack_statistics(node: fx.Node) -> bool:
    """Whether a norm computes in the same types without statistics, as when it is recomputed.

    On a CPU the first parameter or statistic that there is decides whether it sums in 32 bits.
    """
    affine = any(node.args[position] is not None for position in _AFFINE)
    (x,), (mean,) = tensors(node.args[0]), tensors(node.args[_STATISTICS[0]])
    return affine or x.dtype == mean.dtype


def _count_in_place(node: fx.Node, private: _Private) -> list[tuple[int, fx.Node]]:
    """Make a sum with a number the call that adds to the buffer, if nothing else sees the buffer."""
    if len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], int | float):
        return []
    buffer = node.args[0]
    primal = private.update(node, buffer, node)
    if primal is None or tensors(buffer)[0].dtype != tensors(node)[0].dtype:
        return []
    _leave_out(node)
    node.target, node.meta["val"] = _aten.add_.Tensor, buffer.meta["val"]
    return [(primal, node)]


def _memory(node: fx.Node) -> set[int]:
    """The keys of the memory of a primal, which may be a number or not dense."""
    return {torch_private.storage_key(tensor) for tensor in tensors(node) if tensor.layout is torch.strided}


def _leave_out(node: fx.Node) -> None:
    """Take a value from what the graph returns."""
    for user in list(node.users):
        user.replace_input_with(node, None)
