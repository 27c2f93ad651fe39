"""Raise the bound once a plan is there: stages where the plan holds the most, then branch and bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .branch_and_bound import bound
from .extra_stages import extra_stages
from .search import Search
from .stage_lp import Relaxation, StageLP
from .starts import stage_limit

_PAIRS_WORTH = 0.002
"""Pairs of stages are looked for when the gap is still more than this of the step."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A bound in ns, and the relaxed points of the boxes that hold it back, for rounding."""

    bound_ns: int
    points: tuple[Relaxation, ...] = ()


@contextmanager
def certifying(search: Search, relaxed: StageLP) -> Iterator[Callable[[], Certified]]:
    """Work on the bound beside whatever the caller does meanwhile; the value waits for it.

    Nothing passes between the two until then, so the outcome does not depend on how fast either is.
    """
    assert search.best is not None
    stages, incumbent_ns = _stages(search), search.best.found.recompute_ns
    with ThreadPoolExecutor(1) as pool:
        future: Future[Certified] = pool.submit(certify, search, relaxed, stages, incumbent_ns)
        try:
            yield future.result
        except BaseException:
            search.stopped_early = True  # else leaving would wait for the whole branch and bound
            raise


def certify(search: Search, relaxed: StageLP, stages: tuple[int, ...], incumbent_ns: int) -> Certified:
    """A certified bound no higher than the incumbent; changes nothing of the search."""
    effort, budget = search.effort, search.budget_nbytes
    if effort.branching == 0:
        answer = relaxed.solve(budget, stages, search.remaining_s())
        return Certified(min(answer.bound_ns, incumbent_ns), (answer,) if answer.solved else ())
    late, work = search.out_of_time, effort.branching
    answer_of, staged = bound(relaxed, budget, incumbent_ns, stages, work=work, late=late)
    gap = (incumbent_ns - answer_of.bound_ns) / max(1, search.problem.store_all_ns)
    if effort.pairs and gap > _PAIRS_WORTH and not late():
        extra = extra_stages(relaxed, budget, incumbent_ns, stages, pairs=effort.pairs, late=late)
        again, again_staged = bound(relaxed, budget, incumbent_ns, stages, work=work, late=late, extra=extra)
        if again.bound_ns > answer_of.bound_ns:
            answer_of, staged = again, again_staged
    points = tuple(relaxed.relaxation(staged, point, answer_of.bound_ns, True) for point in answer_of.points)
    return Certified(answer_of.bound_ns, points)


def _stages(search: Search) -> tuple[int, ...]:
    """The stages so far and, spread out, those where the best plan holds the most."""
    assert search.best is not None
    sequence = search.best.sequence
    search.evaluator.evaluate_sequence(sequence)
    held = np.cumsum(search.evaluator.scratch.memory[: len(sequence)])
    during = [
        (int(held[event]) + int(search.problem.during_nbytes[position]), position)
        for position, event in enumerate(np.flatnonzero(sequence < 0).tolist())
    ]
    limit = max(2, min(stage_limit(search), search.effort.stages // search.problem.op_count))
    stages = {0, *sorted(search.stages)[:limit]} if len(search.stages) > limit else set(search.stages)
    for _, position in sorted(during, key=lambda pair: (-pair[0], pair[1])):
        if len(stages) >= limit:
            break
        if all(abs(position - stage) > len(during) // (3 * limit) for stage in stages):
            stages.add(position)
    return tuple(sorted(stages))
