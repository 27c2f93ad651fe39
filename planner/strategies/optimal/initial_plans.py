"""Plans to start from: those of the other strategies, and of the chain of blocks."""

from __future__ import annotations

from itertools import chain

from ...limits import Limits, Stop
from ..baselines import checkmate, checkpoint_sequential, greedy, keep_expensive, ogc, per_layer, sqrt_n, torch_knapsack
from ..baselines.rotor import Rotor
from ..evaluation.evaluator import Array, Evaluation, Labels
from ..evaluation.labels import Label
from .incumbents import Incumbents
from .problem_cache import ProblemCache

_CHECKMATE_OPS = 40
"""The largest graphs on which this strategy, whose plans others beat by far, is still worth its seconds."""


class AncestorPlans:
    """The plans of the other strategies: a certified plan is never worse than they are.

    They depend on nothing that a search finds, so each of ``parts`` may run in a thread of its own. `offer` comes
    after all of them.
    """

    def __init__(self, incumbents: Incumbents, cache: ProblemCache, limits: Limits) -> None:
        self._incumbents, self._cache, self._limits = incumbents, cache, limits
        self._evaluators = [incumbents.evaluator.fork() for _ in range(3)]
        self._labels: list[list[Labels]] = [[] for _ in self._evaluators]
        self._sequences: list[tuple[Array, Evaluation]] = []
        self.parts = self._make_counted, self._make_greedy, self._make_per_layer

    def _make_counted(self) -> None:
        """The strategies that count bytes and operations. Most know no budget, and are asked once."""
        evaluator, labels = self._evaluators[0], self._labels[0]
        if not self._cache.unbudgeted:
            labels += [checkpoint_sequential.labels(evaluator, count) for count in (2, 4, 8)]
            for module in (keep_expensive, sqrt_n, ogc):
                if self._limits.out_of_time():
                    return
                labels.append(module.labels(evaluator))
            self._cache.unbudgeted = tuple(labels)
        else:
            labels += self._cache.unbudgeted
        problem, budget = self._incumbents.problem, self._incumbents.budget_nbytes
        if not problem.large and not self._limits.out_of_time():
            labels.append(torch_knapsack.labels(evaluator, budget))
        if problem.op_count <= _CHECKMATE_OPS:
            for inner in (budget, None):
                if self._limits.out_of_time():
                    return
                self._sequences.append(checkmate.sequence(evaluator, inner, self._limits))

    def _make_greedy(self) -> None:
        if not self._limits.out_of_time():
            self._labels[1].append(greedy.labels(self._evaluators[1], self._incumbents.budget_nbytes))

    def _make_per_layer(self) -> None:
        evaluator = self._evaluators[2]
        classes = per_layer.classes(evaluator)
        if classes != greedy.singles(evaluator) and not self._limits.out_of_time():  # else this is greedy again
            self._labels[2].append(greedy.descend(evaluator, classes, self._incumbents.budget_nbytes))

    def offer(self) -> None:
        """Offer what was made."""
        for labels in chain.from_iterable(self._labels):
            self._incumbents.offer(labels)
        for found in self._sequences:
            self._incumbents.offer_sequence(*found)


def offer_extremes(incumbents: Incumbents) -> None:
    """Offer the plan that keeps everything, and the one that keeps nothing."""
    for fill in (Label.KEEP, Label.DROP):
        incumbents.offer(incumbents.evaluator.labels(fill))


def offer_rotor(incumbents: Incumbents, rotor: Rotor) -> None:
    """Offer the plan of the chain of whole segments, and that of its smallest peak if the first does not fit."""
    plans = [rotor.plan(incumbents.budget_nbytes)]
    if plans[0] is None or plans[0][1].peak_nbytes > incumbents.budget_nbytes:
        plans.append(rotor.smallest)
    for found in plans:
        if found is not None:
            incumbents.offer_sequence(*found)


def chain_plan(incumbents: Incumbents, cache: ProblemCache, cancelled: Stop) -> Array | None:
    """Nested recomputation over a chain of blocks with options inside blocks; None if no plan found fits.

    It may run in a thread of its own: it looks at ``incumbents`` only to see whether a plan is still wanted.
    """
    if cancelled() or incumbents.settled():
        return None
    blocks = cache.chain(incumbents.effort.search.chain)
    if cancelled() or incumbents.settled():
        return None
    if incumbents.effort.search.refinements and not incumbents.out_of_time():
        blocks = blocks.refined(incumbents.budget_nbytes, incumbents.effort.search.refinements)
    found = blocks.best(incumbents.budget_nbytes)
    return None if found is None else found[0]
