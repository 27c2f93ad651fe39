"""The nodes of a file put in order: who makes which value, which order is valid, which nodes matter."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from json import dumps as quoted
from typing import TYPE_CHECKING

from ..errors import InvalidModelError

if TYPE_CHECKING:
    from .shapes import GraphProto, NodeProto

REMEDY = "export the model again"


def topological_order(graph: GraphProto, nodes: Sequence[NodeProto], constants: frozenset[str]) -> list[int]:
    """Indices of the nodes, each after the nodes it reads from; file order is kept wherever it can be.

    Raises InvalidModelError for a cycle, and for values made twice or by nothing.
    """
    made = _makers(graph, nodes, constants)
    waiting = [0] * len(nodes)
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        for maker in {made[name] for name in node.input if name} - {-1}:
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
        raise InvalidModelError(f"the graph has a cycle through node {_on_cycle(nodes, waiting, made)}", remedy=REMEDY)
    return order


def _on_cycle(nodes: Sequence[NodeProto], waiting: Sequence[int], made: dict[str, int]) -> str:
    """Some node of a cycle: walk upwards through waiting nodes until one comes twice."""
    index = next(position for position, count in enumerate(waiting) if count)
    seen: set[int] = set()
    while index not in seen:
        seen.add(index)
        index = next(made[name] for name in nodes[index].input if name and made[name] >= 0 and waiting[made[name]])
    return quoted(nodes[index].name or nodes[index].op_type)


def _makers(graph: GraphProto, nodes: Sequence[NodeProto], constants: frozenset[str]) -> dict[str, int]:
    """The index of the node that makes each value, -1 for inputs and constants; every name must have one maker."""
    twice = [name for name, count in Counter(entry.name for entry in graph.input).items() if count > 1]
    if twice:
        raise InvalidModelError(f"there are two inputs {quoted(twice[0])}", remedy=REMEDY)
    made = dict.fromkeys(constants | {entry.name for entry in graph.input}, -1)
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and name in made:
                raise InvalidModelError(f"the value {quoted(name)} is made twice", remedy=REMEDY)
            if name:
                made[name] = index
    for node in nodes:
        for name in node.input:
            if name and name not in made:
                where = f"node {quoted(node.name or node.op_type)}"
                raise InvalidModelError(f"{where} reads {quoted(name)}, which nothing makes", remedy=REMEDY)
    for output in graph.output:
        if output.name not in made:
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


def reaching_outputs(graph: GraphProto, nodes: Sequence[NodeProto], order: Sequence[int]) -> list[int]:
    """The part of ``order`` on which some output depends."""
    wanted = {output.name for output in graph.output}
    live: list[int] = []
    for index in reversed(order):
        if not wanted.isdisjoint(name for name in nodes[index].output if name):
            live.append(index)
            wanted.update(nodes[index].input)
    return live[::-1]
