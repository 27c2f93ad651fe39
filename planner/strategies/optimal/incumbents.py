"""The state of one search: the best plan within the budget, the plan of the smallest peak, and the bound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ..evaluation.evaluator import Array, Evaluation, Evaluator, Labels
from ..evaluation.labels import Label
from ..relaxation.stage_relaxation import Relaxation
from .effort import EFFORTS, Effort

_THRESHOLDS = (0.999, 0.75, 0.5, 0.25)

_WORTH_ALL, _LEAST_WORTH = 0.005, 0.1
"""The gap, as a share of the step, from which on all work is done, and the least share of the work."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan as an order of computations, what it costs, and the labelling it came from, if it came from one."""

    sequence: Array
    found: Evaluation
    labels: Labels | None = None


def rank(found: Evaluation, budget_nbytes: int) -> tuple[int, int]:
    """A key by which better plans come first: the bytes above the budget, then the recomputation time."""
    return max(0, found.peak_nbytes - budget_nbytes), found.recompute_ns


@dataclass
class Incumbents:
    """What a search of one problem and budget has found so far.

    Attributes:
        best: The cheapest plan within the budget.
        smallest: The plan of the smallest peak.
        smallest_labels: The labelling of the smallest peak.
        bound_ns: No plan of this search's orders within the budget takes less recomputation time.
        stages: The stages of the relaxation that gave the bound, as backward positions.
    """

    evaluator: Evaluator
    budget_nbytes: int
    limits: Limits = NO_LIMITS
    effort: Effort = EFFORTS["default"]
    seed: int = 0
    best: Candidate | None = None
    smallest: Candidate | None = None
    smallest_labels: Candidate | None = None
    bound_ns: int = 0
    stages: set[int] = field(default_factory=lambda: {0})

    @property
    def problem(self) -> Problem:
        """The problem being solved."""
        return self.evaluator.problem

    def out_of_time(self) -> bool:
        """Whether the search must end."""
        return self.limits.out_of_time()

    def say(self, doing: str) -> None:
        """Report progress."""
        self.limits.say(doing, self.best.found.recompute_ns if self.best else None, self.bound_ns)

    def fork(self, evaluator: Evaluator, limits: Limits) -> Incumbents:
        """A copy for another thread."""
        return replace(self, evaluator=evaluator, limits=limits)

    def merge(self, fork: Incumbents) -> None:
        """Keep what a fork has found."""
        for candidate in (fork.best, fork.smallest, fork.smallest_labels):
            if candidate is not None:
                self.keep(candidate)

    def gap(self) -> float:
        """How far the best plan may lie above the optimum, as a share of a step that stores everything."""
        if self.best is None:
            return float("inf")
        return (self.best.found.recompute_ns - self.bound_ns) / max(1, self.problem.store_all_ns)

    def worth(self) -> float:
        """The share of the effort's work that this gap is worth; all of it if the effort accepts no gap."""
        return 1.0 if self.effort.bound.accepted_gap == 0 else min(1.0, max(_LEAST_WORTH, self.gap() / _WORTH_ALL))

    def settled(self) -> bool:
        """Whether the gap of the best plan is one that the effort accepts."""
        return self.gap() <= self.effort.bound.accepted_gap

    def offer(self, labels: Labels, found: Evaluation | None = None) -> Evaluation:
        """Keep a labelling if it is the best or of the smallest peak; ``found`` is its evaluation, if it is known."""
        found = self.evaluator.evaluate(labels) if found is None else found
        if self._improves(found, self.best, self.smallest_labels):
            self.keep(Candidate(np.array(self.evaluator.decisions(labels).sequence), found, labels.copy()))
        return found

    def offer_sequence(self, sequence: Array, found: Evaluation | None = None) -> Evaluation:
        """Keep a legal order of computations if it is the best or of the smallest peak; ``found`` as in `offer`."""
        found = self.evaluator.evaluate_sequence(sequence) if found is None else found
        if self._improves(found, self.best, self.smallest):
            self.keep(Candidate(sequence.copy(), found))
        return found

    def _improves(self, found: Evaluation, best: Candidate | None, smallest: Candidate | None) -> bool:
        return self._cheaper(found, best) or smallest is None or found.peak_nbytes < smallest.found.peak_nbytes

    def _cheaper(self, found: Evaluation, than: Candidate | None) -> bool:
        if found.peak_nbytes > self.budget_nbytes:
            return False
        key = (found.recompute_ns, found.peak_nbytes)
        return than is None or key < (than.found.recompute_ns, than.found.peak_nbytes)

    def keep(self, candidate: Candidate) -> None:
        """Keep a plan in every place where it is the best so far."""
        peak = candidate.found.peak_nbytes
        if self._cheaper(candidate.found, self.best):
            self.best = candidate
        if self.smallest is None or peak < self.smallest.found.peak_nbytes:
            self.smallest = candidate
        if candidate.labels is None:
            return
        if self.smallest_labels is None or peak < self.smallest_labels.found.peak_nbytes:
            self.smallest_labels = candidate

    def round(self, relaxation: Relaxation) -> set[int]:
        """Offer the roundings of a relaxation.

        Returns the stages at which roundings above the budget peak or first overrun it. The first overrun matters
        because a later peak may hide it from the next relaxation.
        """
        peaks: set[int] = set()
        free = ~self.evaluator.decided
        for threshold in _THRESHOLDS:
            labels = self.evaluator.labels(Label.DROP)
            labels[free & (relaxation.alive >= threshold)] = Label.KEEP
            found = self.offer(labels)
            if found.peak_nbytes > self.budget_nbytes:
                in_forward = found.peak_position < 0 and found.peak_event < self.problem.op_count
                peak = found.peak_event - self.problem.op_count if in_forward else max(0, found.peak_position)
                peaks |= {peak, *self._first_overrun(labels)}
        return peaks

    def _first_overrun(self, labels: Labels) -> list[int]:
        """The worst position of the first run of backward positions that overrun the budget; empty without one."""
        self.evaluator.evaluate(labels)  # `offer` may have used the scratch for the order of computations
        scratch, count = self.evaluator.scratch, len(self.problem.backward_order)
        backwards = np.flatnonzero(scratch.events < 0)[:count]
        held = scratch.memory[backwards]
        over = np.append(held > self.budget_nbytes, False)
        first = int(np.argmax(over))
        end = first + int(np.argmin(over[first:]))
        return [first + int(np.argmax(held[first:end]))] if end > first else []
