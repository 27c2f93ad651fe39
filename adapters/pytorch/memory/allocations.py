"""Which nodes of a graph share memory: every tensor belongs to one block, allocated by one node.

Blocks are told apart by the storages of the fake tensors that tracing left on the nodes. A node that
allocates nothing makes views (no bytes); it can be run again at any time while its block is alive.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import torch
from torch import fx

from .. import torch_private
from ..errors import UnsupportedModuleError
from ..torch_private import pytree


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that ``node`` allocates: ``nbytes`` of storage, named after the node or the element taken from it."""

    name: str
    nbytes: int
    node: fx.Node


def tensors(node: fx.Node) -> list[torch.Tensor]:
    """The (fake) tensors a node returns."""
    return list(elements(node).values())


def elements(node: fx.Node) -> dict[int, torch.Tensor]:
    """The tensors a node returns by their place in its result; a single tensor is at place 0.

    Tracing leaves tensors even at the places that an ``output_mask`` switches off; no kernel makes those.
    """
    mask = _output_mask(node)
    return {place: leaf for place, leaf in _traced(node).items() if place >= len(mask) or mask[place]}


def _traced(node: fx.Node) -> dict[int, torch.Tensor]:
    value = node.meta.get("val")
    results = value if isinstance(value, (tuple, list)) else [value]
    return {place: leaf for place, leaf in enumerate(results) if isinstance(leaf, torch.Tensor)}


def ranks(node: fx.Node, places: set[int]) -> frozenset[int]:
    """The tensors at ``places`` of a node's result, counted among the tensors that tracing left there."""
    return frozenset(rank for rank, place in enumerate(_traced(node)) if place in places)


def _output_mask(node: fx.Node) -> list[bool]:
    if isinstance(node.target, torch_private.OpOverload):
        for place, argument in enumerate(torch_private.schema_of(node.target).arguments):
            if argument.name == "output_mask":
                return list(node.args[place] if place < len(node.args) else node.kwargs.get("output_mask", ()))
    return []


def target_name(node: fx.Node) -> str:
    """The aten name of a call without namespace and overload: ``native_layer_norm``."""
    target = node.target
    return (
        torch_private.schema_of(target).name.split("::")[-1]
        if isinstance(target, torch_private.OpOverload)
        else str(target)
    )


class Blocks:
    """Blocks of a graph, in order of allocation.

    ``of[node]`` are the blocks a node's result lives in, ``made[node]`` those it allocates.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.blocks: list[Block] = []
        self.of: dict[fx.Node, tuple[int, ...]] = {}
        self.made: dict[fx.Node, tuple[int, ...]] = {}
        self._block_of: dict[int, int] = {}
        for node in graph.nodes:
            if node.op != "output":
                self._add(node, graph)

    def _add(self, node: fx.Node, graph: fx.Graph) -> None:
        if node.op == "get_attr":
            values = {0: getattr(graph.owning_module, str(node.target))}
        else:
            values = elements(node)
            if any(not isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(node.meta.get("val"))):
                raise UnsupportedModuleError(
                    f"{node.name} ({node.target}) depends on the values or the shapes of tensors",
                    remedy="use static shapes inside the module",
                )
        made, found = [], []
        for place, tensor in values.items():
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                raise UnsupportedModuleError(
                    f"{node.name} ({node.target}) makes something else than a dense tensor",
                    remedy="use dense tensors and the default generator inside the module",
                )
            key = torch_private.storage_key(tensor)
            if key not in self._block_of:
                self._block_of[key] = len(self.blocks)
                made.append(len(self.blocks))
                several = isinstance(node.meta.get("val"), (tuple, list))
                name = _element_name(node, place) if several else node.name
                self.blocks.append(Block(name, tensor.untyped_storage().nbytes(), node))
            found.append(self._block_of[key])
        self.of[node], self.made[node] = tuple(found), tuple(made)
        if made and len(set(found)) != len(made):
            raise UnsupportedModuleError(f"{node.name} ({node.target}) returns new tensors and views of old ones")

    def resize(self, node: fx.Node, held_nbytes: list[int]) -> None:
        """Give the blocks a node made the bytes that its real results hold, where tracing said less.

        ``held_nbytes`` are of the tensors that tracing left on the node, in order.
        """
        held = dict(zip(_traced(node), held_nbytes, strict=False))
        for place, block in zip(elements(node), self.of[node], strict=True):
            if held.get(place, 0) > self.blocks[block].nbytes:
                self.blocks[block] = replace(self.blocks[block], nbytes=held[place])

    def take_over(self, old: int, block: int) -> None:
        """Let what lived in the block ``old`` live in ``block``; nobody makes ``old`` any more."""
        for nodes in (self.of, self.made):
            for node, found in nodes.items():
                if old in found:
                    moved = tuple(block if other == old else other for other in found)
                    nodes[node] = moved if nodes is self.of else tuple(other for other in found if other != old)
        self.blocks[old] = replace(self.blocks[old], nbytes=0)

    def allocates(self, node: fx.Node) -> bool:
        """Whether running the node takes memory."""
        return node.op == "call_function" and bool(self.made[node])

    def reads(self, node: fx.Node) -> set[int]:
        """The blocks a node's arguments live in."""
        return {block for argument in node.all_input_nodes for block in self.of[argument]}


_PLAIN = (torch.Tensor, int, float, bool, str, type(None))


def _element_name(node: fx.Node, place: int) -> str:
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == place:
            return str(user.name)
    return f"{node.name}#{place}"
