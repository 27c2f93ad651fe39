"""Tree of chains and branches that a forward graph falls into (Feng & Huang, CVPR 2021, section 3.3).

A chain is cut at its articulation storages into pieces. A piece whose results meet in one op splits
into the branches between its two ends, each again a chain. A piece that is one connected tangle with
no articulation storage inside splits into its independent segments, each again a chain, and the nodes
between them, which are kept when it is divided. Sizes are bytes of saved storages: those a backward reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...training_graph import TrainingGraph
from .articulation import crossings, differentiable, saved
from .series_parallel import SINK, SOURCE, Segment, independent_segments

MAX_DEPTH = 60
"""Branches nested deeper than this are left whole, so that no graph exhausts the stack."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Pieces joined by articulation storages: ``pieces[i]`` lies between nodes i and i + 1.

    Nodes 0 and len(pieces) are the ends, which belong to whatever holds the chain; node i between
    them is ``storages[i - 1]``, with ``kept_nbytes`` when it is a checkpoint and ``saved_nbytes``
    when it is not.
    """

    storages: tuple[int, ...]
    kept_nbytes: tuple[int, ...]
    saved_nbytes: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What lies strictly between two nodes; ``branches`` is empty when it cannot be divided.

    ``kept`` are storages inside that are checkpoints, of ``kept_nbytes``, whenever it is divided.
    """

    nbytes: int
    branches: tuple[Chain, ...] = ()
    kept: tuple[int, ...] = ()
    kept_nbytes: int = 0


class _Builder:
    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        pinned, read = set(graph.outputs), saved(graph)
        self.size = [0 if s in pinned else storage.nbytes for s, storage in enumerate(graph.storages)]
        self.saved = [nbytes if s in read else 0 for s, nbytes in enumerate(self.size)]
        self.producer = graph.producer

    def written_nbytes(self, ops: Iterable[int]) -> int:
        return sum(self.saved[s] for index in ops for s in self.graph.ops[index].writes)

    def chain(self, ops: Sequence[int], source: int | None, join: int | None, depth: int) -> Chain:
        """The chain of ``ops`` between the storage ``source`` and the op ``join``, both outside."""
        found = crossings(self.graph, ops, source=source, join=join)
        pieces: list[Piece] = []
        rest = iter(ops)
        left = source
        for separator in found:
            part = []
            for index in rest:
                part.append(index)
                if index == separator.after:
                    break
            pieces.append(self.piece(part, left, separator.storage, None, depth))
            left = separator.storage
        pieces.append(self.piece(list(rest), left, None, join, depth))
        storages = tuple(separator.storage for separator in found)
        return Chain(
            storages, tuple(self.size[s] for s in storages), tuple(self.saved[s] for s in storages), tuple(pieces)
        )

    def piece(self, ops: list[int], source: int | None, end: int | None, join: int | None, depth: int) -> Piece:
        """What ``ops`` put between two nodes: ``end`` is the storage one of them makes, or ``join`` lies outside."""
        nbytes = self.written_nbytes(ops) - (0 if end is None else self.saved[end])
        inside = ops
        if end is not None:
            join = self.producer[end]
            inside = [index for index in ops if index != join]
        parts = self.components(inside)
        if depth >= MAX_DEPTH or not parts:
            return Piece(nbytes)
        if len(parts) == 1 and len(inside) == len(ops):
            return self.tangle(ops, source, join, nbytes, depth)
        branches = [self.chain(part, source, join, depth + 1) for part in parts]
        if len(parts) == 1 and not branches[0].storages and not branches[0].pieces[0].branches:
            return Piece(nbytes)
        fork = nbytes - self.written_nbytes(inside)  # what the joining op writes besides the end
        if fork:
            branches.append(Chain((), (), (), (Piece(fork),)))
        return Piece(nbytes, tuple(branches))

    def tangle(self, ops: list[int], source: int | None, join: int | None, nbytes: int, depth: int) -> Piece:
        """A piece that is connected without any one of its storages in the way of all paths."""
        segments = independent_segments(self.edges(ops, source, join))
        inside = {index for segment in segments for index in segment.inside}
        nodes = [index for index in ops if index not in inside]
        if not inside or not nodes:
            return Piece(nbytes)
        branches = [self.between(segment, source, join, depth) for segment in segments]
        read = {storage for index in ops for storage in self.graph.ops[index].reads}.union(self.joined(join))
        kept: list[int] = []
        for node in nodes:
            writes = self.graph.ops[node].writes
            made = [storage for storage in writes if storage in read and self.size[storage]]
            kept += made
            fork = sum(self.saved[storage] for storage in writes if storage not in made)
            if fork:
                branches.append(Chain((), (), (), (Piece(fork),)))
        return Piece(nbytes, tuple(branches), tuple(kept), sum(self.size[storage] for storage in kept))

    def between(self, segment: Segment, source: int | None, join: int | None, depth: int) -> Chain:
        """The chain of an independent segment of a tangle."""
        if segment.begin != SOURCE:
            read = {storage for index in segment.inside for storage in self.graph.ops[index].reads}
            given = read.intersection(self.graph.ops[segment.begin].writes)
            source = given.pop() if len(given) == 1 else None
        return self.chain(segment.inside, source, join if segment.end == SINK else segment.end, depth + 1)

    def edges(self, ops: list[int], source: int | None, join: int | None) -> set[tuple[int, int]]:
        """Which of ``ops`` feeds which; SOURCE and SINK stand for what is outside."""
        own = set(ops)
        found: set[tuple[int, int]] = set()
        for index in ops:
            reads = self.graph.ops[index].reads
            makers = {int(self.producer[storage]) for storage in reads} & own
            found.update((maker, index) for maker in makers)
            if not makers or source in reads:
                found.add((SOURCE, index))
        found.update((int(self.producer[s]), SINK) for s in self.joined(join) if self.producer[s] in own)
        ends = own.difference(maker for maker, _ in found)
        return found | {(index, SINK) for index in ends}

    def joined(self, join: int | None) -> tuple[int, ...]:
        """What the joining op reads, if there is one."""
        return () if join is None else self.graph.ops[join].reads

    def components(self, ops: list[int]) -> list[list[int]]:
        """Ops that are connected by storages made among them, each list in forward order."""
        import networkx as nx

        joined = nx.Graph()
        joined.add_nodes_from(ops)
        makers = ((int(self.producer[storage]), index) for index in ops for storage in self.graph.ops[index].reads)
        joined.add_edges_from((maker, index) for maker, index in makers if maker in joined)
        return sorted(sorted(part) for part in nx.connected_components(joined))


def division_tree(graph: TrainingGraph) -> Chain:
    """The tree over all ops that have a backward."""
    return _Builder(graph).chain(differentiable(graph), None, None, 0)
