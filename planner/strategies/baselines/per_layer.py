"""Identical layers get identical decisions: one label per class of storages, classes chosen greedily.

The template that trainers of transformers use (torchtitan's per-layer selective checkpointing, MaxText
and Megatron policies): what is decided for a tensor of one layer holds for that tensor of every layer.
Here the layers are found, not named, by the colours of their ops (op_colours.py).

A class is an op's colour and the index of one of its outputs. Classes are dropped and kept again by
the rule of greedy.py. On a network without repeated layers this is greedy itself.
"""

from __future__ import annotations

from dataclasses import replace

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..evaluation.evaluator import Evaluator, Labels
from ..evaluation.op_colours import colours
from .greedy import descend

NAME = "layers"


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
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """A plan within the budget, or UNKNOWN with the smallest peak reached when the template gets stuck."""
    evaluator = Evaluator(problem)
    groups = classes(evaluator)
    solution = evaluator.solution(descend(evaluator, groups, budget_nbytes), budget_nbytes, NAME)
    count = sum(len(group) for group in groups)
    return replace(solution, notes=(f"{count} undecided tensors in {len(groups)} classes",))
