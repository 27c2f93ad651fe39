"""The nodes of a graph put in order: who makes which value, which order is valid, which nodes matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from json import dumps as quoted
from typing import TYPE_CHECKING

from ...errors import InvalidModelError
from .subgraphs import constant_names, reads_of
from .unsupported_ops import EXPORT_AGAIN

if TYPE_CHECKING:
    from .protobuf import GraphProto, NodeProto


class NodeOrder:
    """The order in which the nodes of one graph are read.

    ``live`` are the indices of the nodes that an output depends on, in topological order; file order is kept wherever
    it can be. ``reads`` are the names that each node reads. ``made`` maps each value to the index of its node, -1 where
    no node makes it. ``used`` are the names that live nodes and outputs read. ``speculative`` are live nodes that
    matter only if an If takes the branch that reads them. ``outer`` are the names that the graph sees around it: none
    for the main graph.

    Raises InvalidModelError for a cycle, and for a value that is made twice or not at all.
    """

    def __init__(self, graph: GraphProto, outer: Container[str] = ()) -> None:
        self.nodes = list(graph.node)
        self.names = node_names(self.nodes)
        self.reads = reads = [reads_of(node) for node in self.nodes]
        self.made = _makers(graph, self.nodes, reads, outer)
        outputs = [output.name for output in graph.output]
        sources = _sources([*reads, outputs], self.made)
        order = _topological(sources, self.nodes)
        self.live = _reaching_outputs(sources, order)
        self.used = frozenset(name for index in self.live for name in reads[index]) | frozenset(outputs)
        self.speculative: frozenset[int] = frozenset()
        if any(self.nodes[index].op_type == "If" for index in self.live):
            given = [node.input if node.op_type == "If" else reads[index] for index, node in enumerate(self.nodes)]
            certain = _reaching_outputs(_sources([*given, outputs], self.made), order)
            self.speculative = frozenset(self.live).difference(certain)


def _sources(reads: Sequence[Collection[str]], made: Mapping[str, int]) -> list[set[int]]:
    """The nodes that each node reads from; the last entry of ``reads`` are the outputs."""
    return [{maker for name in names if (maker := made.get(name, -1)) >= 0} for names in reads]


def _topological(sources: Sequence[set[int]], nodes: Sequence[NodeProto]) -> list[int]:
    """Indices of the nodes, each after the nodes it reads from; file order is kept wherever it can be."""
    if all(not makers or max(makers) < reader for reader, makers in enumerate(sources)):
        return list(range(len(nodes)))
    readers: list[list[int]] = [[] for _ in nodes]
    for reader, makers in enumerate(sources[:-1]):  # the outputs come last
        for maker in makers:
            readers[maker].append(reader)
    missing = [len(makers) for makers in sources]
    ready = [index for index in range(len(nodes)) if not missing[index]]
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    if len(order) == len(nodes):
        return order
    try:
        TopologicalSorter(dict(enumerate(sources))).prepare()
    except CycleError as error:
        node = nodes[error.args[1][0]]
    name = quoted(node.name or node.op_type)
    raise InvalidModelError(f"the graph has a cycle through node {name}", remedy=EXPORT_AGAIN)


def _reaching_outputs(sources: Sequence[set[int]], order: Sequence[int]) -> list[int]:
    """The part of ``order`` that the outputs depend on."""
    needed = set(sources[-1])
    found = [*needed]
    while found:
        new = sources[found.pop()] - needed
        needed |= new
        found += new
    return [index for index in order if index in needed]


def _makers(
    graph: GraphProto, nodes: Sequence[NodeProto], reads: Sequence[Collection[str]], outer: Container[str]
) -> dict[str, int]:
    """The index of the node that makes each value, -1 for any other value; every name must have one maker."""
    twice = [name for name, count in Counter(entry.name for entry in graph.input).items() if count > 1]
    if twice:
        raise InvalidModelError(f"there are two inputs {quoted(twice[0])}", remedy=EXPORT_AGAIN)
    made = dict.fromkeys((*constant_names(graph), *(entry.name for entry in graph.input)), -1)
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and name in made:
                raise _made_twice(name, made[name], node, nodes)
            if name:
                made[name] = index
    for index, node in enumerate(nodes):
        for name in reads[index]:
            if name not in made and name not in outer:
                where = f"node {quoted(node.name or node.op_type)}"
                raise InvalidModelError(f"{where} reads {quoted(name)}, which nothing makes", remedy=EXPORT_AGAIN)
            made.setdefault(name, -1)
    for output in graph.output:
        if output.name not in made and output.name not in outer:
            raise InvalidModelError(f"nothing makes the output {quoted(output.name)}", remedy=EXPORT_AGAIN)
    return made


def _made_twice(name: str, first: int, second: NodeProto, nodes: Sequence[NodeProto]) -> InvalidModelError:
    """The error for two values of one name, which exporters give to what a module calls alike."""
    other = f"node {quoted(nodes[first].name or nodes[first].op_type)}" if first >= 0 else "an initializer or input"
    where = f"node {quoted(second.name or second.op_type)} ({quoted(second.op_type)[1:-1]})"
    return InvalidModelError(
        f"two values have the name {quoted(name)}: {other} makes one, {where} the other",
        remedy=f"rename what the module calls {quoted(name)}, as a parameter or an argument, and {EXPORT_AGAIN}",
    )


def node_names(nodes: Sequence[NodeProto]) -> list[str]:
    """A unique name for each node: its own where no other node has it, else ``<op_type>_<k>``."""
    given = Counter(node.name for node in nodes)
    numbers: Counter[str] = Counter()
    names: list[str] = []
    for node in nodes:
        name = node.name
        if not name or given[name] > 1:
            while (name := f"{node.op_type}_{numbers[node.op_type]}") in given:
                numbers[node.op_type] += 1
            numbers[node.op_type] += 1
        names.append(name)
    return names
