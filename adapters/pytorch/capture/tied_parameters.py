"""Parameters that a module holds under several names: one input, and one gradient summed in the backward.

Tracing gives every name an input and a gradient of its own. Autograd would add those up after the step,
out of the plan's sight. So a module is traced with one name for each; what runs without its forward (a
traced graph) has its graph changed instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_pre_hook

_ADD = torch.ops.aten.add.Tensor


@contextmanager
def under_one_name(module: nn.Module) -> Iterator[None]:
    """Take every name but the first of a tied parameter away, except while the forward runs.

    The caller puts the names back. Names of one module under several paths stay.
    """
    first: dict[int, tuple[nn.Module, str]] = {}
    others: list[tuple[nn.Module, str, nn.Module, str]] = []
    for owner in [] if isinstance(module, fx.GraphModule) else list(module.modules()):
        for key, parameter in list(owner._parameters.items()):
            if parameter is not None and id(parameter) in first:
                others.append((owner, key, *first[id(parameter)]))
                del owner._parameters[key]
            elif parameter is not None:
                first[id(parameter)] = (owner, key)

    def fill(child: nn.Module, _: object) -> None:
        for owner, key, source, name in others if child is module else ():
            owner._parameters[key] = source._parameters[name]

    def empty(*_: object) -> None:
        for owner, key, _source, _name in others:
            owner._parameters.pop(key, None)

    before = register_module_forward_pre_hook(fill)  # before those of who looks at the module
    after = module.register_forward_hook(empty, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


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
