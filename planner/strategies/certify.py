"""Raise the bound once a plan is there: branch and bound at the stages where it holds most, then under more stages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .beside import beside
from .branch_and_bound import UNLIMITED, BranchAndBound, begin
from .improve import HOLD_OPS
from .integer_bound import IntegerBound
from .search import Search
from .stage_lp import Relaxation, StageLP
from .starts import stage_limit

_AGAIN_WORTH = 0.003
"""The search is taken up again with a better plan when the gap is still more than this of the step."""
_AGAIN = 2
"""... with so many times the work: by then a better plan, and a gap that is worth closing, are there."""
_GROWING_WORTH = 0.001
"""Stages are added one by one when the gap is still more than this of the step."""
_PARTS = 4
"""The work is done in so many parts, ..."""
_RISE = 0.01
"""... each after the second only where the one before closed this share of the gap that was left, and the second where
the first passed what was known."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A bound in ns, the points that hold it back, for rounding, and the stages that were added one by one."""

    bound_ns: int
    points: tuple[Relaxation, ...] = ()
    grown: tuple[int, ...] = ()


@contextmanager
def certifying(search: Search, relaxed: StageLP) -> Iterator[ProofBeside]:
    """Work on the bound beside whatever the caller does meanwhile.

    Nothing passes between the two but when the caller asks, so the outcome does not depend on how fast either is.
    Work that nobody has asked the outcome of is given up at the end.
    """
    assert search.best is not None
    proof = Proof(search, relaxed, _stages(search), search.best.found.recompute_ns)
    with beside(search) as pool:
        made = ProofBeside(proof, pool)
        yield made
        made.give_up()


class ProofBeside:
    """A proof at work in a thread of its own, from the start."""

    def __init__(self, proof: Proof, pool: Executor) -> None:
        self._proof, self._pool = proof, pool
        self._future: Future[None] = pool.submit(proof.advance)

    def certified(self) -> Certified:
        """What is proven when the work asked for is done, which this waits for."""
        self._future.result()
        return self._proof.found

    def give_up(self) -> None:
        """End the work where it is."""
        self._proof.given_up = True
        wait([self._future])  # here, where an interrupt is seen

    def go_on(self) -> None:
        """Take the work up again if the best plan, which closes more boxes than that before, leaves a gap worth it."""
        best = self._proof.search.best
        assert best is not None
        self._future = self._pool.submit(self._proof.again, best.found.recompute_ns)


class Proof:
    """A certified bound under some stages; changes nothing of the search."""

    def __init__(self, search: Search, relaxed: StageLP, stages: tuple[int, ...], incumbent_ns: int) -> None:
        self.search, self.relaxed, self.stages, self.incumbent_ns = search, relaxed, stages, incumbent_ns
        self.boxes: BranchAndBound | None = None
        self.growing: IntegerBound | None = None
        self.grew = False
        self.found = Certified(0)
        self.stuck = self.given_up = False
        # Under fewer stages than the known bound has, work that does not soon pass it hardly ever will.
        self.known_ns = search.bound_ns if len(stages) < len(search.stages) else 0
        self.bounded_ns, self.seeds = search.bound_ns, search.grown or tuple(search.stages)

    def advance(self) -> None:
        """Branch for as much work as the effort allows; then, where it may, go on under more and more stages."""
        search, relaxed, effort, late = self.search, self.relaxed, self.search.effort, self._late
        if effort.branching == 0:
            answer = relaxed.solve(search.budget_nbytes, self.stages, search.remaining_s())
            self.found = Certified(answer.bound_ns, (answer,) if answer.solved else ())
            return
        self.boxes = begin(relaxed, search.budget_nbytes, self.incumbent_ns, self.stages, late)
        self._run(self.boxes, effort.branching)
        worth = self.incumbent_ns - self.found.bound_ns > _GROWING_WORTH * search.problem.store_all_ns
        if effort.growing and worth and search.problem.op_count <= HOLD_OPS and not late():
            known_ns = max(self.found.bound_ns, self.bounded_ns)
            evaluator = search.evaluator.beside()
            self.growing = IntegerBound(relaxed, evaluator, search.budget_nbytes, self.seeds, known_ns)
            self._grow(effort.growing)

    def again(self, incumbent_ns: int) -> None:
        """Go on, with `_AGAIN` times the work, if a plan of this cost leaves a gap worth it, and not hopeless.

        With the stages that raised the bound last: more and more, where they did, else the first ones.
        """
        self.incumbent_ns = min(self.incumbent_ns, incumbent_ns)
        worth = _AGAIN_WORTH < self._gap() <= self.search.effort.hopeless
        if not worth or self.search.out_of_time():
            return
        if self.growing is not None and self.grew and not self.growing.ended:
            self._grow(_AGAIN * self.search.effort.growing)
        elif self.boxes is not None and not self.stuck:
            self._run(self.boxes, _AGAIN * self.search.effort.branching)

    def _grow(self, work: float) -> None:
        """Raise the bound under more and more stages."""
        assert self.growing is not None
        before = self.growing.bound_ns
        self.growing.run(self.incumbent_ns, work, self._late)
        self.grew = self.growing.bound_ns > before
        if self.grew:
            points = (*self.growing.points, *self.found.points)
            self.found = Certified(self.growing.bound_ns, points, self.growing.stages)

    def _late(self) -> bool:
        return self.given_up or self.search.out_of_time()

    def _gap(self) -> float:
        return (self.incumbent_ns - self.found.bound_ns) / max(1, self.search.problem.store_all_ns)

    def _run(self, boxes: BranchAndBound, work: int) -> None:
        """Branch on for some work, or until that leads nowhere."""
        boxes.improved(self.incumbent_ns)
        reached = self.found.bound_ns
        for part in range(_PARTS):
            answer = boxes.run(UNLIMITED, boxes.work + work // _PARTS)
            stays = answer.bound_ns - reached < _RISE * (self.incumbent_ns - reached)
            self.stuck = answer.bound_ns < self.known_ns if part == 0 else answer.nodes > 0 and stays
            if answer.closed or self.stuck:
                break
            reached = answer.bound_ns
        if answer.bound_ns > self.found.bound_ns:
            points = (self.relaxed.relaxation(boxes.staged, point, answer.bound_ns, True) for point in answer.points)
            self.found = Certified(answer.bound_ns, tuple(points))


def certify(search: Search, relaxed: StageLP, stages: tuple[int, ...], incumbent_ns: int) -> Certified:
    """The bound after one round of work for an incumbent that stays."""
    proof = Proof(search, relaxed, stages, incumbent_ns)
    proof.advance()
    return proof.found


def _stages(search: Search) -> tuple[int, ...]:
    """The stages so far and, spread out, those where the best plan holds the most."""
    assert search.best is not None
    sequence = search.best.sequence
    search.evaluator.evaluate_sequence(sequence)
    held = np.cumsum(search.evaluator.scratch.memory[: len(sequence)])
    during = [
        (int(held[event]) + int(search.problem.during_nbytes[position]), position)
        for position, event in enumerate(np.flatnonzero(sequence < 0).tolist())
    ]
    limit = max(2, min(stage_limit(search), search.effort.stages // search.problem.op_count))
    stages = {0, *sorted(search.stages)[:limit]} if len(search.stages) > limit else set(search.stages)
    for _, position in sorted(during, key=lambda pair: (-pair[0], pair[1])):
        if len(stages) >= limit:
            break
        if all(abs(position - stage) > len(during) // (3 * limit) for stage in stages):
            stages.add(position)
    return tuple(sorted(stages))
