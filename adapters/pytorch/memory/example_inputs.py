"""Example arguments of a call that runs alone: real tensors that share memory where those of the step do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .. import torch_private
from ..torch_private import pytree
from ..value_shapes import decider, size_decided
from .strides import Layout


def example_arguments(node: fx.Node, layouts: Callable[[fx.Node], Any]) -> tuple[Any, Any]:
    """Positional and keyword arguments of a call, of the ``layouts`` of its argument nodes."""
    arguments = node.all_input_nodes
    leaves, spec = pytree.tree_flatten([layouts(argument) for argument in arguments], is_leaf=_is_layout)
    traced = pytree.tree_leaves([argument.meta.get("val") for argument in arguments])
    places = [place for place, leaf in enumerate(leaves) if _is_layout(leaf)]
    made = examples([(leaves[place], traced[place]) for place in places])
    for place, tensor in zip(places, made, strict=True):
        leaves[place] = tensor
    given = dict(zip(arguments, pytree.tree_unflatten(leaves, spec), strict=True))
    args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
    fill(node.target, args, node.meta["val"])
    return args, kwargs


def fill(call: Any, args: Sequence[Any], result: Any) -> None:
    """Give the values among ``args`` that decide the size of a call's result those that lead to this ``result``."""
    deciding = decider(call, args)
    if deciding is not None:
        deciding.fill(size_decided(call, args, pytree.tree_leaves(result)))


def examples(wanted: Sequence[tuple[Layout, Any]]) -> list[torch.Tensor]:
    """A real tensor of each layout. Those whose traced tensors share a storage share memory.

    Queries, keys and values that are cut from one product take its memory once, as in the step, not three times.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, (layout, traced) in enumerate(wanted):
        shares = isinstance(traced, torch.Tensor) and Layout.of(traced) == layout
        groups[(torch_private.storage_key(traced), layout.dtype) if shares else place].append(place)
    made: dict[int, torch.Tensor] = {}
    for places in groups.values():
        if len(places) == 1:
            made[places[0]] = wanted[places[0]][0].example()
            continue
        offsets = {place: int(wanted[place][1].storage_offset()) for place in places}
        start = min(offsets.values())
        flat = wanted[places[0]][0].filled(max(offsets[place] - start + wanted[place][0].extent for place in places))
        for place in places:
            layout = wanted[place][0]
            made[place] = flat.as_strided(layout.shape, layout.strides, offsets[place] - start)
    return [made[place] for place in range(len(wanted))]


def _is_layout(value: Any) -> bool:
    return isinstance(value, Layout)
