"""The backward of a joint graph, cut into one segment for each forward node.

Autograd runs its nodes one by one. The aten calls of a node carry the sequence number of its forward call, except for
the sums of gradients that reach a tensor on several paths: those carry an old number, and belong to the segment that
made the later operand.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import fx

from .. import torch_private
from ..errors import UnsupportedModuleError
from ..joint import Joint, is_backward
from ..memory.allocations import Allocations, tensors
from ..memory.slice_writes import VIEWS


@dataclass(slots=True)
class Segment:
    """The allocating nodes of the backward of ``owner``: the ``main`` part, then the ``sums`` of gradients."""

    owner: fx.Node
    main: list[fx.Node] = field(default_factory=list)
    sums: list[fx.Node] = field(default_factory=list)


_COPIED = (
    torch.ops.aten.hardsigmoid.default, torch.ops.aten.hardswish.default, torch.ops.aten.hardtanh.default,
    torch.ops.aten.mish.default, torch.ops.aten.silu.default, torch.ops.aten.threshold.default,
)  # fmt: skip
"""Calls whose backward reads their argument; in place, autograd saves a copy of it."""

_SHIFTS = {**dict.fromkeys(VIEWS, 1), **dict.fromkeys(_COPIED, -1)}
"""The offset of a backward's sequence number from that of its call.

A write into a slice is numbered right after the call that writes; a call in place has the number of its copy.
"""


_ASSERTIONS = (
    torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg, torch_private.LINALG_CHECK,
)  # fmt: skip


def assertions(graph: fx.Graph) -> list[fx.Node]:
    """The assertions on values that the forward makes, in order: those of torch, and the module's own."""
    return [node for node in graph.nodes if node.target in _ASSERTIONS and not is_backward(node)]


def _tangent_dependent(joint: Joint) -> set[fx.Node]:
    """The nodes that depend on tangents."""
    found = {node for node in joint.tangents if node is not None}
    for node in joint.graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _merge_late(segments: list[Segment], position: dict[fx.Node, int], earliest: int) -> None:
    """Join the last segment to those before it until its owner is no earlier than anything its backward reads.

    If a forward writes over pieces of one tensor in turn, the backwards of the first pieces read the last result. A
    gradient that a function has found in its forward is read by the sum with another one: then the first segment is
    owned by what the node at position ``earliest`` makes.
    """
    while len(segments) > 1 and position[segments[-1].owner] < earliest:
        late = segments.pop()
        segments[-1].main += [*segments[-1].sums, *late.main]
        segments[-1].sums = late.sums
    if position[segments[-1].owner] < earliest:
        segments[-1].owner = next(node for node, at in position.items() if at == earliest)


def _needed_backward(joint: Joint, allocations: Allocations) -> list[fx.Node]:
    """The allocating backward nodes that some gradient depends on, in order."""
    needed: set[fx.Node] = set()
    stack = [node for _, node in joint.gradients]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    return [n for n in joint.graph.nodes if n in needed and is_backward(n) and allocations.allocates(n)]


def backward_segments(joint: Joint, allocations: Allocations) -> list[Segment]:
    """The segments in backward order; their owners come in strictly decreasing forward order.

    A segment reads only allocations of its owner or of earlier nodes. Nodes whose sequence number names no such owner
    join the segment before. Raises UnsupportedModuleError if a segment would read a later node.
    """
    position = {node: i for i, node in enumerate(joint.graph.nodes)}
    owners = _owners(joint, allocations)
    tangent_dependent = _tangent_dependent(joint)
    segments: list[Segment] = []
    running: int | None = None  # sequence number of the segment being filled
    for node in _needed_backward(joint, allocations):
        number = node.meta.get("seq_nr")
        earliest = max((position[b] for b in _forward_reads(node, allocations)), default=-1)
        if segments and number == running and not segments[-1].sums:
            segments[-1].main.append(node)
            _merge_late(segments, position, earliest)
            continue
        if segments and number != running and _accumulates(node, tangent_dependent):
            segments[-1].sums.append(node)
            continue
        owner = owners.get(number) if number is not None else None
        latest = position[segments[-1].owner] if segments else len(position)
        if owner is not None and earliest <= position[owner] < latest:
            segments.append(Segment(owner, [node]))
            running = number
        elif segments:
            last = segments[-1]
            last.main += [*last.sums, node]  # a later node of the segment reads the sum
            last.sums = []
            _merge_late(segments, position, earliest)
        else:
            segments.append(Segment(_last_forward(joint), [node]))
            running = number
    for segment in segments:
        for node in (*segment.main, *segment.sums):
            if any(position[made] > position[segment.owner] for made in _forward_reads(node, allocations)):
                raise UnsupportedModuleError(
                    f"the backward node {node.name} reads a value made after {segment.owner.name}, its forward",
                    remedy="report this with the model",
                )
    return segments


def _owners(joint: Joint, allocations: Allocations) -> dict[int, fx.Node]:
    """For each sequence number the last forward node with a floating-point result that carries it.

    Allocating nodes take precedence over views.
    """
    owners: dict[int, fx.Node] = {}
    for node in joint.graph.nodes:
        number = node.meta.get("seq_nr")
        if node.op != "call_function" or number is None or is_backward(node):
            continue
        if not isinstance(node.target, torch_private.OpOverload) or not any(
            t.is_floating_point() for t in tensors(node)
        ):
            continue
        if number not in owners or allocations.allocates(node) or not allocations.allocates(owners[number]):
            owners[number] = node
    for node in joint.graph.nodes:
        if node.target in _SHIFTS and not is_backward(node) and node.meta.get("seq_nr") is not None:
            owners.setdefault(node.meta["seq_nr"] + _SHIFTS[node.target], node)
    return owners


def _last_forward(joint: Joint) -> fx.Node:
    forward = [n for n in joint.graph.nodes if n.op == "call_function" and not is_backward(n)]
    if not forward:
        raise UnsupportedModuleError("the module computes nothing")
    return forward[-1]


def _accumulates(node: fx.Node, tangent_dependent: Collection[fx.Node]) -> bool:
    operands = node.args[:2]
    return (
        node.target is torch.ops.aten.add.Tensor
        and not node.kwargs
        and all(isinstance(operand, fx.Node) and operand in tangent_dependent for operand in operands)
    )


def _forward_reads(node: fx.Node, allocations: Allocations) -> list[fx.Node]:
    """The forward nodes whose allocations a node reads."""
    made = (allocations.entries[allocation].node for allocation in allocations.reads(node))
    return [maker for maker in made if maker.op == "call_function" and not is_backward(maker)]
