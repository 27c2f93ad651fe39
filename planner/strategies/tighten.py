"""Raise the bound once a plan is there: stages where the plan holds the most."""

from __future__ import annotations

import numpy as np

from .search import Search
from .stage_lp import StageLP
from .starts import stage_limit


def tighten(search: Search, relaxed: StageLP) -> None:
    """Solve the bound once more with stages where the plan found holds the most."""
    if search.best is None or search.settled() or search.out_of_time():
        return
    sequence = search.best.sequence
    search.evaluator.evaluate_sequence(sequence)
    held = np.cumsum(search.evaluator.scratch.memory[: len(sequence)])
    during = [
        (int(held[event]) + int(search.problem.during_nbytes[position]), position)
        for position, event in enumerate(np.flatnonzero(sequence < 0).tolist())
    ]
    limit = stage_limit(search)
    for _, position in sorted(during, key=lambda pair: (-pair[0], pair[1])):
        if len(search.stages) >= limit:
            break
        if all(abs(position - stage) > len(during) // (3 * limit) for stage in search.stages):
            search.stages.add(position)
    search.say(f"bounding with {len(search.stages)} stages")
    relaxation = relaxed.solve(search.budget_nbytes, sorted(search.stages), search.remaining_s())
    search.bound_ns = max(search.bound_ns, relaxation.bound_ns)
    if relaxation.solved:
        search.round(relaxation)
