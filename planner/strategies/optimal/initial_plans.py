"""Where a search starts: roundings of the relaxations, the other strategies, grids of cuts, the chain of blocks."""

from __future__ import annotations

from itertools import chain

from ..baselines import checkmate as lp_rounding
from ..baselines import checkpoint_sequential as segments
from ..baselines import greedy, ogc, sqrt_n
from ..baselines import keep_expensive as speed
from ..baselines import per_layer as layers
from ..baselines import torch_knapsack as knapsack
from ..baselines.rotor import Rotor
from ..evaluation.evaluator import Array, Labels
from ..evaluation.labels import Label
from ..labelling.checkpoint_grids import grids
from ..relaxation.budget_sweep import StageSweep
from ..relaxation.min_cut_rounding import round_cut
from ..relaxation.parametric_min_cut import MinCut
from ..relaxation.stage_relaxation import Relaxation, StageLP
from .incumbents import Search
from .problem_cache import Prepared

_MAX_STAGES = 14
_FRESH = 3
"""Stages that one relaxation may add."""
_STALLS, _THOROUGH_STALLS = 1, 2
"""So many relaxations in a row end it that raise the bound by no more than ..."""
_RISE = 1e-5
"""... this share of the step, or ..."""
_RISE_OF_GAP = 0.02
"""... where the effort is not thorough, this share of what lies between the bound and the best plan, a step at most."""
_REPAIRS = 6
"""Budgets that repair asks the relaxation about, ..."""
_REPAIR_WORTH = 0.005
"""... where the best plan is farther than this share of the step from the bound."""
_KNAPSACK_OPS = 1500
_ROUNDING_OPS = 40
"""Largest graphs on which a strategy that others are better than by far is still worth its seconds."""


