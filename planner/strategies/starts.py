"""Where a search starts: roundings of the relaxations, the other strategies, grids of cuts, the chain of blocks."""

from __future__ import annotations

from . import greedy, knapsack, layers, lp_rounding, ogc, segments, speed, sqrt_n
from .chain import Chain
from .cut_rounding import round_cut
from .cuts import grids
from .min_cut import MinCut
from .rotor import Rotor
from .search import Search
from .stage_lp import StageLP

_MAX_STAGES = 14
_STAGE_WORK = 5000
"""Stages times ops of the largest LP, a second or two of simplex."""
_REPAIR_WORK = 1500
"""Relaxations solved for repair, times ops."""
_KNAPSACK_OPS = 1500
_ROUNDING_OPS = 40
"""Largest graphs on which a strategy that others are better than by far is still worth its seconds."""


def stage_limit(search: Search) -> int:
    """How many stages an LP of this problem may have."""
    return max(2, min(_MAX_STAGES, _STAGE_WORK // max(1, search.problem.op_count)))


def generate_rows(search: Search, relaxed: StageLP) -> None:
    """Solve, round, replay, add the stages where the roundings peak; until they fit or show nothing new."""
    while not search.out_of_time():
        search.say(f"bounding with {len(search.stages)} stages")
        relaxation = relaxed.solve(search.budget_nbytes, sorted(search.stages), search.remaining_s())
        search.bound_ns = max(search.bound_ns, relaxation.bound_ns)
        if not relaxation.solved:
            return
        fresh = sorted(search.round(relaxation) - search.stages)[:3]
        if not fresh or len(search.stages) >= stage_limit(search):
            return
        search.stages.update(fresh)


def repair(search: Search, relaxed: StageLP) -> None:
    """Roundings of the LP under a smaller budget of its own, bisected towards the largest that fits."""
    low, high = 0.5, 1.0
    floor = search.problem.floor_nbytes
    for _ in range(max(2, min(6, _REPAIR_WORK // max(1, search.problem.op_count)))):
        if search.settled() or search.out_of_time():
            return
        middle = (low + high) / 2
        inner = floor + int((search.budget_nbytes - floor) * middle)
        relaxation = relaxed.solve(inner, sorted(search.stages), search.remaining_s())
        if not relaxation.solved:
            low = middle
            continue
        before = search.best_labels
        search.round(relaxation)
        if search.best_labels is not before:
            low = middle
        else:
            high = middle


def cut(search: Search, minimum: MinCut) -> None:
    """The bound of one stage as a minimum cut, and its kept sets: milliseconds even on very large graphs."""
    search.say("cutting")
    search.bound_ns = max(search.bound_ns, minimum.bound_ns(search.budget_nbytes))
    round_cut(minimum, search.evaluator, search.budget_nbytes, search.offer)


def baselines(search: Search) -> None:
    """Grids of cuts and the plans of the other strategies: the certified one is never worse than they are."""
    evaluator, budget = search.evaluator, search.budget_nbytes
    for labels in grids(evaluator):
        search.offer(labels)
    for count in (2, 4, 8):
        search.offer(segments.labels(evaluator, count))
    for module in (speed, sqrt_n, ogc, greedy, layers):
        if search.out_of_time():
            return
        search.offer(module.labels(evaluator, budget))
    if search.problem.op_count <= _KNAPSACK_OPS and not search.out_of_time():
        search.offer(knapsack.labels(evaluator, budget))
    if search.problem.op_count <= _ROUNDING_OPS:
        for inner in (budget, None):
            if search.out_of_time():
                return
            search.offer_sequence(lp_rounding.sequence(evaluator, inner, deadline=search.deadline)[0])


def chains(search: Search, chain: Chain, rotor: Rotor) -> None:
    """Nested recomputation over a chain of blocks, with options within blocks and, as Rotor, without."""
    search.say("solving the chain of blocks")
    if search.effort.refinements and not search.out_of_time():
        chain = chain.refined(search.budget_nbytes, search.effort.refinements)
    for found in (chain.best(search.budget_nbytes), rotor.plan(search.budget_nbytes), rotor.lowest()):
        if found is not None:
            search.offer_sequence(found[0])
