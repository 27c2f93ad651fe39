"""About sqrt(n) checkpoints, evenly spread over the articulation storages.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174,
section 4.1) as mode "memory" of the TensorFlow package gradient-checkpointing carries it out: with
N the number of tensors the backward reads, every ceil(B / sqrt(N))-th of B bottleneck tensors is a
checkpoint, or all of them when there are no more than ceil(sqrt(N)). Bottlenecks that a backward
reads are preferred; the others are used when those are fewer than sqrt(N). All else is recomputed,
the part after the last checkpoint included, as the original does.

Deviations: bottlenecks are separators.separators, which no longer lose to masks and side heads; there
is no minimum size of a checkpoint; where there is no bottleneck the original raises, here the plain
step is the answer. A value is recomputed only if a backward needs it, not with its whole segment.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, sqrt

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..evaluation.evaluator import Evaluator, Labels
from ..evaluation.labels import Label
from .articulation import Separator, carried, differentiable, keep_only, saved, separators

NAME = "sqrt"


def checkpoints(problem: Problem) -> tuple[Separator, ...]:
    """The articulation storages to keep, in forward order; empty when the graph has none."""
    graph = problem.graph
    trained, producer = set(differentiable(graph)), graph.producer
    read = {s for s in saved(graph) - problem.pinned if graph.storages[s].nbytes > 0 and producer[s] in trained}
    count = len(read)
    bottlenecks = [separator for separator in separators(graph) if separator.storage not in problem.pinned]
    chosen = [separator for separator in bottlenecks if separator.storage in read]
    if len(chosen) < sqrt(count):
        chosen = bottlenecks
    if len(chosen) > ceil(sqrt(count)) > 0:
        step = ceil(len(chosen) / sqrt(count))
        chosen = chosen[step::step]
    return tuple(chosen)


def labels(evaluator: Evaluator, budget_nbytes: int | None = None) -> Labels:
    """Labels of the one plan of this strategy; the budget plays no part."""
    chosen = checkpoints(evaluator.problem)
    if not chosen:
        return evaluator.labels(Label.KEEP)
    kept = {separator.storage for separator in chosen}
    return keep_only(evaluator, kept | carried(evaluator.problem.graph, (s.after for s in chosen)))


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """Keep about sqrt(n) articulation storages; UNKNOWN when that one plan is above the budget."""
    evaluator = Evaluator(problem)
    solution = evaluator.solution(labels(evaluator), budget_nbytes, NAME)
    return replace(solution, notes=_notes(problem))


def _notes(problem: Problem) -> tuple[str, ...]:
    found, chosen = len(separators(problem.graph)), len(checkpoints(problem))
    if not chosen:
        return ("the graph has no articulation tensor to checkpoint: nothing is recomputed",)
    return (f"{chosen} of {found} articulation tensors are checkpoints",)
