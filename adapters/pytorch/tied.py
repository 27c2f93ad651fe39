"""Parameters that a module holds under several names: one input, and one gradient summed in the backward.

Tracing gives every name an input and a gradient of its own. Autograd would add those up after the step,
out of the plan's sight.
"""

from __future__ import annotations

import torch
from torch import fx, nn

_ADD = torch.ops.aten.add.Tensor


def merge_tied(
    graph: fx.Graph, parameters: list[tuple[int, str, fx.Node]], gradients: dict[int, fx.Node], module: nn.Module
) -> None:
    """Make ``graph`` read each tensor by its first name, and sum the ``gradients`` of its names into one.

    ``parameters`` are (primal, name, placeholder); ``gradients`` maps primals and is changed in place.
    """
    first: dict[int, tuple[int, fx.Node]] = {}
    for primal, name, node in parameters:
        key = id(module.get_parameter(name))
        if key not in first:
            first[key] = (primal, node)
            continue
        kept, placeholder = first[key]
        node.replace_all_uses_with(placeholder)
        mine = gradients.pop(primal, None)
        if mine is not None:
            gradients[kept] = mine if kept not in gradients else _sum(graph, gradients[kept], mine)


def _sum(graph: fx.Graph, one: fx.Node, other: fx.Node) -> fx.Node:
    """The sum of two gradients, where the later one's autograd node ends; the earlier is the first operand."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    earlier, later = sorted((one, other), key=place.__getitem__)
    after = later
    while after.next.op == "call_function" and after.next.meta.get("seq_nr") == later.meta.get("seq_nr"):
        after = after.next
    with graph.inserting_after(after):
        total = graph.call_function(_ADD, (earlier, later))
    given = earlier.meta["val"], later.meta["val"]
    with given[0].fake_mode:
        total.meta["val"] = _ADD(*given)
    total.meta["partitioner_tag"] = "is_backward"
    return total
