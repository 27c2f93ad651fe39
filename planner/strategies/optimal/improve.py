"""Lower the cost of the best plan by annealing: labels where no holds follow or the effort is thorough, then holds."""

from __future__ import annotations

from collections.abc import Sequence

from ..evaluation.evaluator import Array, Labels
from ..labelling.annealer import Annealer
from ..retention.annealer import HoldAnnealer
from .effort import Effort
from .incumbents import Search
from .parallel import in_lanes

_ITERATIONS_PER_PAIR = 100
"""Iterations for every pair of storages at most, so that small graphs take milliseconds."""

_RESTARTS = ((0.01, 2), (0.03, 1), (0.1, 2), (0.3, 1))
"""Starting temperature, in units of one forward pass, and levels of checkpoints of each restart of a lane."""

_HOLD_HEATS = ((7.0, 2.0), (7.0, 0.7))
"""Starting temperatures of each lane of the hold annealing, in units of a forward pass divided by the number of ops."""
_HOTTEST = 0.2
_PEAK_HEAT = 0.1
HOLD_OPS = 1500
"""Holds are as many as ops times backwards; beyond this many ops labels and the chain have to do."""


def iterations_of(movable: int, work: int) -> int:
    """Iterations of an annealing that may do ``work`` of them over ``movable`` storages."""
    return min(work, _ITERATIONS_PER_PAIR * movable * movable)


def hold_iterations(annealer: HoldAnnealer, work: float, effort: Effort) -> int:
    """Iterations of the hold annealing that may do ``work`` of them on a graph of no great size."""
    share = effort.share_of(annealer.evaluator.problem.op_count)
    return iterations_of(len(annealer.holds.movable), int(work * share))


def improve_labels(
    search: Search, annealers: Sequence[Annealer], *, share: float = 1.0, holds_follow: bool = False
) -> None:
    """Restarts from the best labelling over a spread of heats, in two levels of checkpoints and one; a cool finish.

    No single heat serves every network of models/plan_benchmark. ``share`` of the effort's work may be done, none
    where holds are annealed next, unless it is thorough: they find the same, and more, in less time.
    """
    if search.best_labels is None or (holds_follow and not search.effort.thorough):
        return
    ops = max(1, search.problem.op_count)
    work = max(2000, int(share * search.worth() * search.effort.labels) // ops)
    iterations = iterations_of(len(annealers[0].movable), work) // len(annealers)
    cool = min(0.03, 1.5 / ops) / 2
    origin = search.best_labels.labels

    def run(lane: Search, annealer: Annealer, start: Labels | None, part: int, heat: float, levels: int) -> None:
        def stop(labels: Labels) -> bool:
            lane.offer(labels)
            lane.say("improving the plan")
            return lane.out_of_time() or lane.settled()

        if not lane.stopped_early and not lane.settled():
            assert start is not None
            labels, _ = annealer.run(start, lane.budget_nbytes, iterations // part, heat=heat, levels=levels, stop=stop)
            lane.offer(labels)

    def restart(lane: Search, annealer: Annealer, _: int) -> None:
        for heat, levels in _RESTARTS:
            run(lane, annealer, origin, 2 * len(_RESTARTS), heat, levels)

    def finish(lane: Search, annealer: Annealer, number: int) -> None:
        levels = 1 + number % 2
        assert lane.best_labels is not None
        run(lane, annealer, lane.best_labels.labels, 2, cool / levels, levels)

    in_lanes(search, annealers, restart)
    in_lanes(search, annealers, finish)


def reach(search: Search, labels: Annealer, holds: HoldAnnealer | None) -> None:
    """Lower the lowest peak until a plan fits the budget: with holds, or labels where the graph is too large."""
    assert search.lowest is not None
    if holds is not None:
        iterations = iterations_of(len(holds.holds.movable), search.effort.reaching)
        sequence, _ = holds.run(
            search.lowest.sequence, search.budget_nbytes, iterations, heat=_PEAK_HEAT, minimise_peak=True,
            stop=lambda found: search.offer_sequence(found).peak_nbytes <= search.budget_nbytes or search.out_of_time(),
        )  # fmt: skip
        search.offer_sequence(sequence)
        return
    assert search.lowest_labels is not None
    assert search.lowest_labels.labels is not None
    iterations = iterations_of(len(labels.movable), max(2000, search.effort.labels // search.problem.op_count))
    found, _ = labels.run(
        search.lowest_labels.labels, search.budget_nbytes, iterations, heat=0.02, levels=2, minimise_peak=True,
        stop=lambda found: search.offer(found).peak_nbytes <= search.budget_nbytes or search.out_of_time(),
    )  # fmt: skip
    search.offer(found)


def improve_holds(search: Search, annealers: Sequence[HoldAnnealer], *, share: float = 1.0) -> None:
    """From the best plan of any kind. ``share`` of the effort's work is done."""
    work = share * search.worth() * search.effort.holds
    iterations = hold_iterations(annealers[0], work, search.effort) // len(annealers)

    def cool(lane: Search, annealer: HoldAnnealer, number: int) -> None:
        heats = _HOLD_HEATS[number % len(_HOLD_HEATS)]

        def stop(sequence: Array) -> bool:
            lane.offer_sequence(sequence)
            lane.say("improving the plan")
            return lane.out_of_time() or lane.settled()

        for heat in heats:
            if lane.best is None or lane.stopped_early or lane.settled():
                return
            warm = min(_HOTTEST, heat / max(1, lane.problem.op_count))
            sequence, _ = annealer.run(
                lane.best.sequence, lane.budget_nbytes, iterations // len(heats), heat=warm, stop=stop
            )
            lane.offer_sequence(sequence)

    in_lanes(search, annealers, cool)
