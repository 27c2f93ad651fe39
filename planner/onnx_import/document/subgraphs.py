"""The graphs inside nodes: the outer values that they capture, and the renaming of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from json import dumps as quoted
from typing import TYPE_CHECKING

from ...errors import InvalidModelError
from .unsupported_ops import EXPORT_AGAIN

if TYPE_CHECKING:
    from .protobuf import GraphProto, NodeProto


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs among the attributes of a node."""
    found: list[GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def constant_names(graph: GraphProto) -> frozenset[str]:
    """Names of the initializers. Raises InvalidModelError for two of one name."""
    names = [tensor.name for tensor in graph.initializer]
    names += [tensor.values.name for tensor in graph.sparse_initializer]
    distinct = frozenset(names)
    if len(distinct) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise InvalidModelError(f"there are two initializers {quoted(twice)}", remedy=EXPORT_AGAIN)
    return distinct


def reads_of(node: NodeProto) -> tuple[str, ...]:
    """The values that a node needs, once each: its inputs, and those that its subgraphs capture."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in subgraphs(node):
        names.update(dict.fromkeys(captured(graph)))
    return tuple(names)


def captured(graph: GraphProto) -> list[str]:
    """The values of outer graphs that a subgraph reads or returns, in order of appearance."""
    own = _own_names(graph)
    names: dict[str, None] = {}
    for node in graph.node:
        names.update(dict.fromkeys(reads_of(node)))
    names.update(dict.fromkeys(output.name for output in graph.output))
    return [name for name in names if name not in own]


def renamed(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> list[NodeProto]:
    """Copies of nodes with their values renamed, also in their subgraphs."""
    copies: list[NodeProto] = []
    for node in nodes:
        copy = type(node)()
        copy.CopyFrom(node)
        _rename(copy, names)
        copies.append(copy)
    return copies


def all_nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """The nodes and those of their subgraphs."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for graph in subgraphs(node):
            stack.extend(graph.node)


def _own_names(graph: GraphProto) -> set[str]:
    own = {entry.name for entry in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    own.update(name for node in graph.node for name in node.output)
    return own


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for listed in (node.input, node.output):
        for position, name in enumerate(listed):
            if name in names:
                listed[position] = names[name]
    for graph in subgraphs(node):
        own = _own_names(graph)
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for output in graph.output:
            output.name = outer.get(output.name, output.name)
