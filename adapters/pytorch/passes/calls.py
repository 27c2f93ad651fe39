"""Passes over calls of the joint graph that eager training does not make, or makes with fewer arguments."""

from __future__ import annotations

import torch
from torch import fx

from .. import torch_private
from ..joint import Joint, forward_reads, is_backward
from ..memory.allocations import target_name, tensors
from ..memory.strides import same_layout

_aten = torch.ops.aten

_UNREAD_STATISTICS = {
    "native_batch_norm_backward": ((3, 4), 7),
    "cudnn_batch_norm_backward": ((3, 4), None),
    "miopen_batch_norm_backward": ((3, 4), None),
    "batch_norm_backward": ((3, 4), 7),
}
"""Backward -> (its arguments that are running statistics, the argument that says whether it trains; None: always)."""


def drop_unread_statistics(joint: Joint) -> Joint:
    """Take running statistics away from training backwards, which do not read them.

    The statistics may then move, and the norm's forward may be recomputed, before the backward runs.

    Post: no training backward of a batch norm has running statistics among its arguments.
    """
    for node in joint.graph.nodes:
        if node.op == "call_function" and target_name(node) in _UNREAD_STATISTICS:
            statistics, flag = _UNREAD_STATISTICS[target_name(node)]
            if flag is None or (len(node.args) > flag and node.args[flag]):
                node.args = tuple(None if i in statistics else argument for i, argument in enumerate(node.args))
    return joint


def drop_redundant_copies(joint: Joint) -> Joint:
    """Let the backward read the original in place of a copy that autograd saves of a tensor that a call overwrites.

    In-place Hardswish, SiLU and Mish copy their argument for the backward. Traced, they write a new tensor, so that
    the argument itself is still there and the copy would only take memory.

    Pre: `Joint.outputs` are final; the caller may overwrite an output, so neither original nor copy may be one.
    Post: a forward ``clone`` that remains has a reader in the forward, another layout, or shares memory with an output.
    """
    outputs = {
        torch_private.storage_key(t) for node in joint.outputs if isinstance(node, fx.Node) for t in tensors(node)
    }
    for node in joint.graph.find_nodes(op="call_function", target=_aten.clone.default):
        source = node.args[0]
        if is_backward(node) or node.kwargs or not isinstance(source, fx.Node) or source.op != "call_function":
            continue
        (copy,), (original,) = tensors(node), tensors(source)
        named = any(user.op == "output" for user in node.users)  # a new value of a buffer, which `updates` names
        returned = named or not outputs.isdisjoint(
            [torch_private.storage_key(original), torch_private.storage_key(copy)]
        )
        whole = copy.untyped_storage().nbytes() == original.untyped_storage().nbytes()
        if whole and not returned and node.users and not forward_reads(node) and same_layout(copy, original):
            node.replace_all_uses_with(source)
            joint.graph.erase_node(node)
    return joint


def inline_scalar_fills(joint: Joint) -> Joint:
    """Make ``fill.Tensor`` of a traced constant a ``fill.Scalar``: ``x[0] = 0.5`` writes a number.

    Tracing makes a tensor of the number, in a call after the one that made ``x``; the write could then not join it.

    Post: no ``fill.Tensor`` has a constant real number of its own.
    """
    graph = joint.graph
    for node in graph.find_nodes(op="call_function", target=_aten.fill.Tensor):
        lifted = node.args[1]
        if lifted.target is not _aten.lift_fresh_copy.default or list(lifted.users) != [node]:
            continue
        constant = lifted.args[0]
        value = getattr(graph.owning_module, str(constant.target)) if constant.op == "get_attr" else None
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
            node.target, node.args = _aten.fill.Scalar, (node.args[0], value.item())
            graph.erase_node(lifted)
            if not constant.users:
                graph.erase_node(constant)
    return joint
