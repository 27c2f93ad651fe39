"""The ops of a step: what runs together in the forward, and the backward that belongs to it."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import fx

from ..capture.module_scopes import scope_of
from ..joint import Joint, is_backward
from ..memory.allocations import Allocations, elements, target_name, tensors
from ..memory.rng_state import is_random
from ..memory.strides import is_dense, same_layout
from ..torch_private import is_view
from .backward_segments import Segment, assertions
from .buffer_reuse import Reuse


@dataclass(frozen=True, slots=True)
class GradientCopy:
    """A copy of the gradient ``source`` for the primal ``primal``, made because autograd would clone the original."""

    source: fx.Node
    primal: int
    nbytes: int


@dataclass(slots=True)
class StepOp:
    """One op of a step.

    Attributes:
        node: the node that its forward runs; None if it runs nothing.
        fused: nodes that run right after ``node``, in the memory of its result.
        is_fused: whether ``node`` runs as a fused node of another op.
        updates: buffers to overwrite after the forward: (primal, new value).
        checks: assertions on what the op makes.
        main: the nodes of its backward.
        sums: sums and copies of gradients at the end of its backward.
        once: whether its forward must not run again.
    """

    name: str
    op_type: str
    node: fx.Node | None
    scope: str
    updates: list[tuple[int, fx.Node]] = field(default_factory=list)
    main: list[fx.Node] = field(default_factory=list)
    sums: list[fx.Node | GradientCopy] = field(default_factory=list)
    once: bool = False
    fused: tuple[fx.Node, ...] = ()
    is_fused: bool = False
    checks: list[fx.Node] = field(default_factory=list)

    @property
    def runs(self) -> tuple[fx.Node, ...]:
        """The nodes that the forward runs."""
        return (self.node, *self.fused) if self.node is not None and not self.is_fused else ()

    @property
    def backward(self) -> tuple[fx.Node | GradientCopy, ...]:
        """The nodes and copies of the backward, in order."""
        return (*self.main, *self.sums)

    @property
    def random(self) -> bool:
        """Whether the forward draws from the global generator."""
        return any(is_random(node) for node in self.runs)


class _Norm(NamedTuple):
    """The argument of a batch norm that says whether it trains (None: it does), and its first new statistic, if any."""

    flag: int | None
    first_new: int | None = None


_NORMS = {
    "_native_batch_norm_legit_functional": _Norm(5, 3),
    "_native_batch_norm_legit": _Norm(5),
    "native_batch_norm": _Norm(5),
    "cudnn_batch_norm": _Norm(5),
    "miopen_batch_norm": _Norm(5),
    "_batch_norm_with_update_functional": _Norm(None, 4),
    "_batch_norm_with_update": _Norm(None),
}
_STATISTICS = (3, 4)
"""The arguments of a batch norm that are its running mean and variance."""


def _ignores_statistics(node: fx.Node) -> bool:
    """Whether the results of a norm, but for new statistics, do not depend on the running statistics it reads.

    It takes another loop for statistics that have gaps, and sums in another order.
    """
    norm = _NORMS.get(target_name(node))
    if norm is None or not (norm.flag is None or node.args[norm.flag]):
        return False
    statistics = (node.args[position] for position in _STATISTICS)
    return all(tensor.is_contiguous() for each in statistics if isinstance(each, fx.Node) for tensor in tensors(each))


def _new_statistics(node: fx.Node, allocations: Allocations) -> set[int]:
    """The allocations of the new statistics that a norm returns."""
    first = _NORMS[target_name(node)].first_new
    placed = zip(elements(node), allocations.of[node], strict=True)
    return {allocation for place, allocation in placed if first is not None and place >= first}


class _Statistics:
    """Tells which norms may run again, although the running statistics that they read have moved by then.

    A norm that returns new statistics would return other ones. So it may if nothing reads these, apart from a norm
    that ignores the statistics it is given.
    """

    def __init__(self, joint: Joint, allocations: Allocations) -> None:
        self._allocations = allocations
        self._read: set[int] = set()
        for node in joint.graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem and not is_view(node.target):
                ignored = [node.args[position] for position in _STATISTICS] if _ignores_statistics(node) else []
                read = (argument for argument in node.all_input_nodes if argument not in ignored)
                self._read.update(allocation for argument in read for allocation in allocations.of[argument])

    def may_run_again(self, node: fx.Node) -> bool:
        """Whether a call that reads statistics returns again what anything reads of its results."""
        return _ignores_statistics(node) and self._read.isdisjoint(_new_statistics(node, self._allocations))


_CHOICES = ("argmax", "argmin", "argsort", "kthvalue", "mode", "multinomial", "sort", "topk")
_CHOICES_WITH_VALUES = ("max", "median", "min", "nanmedian")
"""Calls that make a discrete choice: if one bit of their argument differed, a recomputation could choose otherwise."""


def _chooses(node: fx.Node) -> bool:
    name = target_name(node)
    return name in _CHOICES or (name in _CHOICES_WITH_VALUES and isinstance(node.meta.get("val"), tuple))


def make_ops(joint: Joint, allocations: Allocations, reuse: Reuse, segments: list[Segment]) -> list[StepOp]:
    """The ops of a step in forward order. Buffer updates that must follow a later op are ops at the end."""
    owned, fused_nodes = {segment.owner: segment for segment in segments}, reuse.fused_nodes
    ops: list[StepOp] = []
    reader: dict[int, int] = {}  # allocation of an overwritten buffer -> last op that reads it
    moving = {allocations.of[joint.primals[i].node][0] for i in joint.overwritten}
    writing = {node for _, node in joint.writes}
    statistics = _Statistics(joint, allocations)
    for node in joint.graph.nodes:
        if node.op != "call_function" or is_backward(node):
            continue
        is_fused = node in fused_nodes
        runs = allocations.allocates(node) or is_fused or node in writing
        if not runs and node not in owned:
            continue
        op = StepOp(node.name, target_name(node), node if runs else None, scope_of(node))
        op.fused, op.is_fused = tuple(reuse.fused.get(node, ())), is_fused
        op.op_type += "_" if is_fused else ""
        if runs:
            old = allocations.reads(node) & moving
            reader.update(dict.fromkeys(old, len(ops)))
            op.once = (bool(old) and not statistics.may_run_again(node)) or _chooses(node)
            if old and not op.once:
                moving |= _new_statistics(node, allocations)
        if node in owned:
            op.main, op.sums = owned[node].main, list(owned[node].sums)
        ops.append(op)
    maker = {made: i for i, op in enumerate(ops) for node in op.runs for made in allocations.made[node]}
    for node in assertions(joint.graph):
        ops[maker.get(allocations.of[node.args[0]][0], 0)].checks.append(node)
    late: list[StepOp] = []
    for primal, value in joint.updates:
        buffer = allocations.of[joint.primals[primal].node][0]
        index = maker.get(allocations.of[value][0])
        if index is not None and reader.get(buffer, -1) <= index:
            ops[index].updates.append((primal, value))
        else:  # a later op still reads the old value
            name = f"update_{joint.primals[primal].node.name}"
            late.append(StepOp(name, "copy_", None, "", updates=[(primal, value)], once=True))
    ops += late
    if joint.gradients and not ops:  # the module makes nothing but views of its parameters
        ops.append(StepOp("gradients", "clone", None, "", once=True))
    _add_gradient_copies(joint, allocations, ops)
    return ops


def _add_gradient_copies(joint: Joint, allocations: Allocations, ops: list[StepOp]) -> None:
    """Copy each gradient that autograd would clone, so that the copy is planned."""
    if not joint.gradients:
        return
    nodes = ((op, node) for op in ops for node in op.backward if isinstance(node, fx.Node))
    owner = {made: op for op, node in nodes for made in allocations.made[node]}
    last = next((op for op in ops if op.backward), ops[-1])
    returned: set[int] = set()
    for primal, node in joint.gradients:
        (allocation,) = allocations.of[node]
        given, wanted = tensors(node)[0], tensors(joint.primals[primal].node)[0]
        if allocation in owner and allocation not in returned and _keeps(given, wanted):
            returned.add(allocation)
        else:
            nbytes = wanted.numel() * wanted.element_size()
            owner.get(allocation, last).sums.append(GradientCopy(node, primal, nbytes))


def _keeps(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether autograd keeps a gradient without cloning it: same strides as a dense parameter, else contiguous.

    The rule of AccumulateGrad (torch/csrc/autograd/functions/accumulate_grad.h, layout contract).
    """
    if gradient.shape != parameter.shape or gradient.dtype != parameter.dtype:
        return False
    if gradient.untyped_storage().nbytes() != gradient.numel() * gradient.element_size():
        return False
    return same_layout(gradient, parameter) if is_dense(parameter) else bool(gradient.is_contiguous())
