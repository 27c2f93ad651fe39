"""The state of one certified solve: the best plan within the budget, the plan of lowest peak, and the bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ...problem import Problem
from ..evaluation.evaluator import Array, Evaluation, Evaluator, Labels
from ..evaluation.labels import Label
from ..relaxation.linear_program import Interrupter
from ..relaxation.stage_relaxation import Relaxation
from .effort import EFFORTS, Effort

_THRESHOLDS = (0.999, 0.75, 0.5, 0.25)

_WIDE, _LEAST_WORTH = 0.005, 0.1
"""The gap from which on all work is done, and the least share of it."""

Progress = Callable[[str, "int | None", int], None]
"""Told what is being done now, the best recomputation time so far (ns, None if none) and the bound (ns)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan as an order of computations, what it costs, and the labelling it came from, if it came from one."""

    sequence: Array
    found: Evaluation
    labels: Labels | None = None


def rank(found: Evaluation, budget_nbytes: int) -> tuple[int, int]:
    """Less is better: within the budget what it takes, above it what it peaks at."""
    return max(0, found.peak_nbytes - budget_nbytes), found.recompute_ns


@dataclass
class Search:
    """One problem and budget. ``stop`` is asked where the deadline is checked, and ends the search like it."""

    evaluator: Evaluator
    budget_nbytes: int
    deadline: float | None = None
    progress: Progress | None = None
    effort: Effort = EFFORTS["default"]
    seed: int = 0
    stop: Callable[[], bool] | None = None
    best: Candidate | None = None
    best_labels: Candidate | None = None  # the best labelling, where label annealing starts
    lowest: Candidate | None = None
    lowest_labels: Candidate | None = None
    bound_ns: int = 0
    stopped_early: bool = False
    aborted: bool = False  # stopped early by an exception: nobody will ask for what is being made beside the search
    stages: set[int] = field(default_factory=lambda: {0})
    interrupter: Interrupter = field(default_factory=Interrupter)
    """Ends what `starts.generate_rows` is solving for this search."""

    @property
    def problem(self) -> Problem:
        """The problem being solved."""
        return self.evaluator.problem

    def out_of_time(self) -> bool:
        """Whether the time limit has passed or the user asked to stop; remembered, for the result depends on it."""
        if self.deadline is not None and time.perf_counter() > self.deadline:
            self.stopped_early = True
        if self.stop is not None and self.stop():
            self.stopped_early = True
        return self.stopped_early

    def lane(self, evaluator: Evaluator) -> Search:
        """A search from here for another thread: it stops where this one is stopped, and tells nobody of progress."""
        return replace(self, evaluator=evaluator, progress=None, stop=lambda: self.stopped_early)

    def take(self, lane: Search) -> None:
        """Remember what a lane of this search has found."""
        for candidate in (lane.best, lane.best_labels, lane.lowest, lane.lowest_labels):
            if candidate is not None:
                self.keep(candidate)
        self.stopped_early |= lane.stopped_early

    def remaining_s(self) -> float | None:
        """Seconds left, None without a limit."""
        return None if self.deadline is None else max(0.01, self.deadline - time.perf_counter())

    def gap(self) -> float:
        """How far the best plan may lie above the best one there is, as a share of a step that stores everything."""
        if self.best is None:
            return float("inf")
        return (self.best.found.recompute_ns - self.bound_ns) / max(1, self.problem.store_all_ns)

    def worth(self) -> float:
        """The share of the effort's work that this gap is worth; all of it where the effort wants no gap at all."""
        return 1.0 if self.effort.enough == 0 else min(1.0, max(_LEAST_WORTH, self.gap() / _WIDE))

    def settled(self) -> bool:
        """Whether the best plan is proven to be as near the best one there is as the effort asks for."""
        return self.gap() <= self.effort.enough

    def say(self, doing: str) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(doing, self.best.found.recompute_ns if self.best else None, self.bound_ns)

    def offer(self, labels: Labels) -> Evaluation:
        """Evaluate a labelling and remember it if it is the best within the budget or of the lowest peak."""
        found = self.evaluator.evaluate(labels)
        if self._improves(found, self.best_labels, self.lowest_labels):
            self.keep(Candidate(np.array(self.evaluator.decisions(labels).sequence), found, labels.copy()))
        return found

    def offer_sequence(self, sequence: Array) -> Evaluation:
        """The same for a legal order of computations."""
        found = self.evaluator.evaluate_sequence(sequence)
        if self._improves(found, self.best, self.lowest):
            self.keep(Candidate(sequence.copy(), found))
        return found

    def _improves(self, found: Evaluation, best: Candidate | None, lowest: Candidate | None) -> bool:
        return self._cheaper(found, best) or lowest is None or found.peak_nbytes < lowest.found.peak_nbytes

    def _cheaper(self, found: Evaluation, than: Candidate | None) -> bool:
        if found.peak_nbytes > self.budget_nbytes:
            return False
        key = (found.recompute_ns, found.peak_nbytes)
        return than is None or key < (than.found.recompute_ns, than.found.peak_nbytes)

    def keep(self, candidate: Candidate) -> None:
        """Remember a plan wherever it is the best so far."""
        peak = candidate.found.peak_nbytes
        if self._cheaper(candidate.found, self.best):
            self.best = candidate
        if self.lowest is None or peak < self.lowest.found.peak_nbytes:
            self.lowest = candidate
        if candidate.labels is None:
            return
        if self._cheaper(candidate.found, self.best_labels):
            self.best_labels = candidate
        if self.lowest_labels is None or peak < self.lowest_labels.found.peak_nbytes:
            self.lowest_labels = candidate

    def round(self, relaxation: Relaxation) -> tuple[set[int], bool]:
        """Offer the roundings of a relaxation; the stages where those above budget peak, and whether any fits.

        And where their backwards first run over the budget: a later peak may hide that from the next relaxation.
        """
        peaks: set[int] = set()
        fits = False
        free = ~self.evaluator.decided
        for threshold in _THRESHOLDS:
            labels = self.evaluator.labels(Label.DROP)
            labels[free & (relaxation.alive >= threshold)] = Label.KEEP
            found = self.offer(labels)
            if found.peak_nbytes <= self.budget_nbytes:
                fits = True
            else:
                in_forward = found.peak_position < 0 and found.peak_event < self.problem.op_count
                peak = found.peak_event - self.problem.op_count if in_forward else max(0, found.peak_position)
                peaks |= {peak, *self._first_overrun(labels)}
        return peaks, fits

    def _first_overrun(self, labels: Labels) -> list[int]:
        """Where most is held of the first backward positions in a row that are over budget; none if none is."""
        self.evaluator.evaluate(labels)
        scratch, count = self.evaluator.scratch, len(self.problem.backward_order)
        backwards = np.flatnonzero(scratch.events < 0)[:count]
        held = scratch.memory[backwards]
        over = np.append(held > self.budget_nbytes, False)
        first = int(np.argmax(over))
        end = first + int(np.argmin(over[first:]))
        return [first + int(np.argmax(held[first:end]))] if end > first else []
