"""Raise the bound once a plan is known, in integers under a growing set of stages (stage_generation.py).

The programs also have points that plans can be made of, often optimal ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from ...limits import Limits
from ..integers.stage_generation import IntegerBound
from ..relaxation.stage_relaxation import Relaxation, StageRelaxation
from .effort import share_of
from .incumbents import Candidate, Incumbents
from .parallel import ThreadTeam, threads, wait_for


class Proof:
    """A certified bound, ``bound_ns``, and points to round; ``incumbents`` are not told of either.

    Attributes:
        points: Points that hold the bound back, until they are `taken`.
        ended: Whether more work would change nothing.
    """

    def __init__(self, incumbents: Incumbents, relaxed: StageRelaxation) -> None:
        self.incumbents, self.relaxed = incumbents, relaxed
        self.bound_ns = 0
        self.points: tuple[Relaxation, ...] = ()
        self.ended = False
        self._evaluator = incumbents.evaluator.fork()
        self._known = tuple(sorted(incumbents.stages)), incumbents.bound_ns
        self._growing: IntegerBound | None = None

    def advance(self, best: Candidate, work: float, limits: Limits) -> None:
        """Do ``work``, counted as `cp_sat.minimum` does, against the cost of the plan ``best``.

        It reads nothing of the incumbents that changes, so that it may run in a thread of its own.
        """
        if self.ended or limits.out_of_time():
            return
        effort, problem = self.incumbents.effort, self.incumbents.problem
        if self._growing is None:
            budget = self.incumbents.budget_nbytes
            self._growing = IntegerBound(self.relaxed, self._evaluator, budget, *self._known)
        growing, before = self._growing, self._growing.points
        accepted_ns = int(effort.bound.accepted_gap * problem.store_all_ns / 2)
        growing.run(best.found.recompute_ns, accepted_ns, work, limits)
        self.bound_ns, self.ended = max(self.bound_ns, growing.bound_ns), growing.ended
        self.points = tuple(point for point in growing.points if not any(point is known for known in before))

    def worth(self, share: float) -> float:
        """``share`` of the effort's work, as far as the gap is worth it."""
        incumbents = self.incumbents
        return share * incumbents.worth() * incumbents.effort.bound.integer_work * share_of(incumbents.problem.op_count)

    def taken(self) -> tuple[Relaxation, ...]:
        """The points found since the last call."""
        points, self.points = self.points, ()
        return points


class ParallelProof:
    """A proof at work in a thread of its own, whenever it is told to go on."""

    def __init__(self, proof: Proof, team: ThreadTeam) -> None:
        self.proof, self._team = proof, team
        self._future: Future[None] | None = None

    def go_on(self, share: float) -> None:
        """Begin ``share`` of the effort's work against the cost of the present best plan."""
        best = self.proof.incumbents.best
        assert best is not None
        self._future = self._team.start(self.proof.advance, best, self.proof.worth(share), self._team.limits)

    def certified(self) -> Proof:
        """The proof, once the work that was begun is done."""
        if self._future is not None:
            wait_for([self._future])
        return self.proof


@contextmanager
def certifying(proof: Proof) -> Iterator[ParallelProof]:
    """Work on the bound in parallel with the block, whenever it is told to; work not asked for is cancelled at the end.

    Nothing passes between the two but when the block asks, so the outcome does not depend on how fast either is.
    """
    with threads(proof.incumbents.limits, 1) as team:
        yield ParallelProof(proof, team)
