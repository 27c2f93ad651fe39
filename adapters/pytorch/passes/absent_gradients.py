"""The joint graph of a step whose loss leaves out some outputs, from that in which every output has a gradient."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import fx

from .. import torch_private
from ..joint import Joint, Primal, is_backward, meta
from ..torch_private import pytree

aten = torch.ops.aten

_REARRANGE = (aten.cat.default, aten.clone.default, aten.select_backward.default, aten.slice_backward.default)
"""Calls that autograd makes of a gradient in any layout, besides views and calls on each element."""
_OUTSIDE = object()


def without_gradients(joint: Joint, outputs: Collection[int]) -> Joint | None:
    """The joint graph that tracing with the distinct ``outputs`` detached would make, without tracing.

    Autograd runs no node that gets no gradient, and adds nothing where one of two gradients is absent. Returns None
    where that does not tell the graph: a node gets one gradient and not another, which autograd then takes for zeros;
    a node gives a gradient that does not follow from the one it gets, as a fused loss does; or a gradient lies
    otherwise in memory than its sum with another one, and reaches a call that may depend on it.

    ``joint`` is not changed.
    """
    if joint.takes_several_gradients:
        return None
    absent = _Absent(joint, {joint.tangents[i] for i in outputs})
    made = _Remaining(joint, absent) if absent.told else None
    return made.joint(outputs) if made is not None and made.told else None


class _Absent:
    """The nodes that are not run where the gradients ``tangents`` are absent.

    Attributes:
        gone: these nodes.
        sums: for sums that are not run the operand that is there.
        told: whether it is known which nodes are run.
    """

    def __init__(self, joint: Joint, tangents: Collection[fx.Node | None]) -> None:
        self.gone = {node for node in tangents if node is not None}
        self.sums: dict[fx.Node, fx.Node] = {}
        self._gradients = {node for node in joint.tangents if node is not None}  # nodes that follow from a tangent
        self._given: dict[Any, set[bool]] = {}  # autograd node -> whether its gradients are there
        self._results = {node for _, node in joint.gradients}
        self.told = all(map(self._visit, filter(is_backward, joint.graph.nodes))) and not any(
            len(given) > 1 for given in self._given.values()
        )

    def _visit(self, node: fx.Node) -> bool:
        """Find out whether a node of the backward runs; false if that is not known."""
        if node.op != "call_function":
            return True
        gradients = [each for each in node.all_input_nodes if each in self._gradients]
        if not gradients:
            return not self._is_a_gradient(node)
        self._gradients.add(node)
        there = [each for each in gradients if each not in self.gone]
        if not there:
            self.gone.add(node)
        if _is_sum_of_gradients(node):
            if 0 < len(there) < len(gradients):
                self.sums[node] = there[0]
            return len(gradients) == len(node.all_input_nodes)
        own = node.meta.get("seq_nr", _OUTSIDE)  # calls of one autograd node have one number
        for each in gradients:
            if each.op == "placeholder" or _is_sum_of_gradients(each) or each.meta.get("seq_nr", _OUTSIDE) != own:
                self._given.setdefault(own, set()).add(each not in self.gone)
        return len(there) in (0, len(gradients))

    def _is_a_gradient(self, node: fx.Node) -> bool:
        """Whether what follows from no tangent leaves its autograd node: it is a gradient, whatever that node got."""
        own = node.meta.get("seq_nr", _OUTSIDE)
        within = (each.meta.get("seq_nr", _OUTSIDE) == own and not _is_sum_of_gradients(each) for each in node.users)
        return node in self._results or not all(within)


class _Remaining:
    """The graph without ``absent``. ``told`` is false if a gradient's layout changes where a call may depend on it."""

    def __init__(self, joint: Joint, absent: _Absent) -> None:
        self._joint, self._made = joint, fx.Graph(joint.graph.owning_module)
        self._of: dict[fx.Node, fx.Node] = {}  # the nodes that remain, and their copies
        self._moved: set[fx.Node] = set()  # copies that lie in memory otherwise than their originals
        self.told = True
        for node in joint.graph.nodes:
            if node in absent.sums:
                self._of[node] = self._of[absent.sums[node]]
                self._compare(self._of[node], node)
            elif node.op == "output":
                self._made.node_copy(node, self._of.get)
            elif node not in absent.gone:
                self._of[node] = self._copied(node)
            if not self.told:
                return

    def _copied(self, node: fx.Node) -> fx.Node:
        """The copy of a node. As `Tensor.reshape` does, a gradient is copied to be viewed if it can't be as it is."""
        made = self._made.node_copy(node, self._of.__getitem__)
        inputs, first = made.all_input_nodes, made.args[0] if made.args else None
        if node.target is aten._unsafe_view.default and _is_contiguous_copy(first) and first.args[0] in self._moved:
            made.target, made.args = aten.view.default, (first.args[0], *made.args[1:])
        elif self._moved.isdisjoint(inputs):
            return made
        elif not (node.target in _REARRANGE or _is_of_each_element(node) or _views(node)):
            self.told = False
            return made
        try:
            made.meta["val"] = _value(made)
        except (RuntimeError, ValueError):  # a view of what does not lie in memory so
            if made.target is not aten.view.default:
                self.told = False
                return made
            with self._made.inserting_before(made):
                copied = self._made.call_function(
                    aten.clone.default, made.args[:1], {"memory_format": torch.contiguous_format}
                )
            copied.meta = {**made.meta, "val": _value(copied)}
            made.target, made.args = aten._unsafe_view.default, (copied, *made.args[1:])
            made.meta["val"] = _value(made)
        self._compare(made, node)
        return made

    def _compare(self, made: fx.Node, node: fx.Node) -> None:
        """Note whether what is now in the place of a node lies in memory otherwise."""
        if list(map(meta, pytree.tree_leaves(made.meta["val"]))) != list(
            map(meta, pytree.tree_leaves(node.meta["val"]))
        ):
            self._moved.add(made)

    def joint(self, outputs: Collection[int]) -> Joint:
        """The joint graph in which the distinct ``outputs`` have no gradient."""
        joint, of = self._joint, self._of
        for node in reversed(self._made.nodes):
            if is_backward(node) and node.op == "call_function" and not node.users:
                self._made.erase_node(node)
        primals = {primal: replace(primal, node=of[primal.node]) for primal in joint.primals}
        return replace(
            joint,
            graph=self._made,
            primals=tuple(primals.values()),
            outputs=tuple(
                of[each] if isinstance(each, fx.Node) else primals[each] if isinstance(each, Primal) else each
                for each in joint.outputs
            ),
            tangents=tuple(None if each is None else of.get(each) for each in joint.tangents),
            gradients=tuple((primal, of[node]) for primal, node in joint.gradients if node in of),
            updates=tuple((primal, of[node]) for primal, node in joint.updates),
            writes=tuple((primal, of[node]) for primal, node in joint.writes),
            detached=joint.detached | frozenset(outputs),
        )


def _is_sum_of_gradients(node: fx.Node) -> bool:
    sums = node.target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs
    return sums and bool(node.meta.get("is_gradient_acc"))


def _is_contiguous_copy(value: Any) -> TypeGuard[fx.Node]:
    return (
        isinstance(value, fx.Node)
        and value.target is aten.clone.default
        and value.kwargs.get("memory_format") is torch.contiguous_format
    )


def _is_of_each_element(node: fx.Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _views(node: fx.Node) -> bool:
    return node.target is operator.getitem or torch_private.is_view(node.target)


def _value(node: fx.Node) -> Any:
    """What a call makes of the fake values of its arguments."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    mode = next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)).fake_mode
    with mode:
        return node.target(*args, **kwargs)
