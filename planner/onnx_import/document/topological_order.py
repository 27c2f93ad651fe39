"""The nodes of a graph put in order: who makes which value, which order is valid, which nodes matter."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from json import dumps as quoted
from typing import TYPE_CHECKING

from ...errors import InvalidModelError
from .subgraphs import constant_names, reads_of

if TYPE_CHECKING:
    from .protobuf import GraphProto, NodeProto

REMEDY = "export the model again"


class NodeOrder:
    """The order in which the nodes of one graph are read.

    ``outer`` are the names that the graph sees around it: none for the main graph. Raises
    InvalidModelError for a cycle, and for values made twice or by nothing.
    """

    def __init__(self, graph: GraphProto, outer: Container[str] = ()) -> None:
        self.nodes = list(graph.node)
        self.names = node_names(self.nodes)
        self.reads = [reads_of(node) for node in self.nodes]
        self.made = _makers(graph, self.nodes, self.reads, outer)
        self.order = _topological(self.nodes, self.reads, self.made)
        outputs = [output.name for output in graph.output]
        self.live = _reaching(self.nodes, self.reads, self.order, outputs)
        self.used = frozenset(name for index in self.live for name in self.reads[index]) | frozenset(outputs)
        self.speculative = self._speculative(outputs)
        """Nodes that matter only if an If that they reach takes the branch that reads them."""

    def _speculative(self, outputs: Sequence[str]) -> frozenset[int]:
        if not any(self.nodes[index].op_type == "If" for index in self.live):
            return frozenset()
        inputs = [tuple(node.input) if node.op_type == "If" else self.reads[i] for i, node in enumerate(self.nodes)]
        return frozenset(self.live).difference(_reaching(self.nodes, inputs, self.order, outputs))


def _topological(nodes: Sequence[NodeProto], reads: Sequence[Collection[str]], made: Mapping[str, int]) -> list[int]:
    """Indices of the nodes, each after the nodes it reads from; file order is kept wherever it can be."""
    waiting = [0] * len(nodes)
    readers: dict[int, list[int]] = {}
    for index, names in enumerate(reads):
        for maker in {made[name] for name in names} - {-1}:
            waiting[index] += 1
            readers.setdefault(maker, []).append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        name = _on_cycle(nodes, reads, waiting, made)
        raise InvalidModelError(f"the graph has a cycle through node {name}", remedy=REMEDY)
    return order


def _on_cycle(
    nodes: Sequence[NodeProto],
    reads: Sequence[Collection[str]],
    waiting: Sequence[int],
    made: Mapping[str, int],
) -> str:
    """Some node of a cycle: walk upwards through waiting nodes until one comes twice."""
    index = next(position for position, count in enumerate(waiting) if count)
    seen: set[int] = set()
    while index not in seen:
        seen.add(index)
        index = next(made[name] for name in reads[index] if made[name] >= 0 and waiting[made[name]])
    return quoted(nodes[index].name or nodes[index].op_type)


def _makers(
    graph: GraphProto, nodes: Sequence[NodeProto], reads: Sequence[Collection[str]], outer: Container[str]
) -> dict[str, int]:
    """The index of the node that makes each value, -1 for any other value; every name must have one maker."""
    twice = [name for name, count in Counter(entry.name for entry in graph.input).items() if count > 1]
    if twice:
        raise InvalidModelError(f"there are two inputs {quoted(twice[0])}", remedy=REMEDY)
    made = dict.fromkeys((*constant_names(graph), *(entry.name for entry in graph.input)), -1)
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and name in made:
                raise InvalidModelError(f"the value {quoted(name)} is made twice", remedy=REMEDY)
            if name:
                made[name] = index
    for index, node in enumerate(nodes):
        for name in reads[index]:
            if name not in made and name not in outer:
                where = f"node {quoted(node.name or node.op_type)}"
                raise InvalidModelError(f"{where} reads {quoted(name)}, which nothing makes", remedy=REMEDY)
            made.setdefault(name, -1)
    for output in graph.output:
        if output.name not in made and output.name not in outer:
            raise InvalidModelError(f"nothing makes the output {quoted(output.name)}", remedy=REMEDY)
    return made


def node_names(nodes: Sequence[NodeProto]) -> list[str]:
    """A unique name for each node: its own where it has one to itself, else ``<op_type>_<k>``."""
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


def _reaching(
    nodes: Sequence[NodeProto], reads: Sequence[Collection[str]], order: Sequence[int], outputs: Sequence[str]
) -> list[int]:
    """The part of ``order`` on which some output depends."""
    wanted = set(outputs)
    live: list[int] = []
    for index in reversed(order):
        if not wanted.isdisjoint(name for name in nodes[index].output if name):
            live.append(index)
            wanted.update(reads[index])
    return live[::-1]
