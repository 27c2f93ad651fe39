"""Raise the bound once a plan is there: in integers under more and more stages, or a linear program under more of them.

Programs in integers (stage_generation.py) also have points that plans can be made of, often optimal ones. The largest
graphs have the linear program of the stages at which the best plan holds most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager

import numpy as np

from ..evaluation.evaluator import Array
from ..integers.stage_generation import IntegerBound
from ..relaxation.stage_relaxation import Relaxation, StageLP
from .beside import beside, wait_for
from .improve import HOLD_OPS
from .incumbents import Candidate, Search
from .initial_plans import stage_limit

_STAGE_OPS = 1_000
"""Stages times ops of the linear program."""
_CHOSEN_OPS = 150
"""A thorough effort chooses the stages of integers with care on graphs of no more ops."""


class Proof:
    """A certified bound, ``bound_ns``, and points that hold it back, for rounding; the search is told neither."""

    def __init__(self, search: Search, relaxed: StageLP) -> None:
        self.search, self.relaxed = search, relaxed
        self.bound_ns = 0
        self.points: tuple[Relaxation, ...] = ()  # until they are taken
        self.ended = self.given_up = False
        self._evaluator = search.evaluator.beside()
        self._known = tuple(sorted(search.stages)), search.bound_ns
        self._growing: IntegerBound | None = None

    @property
    def grows(self) -> bool:
        """Whether it is found in integers under more and more stages, and not by one linear program."""
        return self.search.effort.growing > 0 and self.search.problem.op_count <= HOLD_OPS

    def advance(self, best: Candidate, work: float) -> None:
        """Do some work, as `cp_sat.minimum` counts it, for a best plan; none where it has ``ended``.

        It looks at nothing of the search that changes, so that it may run beside it.
        """
        if self.ended or self._late():
            return
        if self.grows:
            self._grow(best.found.recompute_ns, work)
        else:
            self._relax(best)

    def worth(self, share: float) -> float:
        """``share`` of the effort's work, as far as the gap is worth it."""
        search = self.search
        return share * search.worth() * search.effort.growing_on(search.problem.op_count)

    def taken(self) -> tuple[Relaxation, ...]:
        """The points that were found since this was called last."""
        points, self.points = self.points, ()
        return points

    def _grow(self, incumbent_ns: int, work: float) -> None:
        search = self.search
        if self._growing is None:
            chooses = search.effort.thorough and search.problem.op_count <= _CHOSEN_OPS
            self._growing = IntegerBound(
                self.relaxed, self._evaluator, search.budget_nbytes, *self._known, chooses=chooses
            )
        growing, before = self._growing, self._growing.points
        growing.run(incumbent_ns, int(search.effort.enough * search.problem.store_all_ns / 2), work, self._late)
        self.bound_ns, self.ended = max(self.bound_ns, growing.bound_ns), growing.ended
        self.points = tuple(point for point in growing.points if not any(point is known for known in before))

    def _relax(self, best: Candidate) -> None:
        search = self.search
        during = self._evaluator.in_use(best.sequence)[best.sequence < 0]
        answer = self.relaxed.solve(search.budget_nbytes, _stages(search, self._known[0], during), search.remaining_s())
        self.bound_ns, self.ended = max(self.bound_ns, answer.bound_ns), True
        self.points = (answer,) if answer.solved else ()

    def _late(self) -> bool:
        return self.given_up or self.search.out_of_time()


class ProofBeside:
    """A proof at work in a thread of its own, whenever it is told to go on."""

    def __init__(self, proof: Proof, pool: Executor) -> None:
        self.proof, self._pool = proof, pool
        self._future: Future[None] | None = None

    def go_on(self, share: float) -> None:
        """Begin ``share`` of the effort's work for the best plan there is now."""
        best = self.proof.search.best
        assert best is not None
        self._future = self._pool.submit(self.proof.advance, best, self.proof.worth(share))

    def certified(self) -> Proof:
        """The proof when the work that was begun is done, which this waits for."""
        if self._future is not None:
            wait_for(self.proof.search, [self._future])
        return self.proof

    def give_up(self) -> None:
        """End the work where it is."""
        self.proof.given_up = True
        if self._future is not None:
            wait([self._future])  # here, where an interrupt is seen
        self.proof.given_up = False


@contextmanager
def certifying(proof: Proof) -> Iterator[ProofBeside]:
    """Work on the bound beside whatever the caller does meanwhile, as soon as it is told to.

    Nothing passes between the two but when the caller asks, so the outcome does not depend on how fast either is.
    Work that nobody has asked the outcome of is given up at the end.
    """
    with beside(proof.search) as pool:
        made = ProofBeside(proof, pool)
        yield made
        made.give_up()


def _stages(search: Search, known: Sequence[int], during: Array) -> tuple[int, ...]:
    """The ``known`` stages and, spread out, those where a plan with so many bytes ``during`` them holds the most."""
    limit = max(2, min(stage_limit(search), _STAGE_OPS // search.problem.op_count))
    stages = {0, *known[:limit]} if len(known) > limit else set(known)
    for position in np.argsort(-during, kind="stable").tolist():
        if len(stages) >= limit:
            break
        if all(abs(position - stage) > len(during) // (3 * limit) for stage in stages):
            stages.add(position)
    return tuple(sorted(stages))
