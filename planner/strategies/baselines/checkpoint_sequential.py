"""Equal segments of a chain: what torch.utils.checkpoint.checkpoint_sequential does.

With m modules and K segments each of the first K - 1 takes m // K modules and stores its input only;
the last takes the rest and is stored whole (torch 2.13, torch/utils/checkpoint.py). A module here is
what lies between two articulation storages, since a graph no longer knows the nn.Sequential it came
from; the input of the first segment is the model's own.

Deviations: more segments than modules are cut down to the number of modules, where torch raises; a
value is recomputed only if a backward needs it, where torch runs the segment up to its last saved tensor.
"""

from __future__ import annotations

from dataclasses import replace

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..evaluation.evaluator import Evaluator, Labels
from .articulation import Separator, carried, keep_only, separators


def boundaries(problem: Problem, segments: int) -> tuple[Separator, ...]:
    """Where segments 2..K start, at most ``segments`` - 1 of them."""
    found = separators(problem.graph)
    segments = max(1, min(segments, len(found) + 1))
    size = (len(found) + 1) // segments
    return tuple(found[number * size - 1] for number in range(1, segments))


def labels(evaluator: Evaluator, segments: int) -> Labels:
    """Labels of the one plan with this many segments."""
    graph = evaluator.problem.graph
    starts = boundaries(evaluator.problem, segments)
    last = starts[-1].after if starts else -1
    kept = {start.storage for start in starts}
    kept.update(s for op in graph.ops[last + 1 :] for s in op.writes)
    return keep_only(evaluator, kept | carried(graph, (start.after for start in starts)))


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    segments: int = 2,
) -> Solution:
    """Keep the inputs of ``segments`` equal segments and the whole last one; UNKNOWN when above the budget."""
    evaluator = Evaluator(problem)
    solution = evaluator.solution(labels(evaluator, segments), budget_nbytes, f"segments:{segments}")
    modules = len(separators(problem.graph)) + 1
    used = len(boundaries(problem, segments)) + 1
    notes = [f"{modules} modules between articulation tensors in {used} segment{'s' if used > 1 else ''}"]
    if used < segments:
        notes.append(f"{segments} segments asked for, the graph has {modules} modules")
    return replace(solution, notes=tuple(notes))
