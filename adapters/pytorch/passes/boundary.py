"""Passes over what the joint graph takes and gives: primals, gradients and outputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from ..joint import Joint

_ADD = torch.ops.aten.add.Tensor


def drop_unread_attributes(joint: Joint) -> Joint:
    """Remove the primals of tensor attributes that no call reads; a module may keep them for other users.

    Post: every primal of kind "attribute" has a user.
    """
    kept = [i for i, primal in enumerate(joint.primals) if primal.kind != "attribute" or primal.node.users]
    for primal in joint.primals:
        if primal.kind == "attribute" and not primal.node.users:
            joint.graph.erase_node(primal.node)
    index = {old: new for new, old in enumerate(kept)}
    return replace(
        joint,
        primals=tuple(joint.primals[i] for i in kept),
        gradients=tuple((index[i], node) for i, node in joint.gradients),
        updates=tuple((index[i], node) for i, node in joint.updates),
        writes=tuple((index[i], node) for i, node in joint.writes),
        tied=tuple(tuple(index[i] for i in group) for group in joint.tied),
    )


def merge_tied_parameters(joint: Joint) -> Joint:
    """Read each tied parameter by its first name, and sum the gradients of its names into one.

    Tracing a graph module gives every name a gradient. Autograd would add those up after the step, where no plan sees
    the sum. (Other modules are traced with one name for each parameter.)

    Post: in each group of `Joint.tied` the first primal alone has users and a gradient.
    """
    first = {i: group[0] for group in joint.tied for i in group[1:]}
    gradients = dict(joint.gradients)
    for i in sorted(first):
        joint.primals[i].node.replace_all_uses_with(joint.primals[first[i]].node)
        mine = gradients.pop(i, None)
        if mine is not None:
            other = gradients.get(first[i])
            gradients[first[i]] = mine if other is None else _sum(joint.graph, other, mine)
    return replace(joint, gradients=tuple(sorted(gradients.items())))


def _sum(graph: fx.Graph, one: fx.Node, other: fx.Node) -> fx.Node:
    """The sum of two gradients at the end of the later one's autograd node; the earlier is the first operand."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    earlier, later = sorted((one, other), key=position.__getitem__)
    after = later
    while after.next.op == "call_function" and after.next.meta.get("seq_nr") == later.meta.get("seq_nr"):
        after = after.next
    with graph.inserting_after(after):
        total = graph.call_function(_ADD, (earlier, later))
    operands = earlier.meta["val"], later.meta["val"]
    with operands[0].fake_mode:
        total.meta["val"] = _ADD(*operands)
    total.meta |= {"partitioner_tag": "is_backward", "is_gradient_acc": True}
    return total


def reattach_detached_outputs(joint: Joint) -> Joint:
    """Return what was detached in place of the ``detach`` of each output in `Joint.detached`.

    The step then has the calls, by name, of the step that was traced without detaching.

    Post: no output in `Joint.detached` is a ``detach`` that was added for it.
    """
    outputs = list(joint.outputs)
    for i in joint.detached:
        node = outputs[i]
        if isinstance(node, fx.Node) and node.target is torch.ops.aten.detach.default:
            (outputs[i],) = node.all_input_nodes
            node.replace_all_uses_with(outputs[i])
            joint.graph.erase_node(node)
    return replace(joint, outputs=tuple(outputs))
