"""Lower the cost of the best plan, or its peak, by annealing."""

from __future__ import annotations

from .anneal import Annealer
from .evaluate import Labels
from .labels import Label
from .search import Search
from .stage_lp import StageLP
from .starts import baselines

_ITERATIONS_PER_PAIR = 100
"""Iterations for every pair of storages at most, so that small graphs take milliseconds."""

_RESTARTS = ((0.01, 2), (0.03, 1), (0.1, 2), (0.3, 1)) * 2
"""Starting temperature, in units of one forward pass, and levels of checkpoints of each restart."""

_LADDER = (0.8, 0.5, 0.2)
"""Budgets, between floor and reach, whose relaxation is rounded when the smallest peak is looked for."""


def _iterations(annealer: Annealer, work: int) -> int:
    ops, movable = max(1, annealer.evaluator.problem.op_count), len(annealer.movable)
    return min(max(2000, work // ops), _ITERATIONS_PER_PAIR * movable * movable)


def improve(search: Search) -> None:
    """Anneal labels: down to the budget if nothing fits yet, then restarts of growing heat, then a cool finish.

    The restarts alternate between two levels of checkpoints and one, over a spread of heats, because no
    single heat serves every network of models/plan_benchmark.py.
    """
    annealer = Annealer(search.evaluator, search.seed)
    iterations = _iterations(annealer, search.effort.annealing)
    cool = min(0.03, 1.5 / max(1, search.problem.op_count)) / 2

    def stop(labels: Labels) -> bool:
        search.offer(labels)
        search.say("improving the plan")
        return search.out_of_time() or search.settled()

    def within(labels: Labels) -> bool:
        return stop(labels) or search.best_labels is not None

    for levels in (1, 2):
        if search.best_labels is None and not search.stopped_early:
            assert search.lowest_labels is not None
            assert search.lowest_labels.labels is not None
            labels, _ = annealer.run(
                search.lowest_labels.labels, search.budget_nbytes, iterations // 2, heat=0.02, levels=levels,
                minimise_peak=True, stop=within,
            )  # fmt: skip
            search.offer(labels)
    if search.best_labels is None:
        return
    origin = search.best_labels.labels
    restarts = [(origin, heat, levels, iterations // (2 * len(_RESTARTS))) for heat, levels in _RESTARTS]
    finish = [(None, cool / levels, levels, iterations // 4) for levels in (1, 2)]
    for start, heat, levels, work in [*restarts, *finish]:
        if search.stopped_early or search.settled():
            return
        begin = search.best_labels.labels if start is None else start
        assert begin is not None
        labels, _ = annealer.run(begin, search.budget_nbytes, work, heat=heat, levels=levels, stop=stop)
        search.offer(labels)


def lower_peak(search: Search) -> None:
    """Look for the smallest peak. Depends on problem, seed and effort alone, so what it reaches can be promised."""
    for fill in (Label.KEEP, Label.DROP):
        search.offer(search.evaluator.labels(fill))
    baselines(search)
    annealer = Annealer(search.evaluator, search.seed)
    floor = search.problem.floor_nbytes
    if search.problem.backward_order:
        relaxed = StageLP(search.problem)
        assert search.lowest is not None
        reach = search.lowest.found.peak_nbytes
        for share in _LADDER:
            if not search.out_of_time():
                search.round(relaxed.solve(floor + int((reach - floor) * share), (0,), search.remaining_s()))

    def stop(labels: Labels) -> bool:
        found = search.offer(labels)
        search.say("lowering the peak")
        return found.peak_nbytes <= floor or search.out_of_time()

    for heat, levels in ((0.02, 1), (0.02, 2), (0.1, 2), (0.01, 2)):
        assert search.lowest_labels is not None
        assert search.lowest_labels.labels is not None
        lowest = search.lowest_labels.found.peak_nbytes
        if lowest <= floor or search.stopped_early:
            return
        labels, _ = annealer.run(
            search.lowest_labels.labels, lowest, _iterations(annealer, search.effort.annealing), heat=heat,
            levels=levels, minimise_peak=True, stop=stop,
        )  # fmt: skip
        search.offer(labels)
