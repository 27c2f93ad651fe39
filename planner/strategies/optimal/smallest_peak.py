"""The smallest peak. It depends on problem, seed and effort alone, so that it can be promised."""

from __future__ import annotations

from ..evaluation.evaluator import Array, Labels
from ..labelling.annealer import LabelAnnealer
from ..retention.annealer import RetentionAnnealer
from .improve import iterations_of, retention_iterations
from .incumbents import Candidate, Incumbents
from .initial_plans import AncestorPlans, offer_extremes
from .parallel import anneal_in_parallel, annealers, threads
from .problem_cache import ProblemCache

_LADDER = (0.8, 0.5, 0.2)
"""Budgets, as shares of the way from the floor to the smallest peak so far, whose relaxation is rounded."""
_LABEL_HEATS = ((0.02, 1), (0.02, 2), (0.1, 2), (0.01, 2))
_RETENTION_HEATS = (0.1, 0.03)


def smallest_peak_plans(cache: ProblemCache, incumbents: Incumbents) -> tuple[Candidate, ...]:
    """The plan and the labelling of the smallest peak; found once for each effort and seed."""
    key = (incumbents.effort.name, incumbents.seed)
    if key not in cache.smallest:
        search_smallest_peak(incumbents, cache)
        assert incumbents.smallest is not None
        assert incumbents.smallest_labels is not None
        found = (incumbents.smallest, incumbents.smallest_labels)
        if incumbents.out_of_time():
            return found
        cache.smallest[key] = found
    return cache.smallest[key]


def search_smallest_peak(incumbents: Incumbents, cache: ProblemCache) -> None:
    """Look for the smallest peak among all kinds of plans.

    The other strategies are asked under the default orders alone: the annealing mostly finds their peaks in others.
    """
    offer_extremes(incumbents)
    if not incumbents.problem.op_count:
        return
    effort = incumbents.effort
    with threads(incumbents.limits, 3) as team:
        ancestors = AncestorPlans(incumbents, cache, team.limits)
        for part in () if incumbents.problem.reorders is not None else ancestors.parts:
            team.start(part)
        smallest = cache.chain(effort.search.chain).smallest(), cache.rotor.smallest
        team.join()
    ancestors.offer()
    for found in smallest:
        incumbents.offer_sequence(*found)
    floor = incumbents.problem.floor_of_order.nbytes
    assert incumbents.smallest is not None
    reach = incumbents.smallest.found.peak_nbytes
    if cache.relaxed is not None and incumbents.problem.backward_order:
        for share in _LADDER:
            if not incumbents.out_of_time():
                inner = floor + int((reach - floor) * share)
                incumbents.round(cache.relaxed.solve(inner, (0,), incumbents.limits))
    if not incumbents.problem.large:
        annealer = RetentionAnnealer(incumbents.evaluator, incumbents.seed)
        _lower_retention(incumbents, annealer, floor, retention_iterations(annealer, effort.search.peak_iterations))
    else:
        _lower_labels(incumbents, LabelAnnealer(incumbents.evaluator, incumbents.seed), floor)


def lower_peak_further(incumbents: Incumbents) -> None:
    """Lower the smallest peak towards the budget, if the effort makes orders for plans."""
    effort = incumbents.effort
    if effort.orders.rounds and not incumbents.problem.large:
        each = annealers(incumbents)
        iterations = retention_iterations(each[0], effort.search.peak_iterations)
        floor = max(incumbents.budget_nbytes, incumbents.problem.floor_of_order.nbytes)
        anneal_in_parallel(
            incumbents, each, lambda fork, annealer, _: _lower_retention(fork, annealer, floor, iterations)
        )


def _lower_labels(incumbents: Incumbents, annealer: LabelAnnealer, floor: int) -> None:
    ops = max(1, incumbents.problem.op_count)
    iterations = iterations_of(len(annealer.movable), max(2000, incumbents.effort.search.label_work // ops))

    def stop(labels: Labels) -> bool:
        found = incumbents.offer(labels)
        incumbents.say("lowering the peak")
        return found.peak_nbytes <= floor or incumbents.out_of_time()

    for heat, levels in _LABEL_HEATS:
        start = incumbents.smallest_labels
        assert incumbents.smallest is not None
        assert start is not None
        assert start.labels is not None
        if incumbents.smallest.found.peak_nbytes <= floor or incumbents.out_of_time():
            return
        incumbents.offer(
            *annealer.run(start.labels, iterations // len(_LABEL_HEATS), heat=heat, levels=levels, stop=stop)
        )


def _lower_retention(incumbents: Incumbents, annealer: RetentionAnnealer, floor: int, iterations: int) -> None:
    def stop(sequence: Array) -> bool:
        found = incumbents.offer_sequence(sequence)
        incumbents.say("lowering the peak")
        return found.peak_nbytes <= floor or incumbents.out_of_time()

    for heat in _RETENTION_HEATS:
        assert incumbents.smallest is not None
        if incumbents.smallest.found.peak_nbytes <= floor or incumbents.out_of_time():
            return
        incumbents.offer_sequence(
            *annealer.run(
                incumbents.smallest.sequence, max(1, floor), iterations // len(_RETENTION_HEATS), heat=heat,
                minimise_peak=True, stop=stop,
            )
        )  # fmt: skip
