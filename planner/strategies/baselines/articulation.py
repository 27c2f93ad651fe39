"""Articulation storages: the places where a forward graph is one tensor wide.

A storage is an articulation storage when, at some point of the forward order, it is the only value
that gradient-carrying ops on one side hand to gradient-carrying ops on the other: everything after
that point can be recomputed from it alone. One sweep with a difference array finds them all. Articulation points of
networkx would not: they are vertices of an undirected graph, and a storage with several readers is a hyperedge.

The published definition asks that every path of the whole graph crosses the tensor. Ours looks at
ops that gradients pass only, so a mask or position table computed once and read by every layer is
no second path (it is *carried* along with a checkpoint), nor is a head that ends in an output, nor
a bias computed from parameters in the middle of the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...training_graph import TrainingGraph
from ..evaluation.evaluator import Evaluator, Labels
from ..evaluation.labels import Label


@dataclass(frozen=True, slots=True)
class Separator:
    """``storage`` is all that crosses from the ops up to ``after`` (an op index) to the later ones."""

    storage: int
    after: int


def differentiable(graph: TrainingGraph) -> tuple[int, ...]:
    """Ops that gradients pass, in forward order: those with a backward, and those between two of them.

    Frameworks run no backward for an addition, say, whose gradient is that of its result.
    """
    producer = graph.producer
    trained = [op.backward is not None for op in graph.ops]
    below, above = list(trained), list(trained)
    for index, op in enumerate(graph.ops):
        below[index] |= any(below[producer[storage]] for storage in op.reads)
    wanted: set[int] = set()
    for index in reversed(range(len(graph.ops))):
        above[index] |= not wanted.isdisjoint(graph.ops[index].writes)
        wanted.update(graph.ops[index].reads if above[index] else ())
    return tuple(index for index in range(len(graph.ops)) if below[index] and above[index])


def crossings(
    graph: TrainingGraph, ops: Sequence[int], *, source: int | None = None, join: int | None = None
) -> tuple[Separator, ...]:
    """The separators of a subset of ops in forward order, each at the first cut where it is alone.

    ``source`` is a storage made before the first of ``ops``: while some of them still read it, it
    crosses too. ``join`` is an op after the last of them that reads their results.
    """
    made_at: dict[int, int] = {} if source is None else {source: -1}
    last_read: dict[int, int] = {}
    for position, index in enumerate([*ops, *(() if join is None else (join,))]):
        for storage in graph.ops[index].reads:
            if storage in made_at and not (storage == source and index == join):
                last_read[storage] = position
        if position < len(ops):
            made_at.update((storage, position) for storage in graph.ops[index].writes)
    count = np.zeros(len(ops) + 2, dtype=np.int64)
    which = np.zeros(len(ops) + 2, dtype=np.int64)  # the sum of the storages that cross: their number when alone
    for storage, last in last_read.items():
        if graph.storages[storage].nbytes > 0:
            first = max(0, made_at[storage])
            count[first] += 1
            count[last] -= 1
            which[first] += storage
            which[last] -= storage
    count, which = np.cumsum(count), np.cumsum(which)
    found: list[Separator] = []
    for position in np.flatnonzero(count[: len(ops)] == 1).tolist():
        storage = int(which[position])
        if storage != source and (not found or found[-1].storage != storage):
            found.append(Separator(storage, ops[position]))
    return tuple(found)


def separators(graph: TrainingGraph) -> tuple[Separator, ...]:
    """The articulation storages of the whole graph in forward order. Linear in the size of the graph."""
    return crossings(graph, differentiable(graph))


def carried(graph: TrainingGraph, after: Iterable[int]) -> frozenset[int]:
    """Storages without gradient that gradient-carrying ops still read beyond one of the cuts ``after``.

    A framework saves them with the inputs of a checkpointed segment. The cut before the first
    gradient-carrying op is always among them: what a frozen prefix computes is an input to the rest.
    """
    trained = differentiable(graph)
    if not trained:
        return frozenset()
    cuts = np.array(sorted({trained[0] - 1, *after}), dtype=np.int64)
    producer = graph.producer
    last_read = {
        storage: index for index in trained for storage in graph.ops[index].reads
    }  # later ops overwrite earlier ones
    inside = set(trained)
    free = [s for s in sorted(last_read) if int(producer[s]) not in inside]
    return frozenset(
        s for s in free if np.searchsorted(cuts, producer[s], "left") < np.searchsorted(cuts, last_read[s], "left")
    )


def saved(graph: TrainingGraph) -> frozenset[int]:
    """Storages that some backward reads."""
    return frozenset(s for op in graph.ops if op.backward is not None for s in op.backward.reads)


def keep_only(evaluator: Evaluator, kept: Iterable[int]) -> Labels:
    """Keep these storages and drop every other one, save those that are decided already."""
    labels, decided = evaluator.labels(Label.DROP), evaluator.decided
    for storage in sorted(kept):
        if not decided[storage]:
            labels[storage] = Label.KEEP
    return labels
