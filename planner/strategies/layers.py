"""Identical layers get identical decisions: one label per class of storages, classes chosen greedily.

The template that trainers of transformers use (torchtitan's per-layer selective checkpointing, MaxText
and Megatron policies): what is decided for a tensor of one layer holds for that tensor of every layer.
Here the layers are found, not named: ops are coloured by type, time and sizes, and the colours are
refined over producers and consumers (Weisfeiler and Leman 1968) for _ROUNDS rounds. Few rounds on
purpose: more would tell every layer from the next by its distance to the ends of the network.

A class is an op's colour and the index of one of its outputs. Classes are dropped and kept again by
the rule of greedy.py. On a network without repeated layers this is greedy itself.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import replace

from ..problem import Problem
from ..solution import Solution
from .evaluate import Evaluator, Labels
from .greedy import descend

NAME = "layers"
_ROUNDS = 2


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys get equal numbers, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def colours(problem: Problem, rounds: int = _ROUNDS) -> list[int]:
    """A colour per op: equal for ops that look alike up to ``rounds`` hops away."""
    graph, size = problem.graph, [storage.nbytes for storage in problem.graph.storages]
    producer = graph.producer
    slot = {s: position for op in graph.ops for position, s in enumerate(op.writes)}
    readers: list[list[tuple[int, int]]] = [[] for _ in graph.ops]  # per op: (reader, which of its reads)
    for index, op in enumerate(graph.ops):
        for position, storage in enumerate(op.reads):
            readers[producer[storage]].append((index, position))
    colour = _numbered(
        [
            (
                op.op_type,
                cost.forward_ns,
                tuple(size[s] for s in op.reads),
                tuple(size[s] for s in op.writes),
                op.backward is not None,
            )
            for op, cost in zip(graph.ops, problem.costs, strict=True)
        ]
    )
    for _ in range(rounds):
        colour = _numbered(
            [
                (
                    colour[index],
                    tuple((colour[producer[s]], slot[s]) for s in op.reads),
                    tuple(sorted((colour[reader], position) for reader, position in readers[index])),
                )
                for index, op in enumerate(graph.ops)
            ]
        )
    return colour


def classes(evaluator: Evaluator) -> list[list[int]]:
    """Undecided storages grouped by class, in order of first appearance."""
    graph, decided = evaluator.problem.graph, evaluator.decided
    groups: dict[tuple[int, int], list[int]] = {}
    for colour, op in zip(colours(evaluator.problem), graph.ops, strict=True):
        for position, storage in enumerate(op.writes):
            if not decided[storage]:
                groups.setdefault((colour, position), []).append(storage)
    return list(groups.values())


def labels(evaluator: Evaluator, budget_nbytes: int | None = None) -> Labels:
    """The labels of the layer template; the peak is above the budget when it got stuck."""
    return descend(evaluator, classes(evaluator), budget_nbytes)


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    time_limit_s: float | None = None,
    seed: int = 0,
) -> Solution:
    """A plan within the budget, or UNKNOWN with the smallest peak reached when the template gets stuck."""
    started = time.perf_counter()
    evaluator = Evaluator(problem)
    groups = classes(evaluator)
    solution = evaluator.solution(descend(evaluator, groups, budget_nbytes), budget_nbytes, NAME, started=started)
    count = sum(len(group) for group in groups)
    return replace(solution, notes=(f"{count} undecided tensors in {len(groups)} classes",))
