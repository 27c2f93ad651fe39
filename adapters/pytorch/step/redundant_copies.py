"""Copies that autograd keeps of what a call overwrites: the graph overwrites nothing, so the original is kept.

In-place Hardswish, SiLU and Mish copy their argument for the backward. Traced, they write a new result, and copy and
argument would be held both.
"""

from __future__ import annotations

import torch
from torch import fx

from .. import torch_private
from ..capture.joint_graph import Joint
from ..memory.allocations import tensors
from ..memory.strides import lies_like
from .backward_segments import is_backward


def drop_kept_copies(joint: Joint) -> None:
    """Let the backward read the original of each forward copy that nobody else reads."""
    outputs = {
        torch_private.storage_key(t) for node in joint.outputs if isinstance(node, fx.Node) for t in tensors(node)
    }
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        source = node.args[0]
        if is_backward(node) or node.kwargs or not isinstance(source, fx.Node) or source.op != "call_function":
            continue
        (made,), (given,) = tensors(node), tensors(source)
        # The caller may overwrite an output, and what goes out must not be the original itself.
        free = torch_private.storage_key(given) not in outputs and torch_private.storage_key(made) not in outputs
        free = free and made.untyped_storage().nbytes() == given.untyped_storage().nbytes()
        if free and node.users and _read_backward(node) and lies_like(made, given):
            node.replace_all_uses_with(source)
            joint.graph.erase_node(node)


def _read_backward(node: fx.Node) -> bool:
    """Whether only the backward reads a node, or views of it."""
    views = [user for user in node.users if not is_backward(user)]
    return all(user.target is torch.ops.aten.detach.default and _read_backward(user) for user in views)