def stage_limit(search: Search) -> int:
    """How many stages an LP of this problem may have."""
    return max(2, min(_MAX_STAGES, search.effort.stages // max(1, search.problem.op_count)))


def generate_rows(search: Search, relaxed: StageLP) -> Relaxation | None:
    """Solve, round, replay, add the stages where the roundings peak; until they fit or raise the bound no more.

    It begins with the first backward and, where there is room for more stages than two, with the narrowest necks.
    Only stages whose memory has a price are kept: others cost iterations, and splitting an interval at them may even
    lower the bound. Returns the last point, None where there was no time for one.
    """
    step_ns, work = search.problem.store_all_ns, search.effort.relaxing_on(search.problem.op_count)
    most_stalls, rise_of_gap = (_THOROUGH_STALLS, 0.0) if search.effort.thorough else (_STALLS, _RISE_OF_GAP)
    fresh = set(relaxed.necks(search.budget_nbytes)[: min(_FRESH, stage_limit(search) - 2)])
    tried: set[int] = set()
    reached, stalled = -step_ns, 0
    relaxation = None
    for _ in range(_MAX_STAGES):
        if search.out_of_time():
            break
        stages = search.stages | fresh
        search.say(f"bounding with {len(stages)} stages")
        relaxation = relaxed.solve(search.budget_nbytes, sorted(stages), search.remaining_s(), work, search.interrupter)
        search.bound_ns = max(search.bound_ns, relaxation.bound_ns)
        gap_ns = 0 if search.best is None else min(step_ns, search.best.found.recompute_ns - search.bound_ns)
        if relaxation.bound_ns > reached + max(_RISE * step_ns, rise_of_gap * gap_ns):
            stalled, tried = 0, set()
        else:
            stalled, tried = stalled + 1, tried | fresh
        if relaxation.bound_ns > reached:
            reached, search.stages = relaxation.bound_ns, {0, *relaxation.priced}
        if not relaxation.solved or search.settled():
            break
        peaks, _ = search.round(relaxation)
        fresh = set(sorted(peaks - search.stages - tried)[:_FRESH])
        if not fresh or stalled >= most_stalls or len(search.stages) >= stage_limit(search):
            break
    return relaxation


def repair(search: Search, relaxed: StageLP) -> None:
    """Roundings of the LP under a smaller budget of its own, bisected towards the largest that fits.

    Where one stage is enough the minimum cut has been rounded like this.
    """
    worth = search.bound_ns + _REPAIR_WORTH * search.problem.store_all_ns
    if len(search.stages) < 2 or not search.effort.repairing or search.out_of_time():
        return
    if search.best is not None and search.best.found.recompute_ns <= worth:
        return
    search.say("rounding under smaller budgets")
    low, high = 0.5, 1.0
    floor = search.problem.floor_nbytes
    sweep = StageSweep(relaxed, sorted(search.stages), search.budget_nbytes)
    for _ in range(_REPAIRS):
        if search.settled() or search.out_of_time() or sweep.work > search.effort.repairing:
            return
        middle = (low + high) / 2
        relaxation = sweep.solve(floor + int((search.budget_nbytes - floor) * middle), search.effort.repairing)
        if not relaxation.solved:
            low = middle
            continue
        _, fits = search.round(relaxation)
        if fits:
            low = middle
        else:
            high = middle


def cut(search: Search, minimum: MinCut) -> None:
    """The bound of one stage as a minimum cut, and its kept sets: milliseconds even on very large graphs."""
    search.say("cutting")
    search.bound_ns = max(search.bound_ns, minimum.bound_ns(search.budget_nbytes))
    round_cut(minimum, search.evaluator, search.budget_nbytes, search.offer)


class Others:
    """Grids of cuts and the plans of the other strategies: the certified one is never worse than they are.

    They look at nothing that a search finds, so `make`, or each of its ``parts``, may run in a thread beside it and
    `offer` comes after all of them.
    """

    def __init__(self, search: Search, prepared: Prepared) -> None:
        self.search, self._prepared = search, prepared
        self._evaluators = [search.evaluator.beside() for _ in range(3)]
        self._labels: list[list[Labels]] = [[] for _ in self._evaluators]
        self._sequences: list[Array] = []
        self.parts = self._make_counted, self._make_greedy, self._make_layers

    def make(self) -> None:
        """Ask them all, or as many as there is time for."""
        for part in self.parts:
            part()

    def _make_counted(self) -> None:
        """Those that count bytes and operations; most know no budget, and are asked once."""
        evaluator, search, labels = self._evaluators[0], self.search, self._labels[0]
        if not self._prepared.unbudgeted:
            labels += grids(evaluator)
            labels += [segments.labels(evaluator, count) for count in (2, 4, 8)]
            for module in (speed, sqrt_n, ogc):
                if search.out_of_time():
                    return
                labels.append(module.labels(evaluator))
            self._prepared.unbudgeted = tuple(labels)
        else:
            labels += self._prepared.unbudgeted
        budget = search.budget_nbytes
        if search.problem.op_count <= _KNAPSACK_OPS and not search.out_of_time():
            labels.append(knapsack.labels(evaluator, budget))
        if search.problem.op_count <= _ROUNDING_OPS:
            for inner in (budget, None):
                if search.out_of_time():
                    return
                self._sequences.append(lp_rounding.sequence(evaluator, inner, deadline=search.deadline)[0])

    def _make_greedy(self) -> None:
        """One that evaluates one change after the other, for the most part in compiled code, ..."""
        if not self.search.out_of_time():
            self._labels[1].append(greedy.labels(self._evaluators[1], self.search.budget_nbytes))

    def _make_layers(self) -> None:
        """... and the same with layers."""
        evaluator = self._evaluators[2]
        classes = layers.classes(evaluator)
        if classes != greedy.singles(evaluator) and not self.search.out_of_time():  # else it would do the same again
            self._labels[2].append(greedy.descend(evaluator, classes, self.search.budget_nbytes))

    def offer(self) -> None:
        """Let the search have what was made."""
        for labels in chain.from_iterable(self._labels):
            self.search.offer(labels)
        for sequence in self._sequences:
            self.search.offer_sequence(sequence)


def offer_extremes(search: Search) -> None:
    """The plan that keeps everything, and the one that keeps nothing."""
    for fill in (Label.KEEP, Label.DROP):
        search.offer(search.evaluator.labels(fill))


def rotors(search: Search, rotor: Rotor) -> None:
    """The chain of whole segments: its plan for the budget, and the lowest where that does not fit."""
    plans = [rotor.plan(search.budget_nbytes)]
    if plans[0] is None or plans[0][1].peak_nbytes > search.budget_nbytes:
        plans.append(rotor.lowest)
    for found in plans:
        if found is not None:
            search.offer_sequence(found[0])


def chain_plan(search: Search, prepared: Prepared) -> Array | None:
    """Nested recomputation over a chain of blocks, with options within blocks; None where nothing found fits.

    It may run in a thread beside the search: of what that finds it looks only at whether a plan is wanted any more.
    """
    if search.aborted or search.settled():
        return None
    blocks = prepared.chain(search.effort.chain)
    if search.aborted or search.settled():
        return None
    if search.effort.refinements and not search.out_of_time():
        blocks = blocks.refined(search.budget_nbytes, search.effort.refinements)
    found = blocks.best(search.budget_nbytes)
    return None if found is None else found[0]
