"""The decisions of a plan on a graph of the same step whose ops are smaller or larger than the plan's."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import networkx as nx

from ..dependencies import Predecessors, backward_predecessors, forward_predecessors
from ..solution import Decisions
from ..training_graph import TrainingGraph


def on_other_ops(graph: TrainingGraph, part_of: Sequence[int | None], decisions: Decisions) -> Decisions:
    """What ``decisions`` on the ops of another graph come to on the ops of ``graph``.

    An op runs, runs again and runs backward where the op does that it is part of. An order is changed where ``graph``
    has dependences that the other graph does not have. What nothing reads is not computed again.

    Args:
        graph: the graph to run.
        part_of: for each of its ops the op of ``decisions`` that it is part of. An op that is part of none, such as a
            copy that one framework makes and another does not, goes with an op that it reads.
        decisions: the order of computations on the other graph.
    """
    parts, producer = list(part_of), graph.producer
    for index, op in enumerate(graph.ops):
        if parts[index] is None:
            makers = (parts[producer[storage]] for storage in reversed(op.reads))
            parts[index] = next((maker for maker in makers if maker is not None), None)
    return _pruned(graph, Decisions(tuple(_sequence(graph, parts, decisions))))


def _sequence(graph: TrainingGraph, parts: Sequence[int | None], decisions: Decisions) -> Iterator[int]:
    members: dict[int, list[int]] = {}
    for index, part in enumerate(parts):
        if part is not None:
            members.setdefault(part, []).append(index)
    at: dict[int, int] = {}
    for position, entry in enumerate(decisions.sequence):
        at.setdefault(entry, position)
    firsts = {index: None if part is None else at[part] for index, part in enumerate(parts)}
    lasts = {index: None if (part := parts[index]) is None else at.get(~part) for index in graph.backward_order}
    forward, backward = _Order(forward_predecessors(graph), firsts), _Order(backward_predecessors(graph), lasts)
    forwards = sum(entry >= 0 for entry in at)
    ran: set[int] = set()
    for entry in decisions.sequence:
        group = members.get(max(entry, ~entry), [])
        if entry in ran:
            yield from (index for index in group if not graph.ops[index].once)
            continue
        ran.add(entry)
        if entry < 0:
            yield from (~index for index in backward.through(group))
            continue
        forwards -= 1
        yield from forward.through(group if forwards else range(len(graph.ops)))
    yield from (~index for index in backward.through(graph.backward_order))


class _Order:
    """An order of runs: dependences first, then the given positions, then as listed.

    What has no position runs as soon as it can.
    """

    def __init__(self, before: Predecessors, position: Mapping[int, int | None]) -> None:
        key: dict[int, tuple[int, int]] = {}
        net = nx.DiGraph()
        for rank, (index, place) in enumerate(position.items()):  # listed in a legal order
            makers = [maker for maker in before[index] if maker in position]
            net.add_node(index)
            net.add_edges_from((maker, index) for maker in makers)
            key[index] = (max((key[maker][0] for maker in makers), default=-1) if place is None else place), rank
        self._rest = deque(nx.lexicographical_topological_sort(net, key=key.__getitem__))
        self._left = set(position)

    def through(self, wanted: Iterable[int]) -> Iterator[int]:
        """What is left of the order up to the last of ``wanted``."""
        missing = self._left.intersection(wanted)
        while missing:
            index = self._rest.popleft()
            self._left.discard(index)
            missing.discard(index)
            yield index


def _pruned(graph: TrainingGraph, decisions: Decisions) -> Decisions:
    """The same without the computations again whose results nothing reads."""
    wanted: set[int] = set()
    held = frozenset(graph.outputs)
    earlier = Counter(decisions.sequence)
    kept: list[int] = []
    for entry in reversed(decisions.sequence):
        earlier[entry] -= 1
        if entry >= 0:
            op = graph.ops[entry]
            made = set(op.writes) - held
            if earlier[entry] and wanted.isdisjoint(made):
                continue
            wanted -= made
            wanted.update(op.reads)
        else:
            backward = graph.ops[~entry].backward
            assert backward is not None
            wanted.update(backward.reads)
        kept.append(entry)
    return Decisions(tuple(reversed(kept)))
