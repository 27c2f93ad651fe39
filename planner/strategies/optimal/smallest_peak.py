"""The smallest peak: depends on problem, seed and effort alone, so what it reaches can be promised."""

from __future__ import annotations

from ..evaluation.evaluator import Array, Labels
from ..labelling.annealer import Annealer
from ..retention.annealer import HoldAnnealer
from .beside import beside, wait_for
from .improve import HOLD_OPS, hold_iterations, iterations_of
from .incumbents import Search
from .initial_plans import Others, offer_extremes
from .parallel import annealers_of, in_lanes
from .problem_cache import Prepared

_LADDER = (0.8, 0.5, 0.2)
"""Budgets, between floor and reach, whose relaxation is rounded when the smallest peak is looked for."""
_LABEL_HEATS = ((0.02, 1), (0.02, 2), (0.1, 2), (0.01, 2))
_HOLD_HEATS = (0.1, 0.03)
_SPARED = 0.8


def lower_peak(search: Search, prepared: Prepared) -> None:
    """Look for the smallest peak among all kinds of plans.

    Where the effort has less than a certain share of its work for the holds of a graph of this size, what these mostly
    find by themselves is spared: annealed labels, and plans of the other strategies under any but the default orders.
    """
    offer_extremes(search)
    ops = search.problem.op_count
    if not ops:
        return
    spares = ops <= HOLD_OPS and not search.effort.thorough and search.effort.share_of(ops) < _SPARED
    others = Others(search, prepared)
    with beside(search, len(others.parts)) as pool:
        asked = [] if spares and search.problem.reorders is not None else [pool.submit(part) for part in others.parts]
        smallest = prepared.chain(search.effort.chain).smallest(), prepared.rotor.lowest
        wait_for(search, asked)
    others.offer()
    for sequence, _ in smallest:
        search.offer_sequence(sequence)
    floor = search.problem.floor_of_order.nbytes
    assert search.lowest is not None
    reach = search.lowest.found.peak_nbytes
    if prepared.relaxed is not None and search.problem.backward_order:
        for share in _LADDER:
            if not search.out_of_time():
                inner = floor + int((reach - floor) * share)
                search.round(prepared.relaxed.solve(inner, (0,), search.remaining_s()))
    if not spares:
        _labels(search, Annealer(search.evaluator, search.seed), floor)
    if ops <= HOLD_OPS:
        annealer = HoldAnnealer(search.evaluator, search.seed)
        _holds(search, annealer, floor, hold_iterations(annealer, search.effort.peaks, search.effort))


def lower_further(search: Search) -> None:
    """Go on from the lowest peak there is towards the budget, with the most work that the effort allows."""
    if search.effort.deepest and search.problem.op_count <= HOLD_OPS:
        annealers = annealers_of(HoldAnnealer, search)
        iterations = hold_iterations(annealers[0], search.effort.deepest, search.effort)
        floor = max(search.budget_nbytes, search.problem.floor_of_order.nbytes)
        in_lanes(search, annealers, lambda lane, annealer, _: _holds(lane, annealer, floor, iterations))


def _labels(search: Search, annealer: Annealer, floor: int) -> None:
    ops = max(1, search.problem.op_count)
    iterations = iterations_of(len(annealer.movable), max(2000, search.effort.labels // ops))

    def stop(labels: Labels) -> bool:
        found = search.offer(labels)
        search.say("lowering the peak")
        return found.peak_nbytes <= floor or search.out_of_time()

    for heat, levels in _LABEL_HEATS:
        assert search.lowest is not None
        assert search.lowest_labels is not None
        assert search.lowest_labels.labels is not None
        if search.lowest.found.peak_nbytes <= floor or search.stopped_early:
            return
        labels, _ = annealer.run(
            search.lowest_labels.labels, search.lowest_labels.found.peak_nbytes, iterations // len(_LABEL_HEATS),
            heat=heat, levels=levels, minimise_peak=True, stop=stop,
        )  # fmt: skip
        search.offer(labels)


def _holds(search: Search, annealer: HoldAnnealer, floor: int, iterations: int) -> None:
    def stop(sequence: Array) -> bool:
        found = search.offer_sequence(sequence)
        search.say("lowering the peak")
        return found.peak_nbytes <= floor or search.out_of_time()

    for heat in _HOLD_HEATS:
        assert search.lowest is not None
        if search.lowest.found.peak_nbytes <= floor or search.stopped_early:
            return
        sequence, _ = annealer.run(
            search.lowest.sequence, max(1, floor), iterations // len(_HOLD_HEATS), heat=heat, minimise_peak=True,
            stop=stop,
        )  # fmt: skip
        search.offer_sequence(sequence)
