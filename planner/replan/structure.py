"""Steps of the same structure: they compute the same, on tensors of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

from ..annotations import OpWork
from ..graph import Storage
from ..training_graph import OpCost, Stationary, TrainingGraph


def same_structure(one: TrainingGraph, other: TrainingGraph) -> bool:
    """Whether two steps differ in sizes alone, and in where gradients end that a step accumulates."""
    return _without_sizes(one) == _without_sizes(other)


def _without_sizes(graph: TrainingGraph) -> TrainingGraph:
    graph = graph.without_ends()
    return replace(
        graph,
        ops=tuple(replace(op, forward=-1) for op in graph.ops),
        storages=tuple(Storage(storage.name, 0) for storage in graph.storages),
        gradients=tuple(replace(gradient, nbytes=0) for gradient in graph.gradients),
        stationary=Stationary(),
        fingerprint="",
    )


def scaled(works: Sequence[OpWork], known: Sequence[OpWork], costs: Sequence[OpCost]) -> tuple[OpWork, ...]:
    """``works`` with the times of ``costs``, scaled by the work of each op against its ``known`` work.

    The times of an op with arithmetic grow with it, those of others with the bytes that they read and write.
    """
    found = []
    for work, before, cost in zip(works, known, costs, strict=True):
        forward = _ratio(work.forward_flops, before.forward_flops) or _ratio(
            work.forward_traffic_nbytes, before.forward_traffic_nbytes
        )
        backward = _ratio(work.backward_flops, before.backward_flops) or _ratio(
            work.backward_traffic_nbytes, before.backward_traffic_nbytes
        )
        found.append(
            replace(
                work,
                forward_ns=round(cost.forward_ns * (forward or 1)),
                backward_ns=round(cost.backward_ns * (backward or 1)),
            )
        )
    return tuple(found)


def _ratio(now: int, before: int) -> float:
    return now / before if before else 0.0


def distance(one: TrainingGraph, other: TrainingGraph) -> float:
    """How far two steps are apart in size: 0 for equal ones, else how many times larger one is, as a logarithm."""
    return abs(log(_size(one) / _size(other)))


def _size(graph: TrainingGraph) -> int:
    return 1 + sum(storage.nbytes for storage in graph.storages)
