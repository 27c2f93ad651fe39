"""Which nodes of a graph share memory: every tensor lives in one allocation, made by one node.

Allocations are told apart by the storages of the fake tensors that tracing left on the nodes. A node that makes no
allocation returns views, which take no bytes and can be made again while their allocation is alive.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import fx

from .. import torch_private
from ..errors import UnsupportedModuleError
from ..torch_private import pytree

_VALUES = (torch.Tensor, int, float, bool, str, type(None))


@dataclass(frozen=True, slots=True)
class Allocation:
    """``nbytes`` of storage that ``node`` allocates, named after the node or the element of its result."""

    name: str
    nbytes: int
    node: fx.Node


def tensors(node: fx.Node) -> list[torch.Tensor]:
    """The (fake) tensors that a node returns."""
    return list(elements(node).values())


def elements(node: fx.Node) -> dict[int, torch.Tensor]:
    """The tensors that a node returns by their index in its result; a single tensor has index 0.

    Leaves out results that an ``output_mask`` switches off: tracing makes a tensor of them, no kernel does.
    """
    mask = _output_mask(node)
    return {i: leaf for i, leaf in _traced(node).items() if i >= len(mask) or mask[i]}


def _traced(node: fx.Node) -> dict[int, torch.Tensor]:
    value = node.meta.get("val")
    results = value if isinstance(value, (tuple, list)) else [value]
    return {i: leaf for i, leaf in enumerate(results) if isinstance(leaf, torch.Tensor)}


def ranks(node: fx.Node, indices: set[int]) -> frozenset[int]:
    """The results of a node at ``indices``, counted among the tensors that tracing left there."""
    return frozenset(rank for rank, i in enumerate(_traced(node)) if i in indices)


def _output_mask(node: fx.Node) -> list[bool]:
    if isinstance(node.target, torch_private.OpOverload):
        for i, argument in enumerate(torch_private.schema_of(node.target).arguments):
            if argument.name == "output_mask":
                return list(node.args[i] if i < len(node.args) else node.kwargs.get("output_mask", ()))
    return []


def target_name(node: fx.Node) -> str:
    """The aten name of a call without namespace and overload: ``native_layer_norm``."""
    if not isinstance(node.target, torch_private.OpOverload):
        return str(node.target)
    return str(torch_private.schema_of(node.target).name.split("::")[-1])


class Allocations:
    """The allocations of a graph, in order.

    Attributes:
        entries: all allocations; others refer to them by index.
        of: for each node the allocations that its result lives in.
        made: for each node the allocations that it makes.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.entries: list[Allocation] = []
        self.of: dict[fx.Node, tuple[int, ...]] = {}
        self.made: dict[fx.Node, tuple[int, ...]] = {}
        by_storage: dict[int, int] = {}
        for node in graph.nodes:
            if node.op != "output":
                self._add(node, graph, by_storage)

    def _add(self, node: fx.Node, graph: fx.Graph, by_storage: dict[int, int]) -> None:
        if node.op == "get_attr":
            values = {0: getattr(graph.owning_module, str(node.target))}
        else:
            values = elements(node)
            if any(not isinstance(leaf, _VALUES) for leaf in pytree.tree_leaves(node.meta.get("val"))):
                raise UnsupportedModuleError(
                    f"{node.name} ({node.target}) depends on the values or the shapes of tensors",
                    remedy="use static shapes inside the module",
                )
        made, found = [], []
        on_card = any(isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda" for tensor in values.values())
        for i, tensor in values.items():
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                raise UnsupportedModuleError(
                    f"{node.name} ({node.target}) makes something else than a dense tensor",
                    remedy="use dense tensors and the default generator inside the module",
                )
            key = torch_private.storage_key(tensor)
            if key not in by_storage:
                by_storage[key] = len(self.entries)
                made.append(len(self.entries))
                several = isinstance(node.meta.get("val"), (tuple, list))
                name = _element_name(node, i) if several else node.name
                nbytes = tensor.untyped_storage().nbytes()
                if on_card and tensor.device.type != "cuda":
                    nbytes = 0  # attention returns its seeds on the host, beside results on the card
                self.entries.append(Allocation(name, nbytes, node))
            found.append(by_storage[key])
        self.of[node], self.made[node] = tuple(found), tuple(made)
        if made and len(set(found)) != len(made):
            raise UnsupportedModuleError(f"{node.name} ({node.target}) returns new tensors and views of old ones")

    def copy(self) -> Allocations:
        """A copy that can be changed on its own."""
        made = object.__new__(Allocations)
        made.entries, made.of, made.made = list(self.entries), dict(self.of), dict(self.made)
        return made

    def resized(self, storage_nbytes: Mapping[fx.Node, list[int]]) -> Allocations:
        """These allocations with the bytes of real storages where tracing saw less, or memory that the device lacks.

        ``storage_nbytes`` has, for a node, the storage size of each tensor that tracing left on it, in order; 0 for one
        that a kernel does not return or keeps on the host.
        """
        made = self.copy()
        for node, measured in storage_nbytes.items():
            sizes = dict(zip(_traced(node), measured, strict=False))
            for i, allocation in zip(elements(node), self.of[node], strict=True):
                known = made.entries[allocation].nbytes
                if sizes.get(i, known) > known or sizes.get(i) == 0:
                    made.entries[allocation] = replace(made.entries[allocation], nbytes=sizes[i])
        return made

    def move(self, old: int, new: int) -> None:
        """Let everything in the allocation ``old`` live in ``new``; no node makes ``old`` any more."""
        for nodes in (self.of, self.made):
            for node, found in nodes.items():
                if old in found:
                    moved = tuple(new if other == old else other for other in found)
                    nodes[node] = moved if nodes is self.of else tuple(other for other in found if other != old)
        self.entries[old] = replace(self.entries[old], nbytes=0)

    def allocates(self, node: fx.Node) -> bool:
        """Whether running the node allocates memory."""
        return node.op == "call_function" and bool(self.made[node])

    def reads(self, node: fx.Node) -> set[int]:
        """The allocations that a node's arguments live in."""
        return {allocation for argument in node.all_input_nodes for allocation in self.of[argument]}


def _element_name(node: fx.Node, index: int) -> str:
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == index:
            return str(user.name)
    return f"{node.name}#{index}"
