"""What one more stage would tell of an integer optimum: how much its cost rises at once.

All that is alive at the present stages stays as it is, so that backward intervals have nothing to do with each other,
and only the one that the new stage divides, or the forward, is solved again: a small program. What the stage adds to
the bound is less where other holdings avoid it; but one that adds nothing here seldom adds anything there, and takes
as long. Strong branching (Applegate et al., "Finding cuts in the TSP", 1995) solves a few nodes to choose one so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isinf

from ...limits import NO_LIMITS, Limits
from ..relaxation.linear_program import Floats, LinearProgram
from ..relaxation.recompute_rows import Interval, recompute_rows
from ..relaxation.stage_program import StageProgram
from ..relaxation.stage_relaxation import StageRelaxation
from .cp_sat import minimum

_WORK = 0.05
"""Of one solve; most take less than a hundredth of it."""


class StageScores:
    """Rises of the cost of ``point``, an optimum of ``staged`` within the budget, for stages that it has not."""

    def __init__(
        self,
        relaxed: StageRelaxation,
        staged: StageProgram,
        budget_nbytes: int,
        point: Floats,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._limits = limits
        self._relaxed, self._staged, self._budget_nbytes, self._point = relaxed, staged, budget_nbytes, point
        self._forward_ns: float | None = None
        self.work = 0.0
        """What all solves took, as `minimum` counts it."""

    def rise(self, stage: int) -> float:
        """The ns by which the cost rises with a stage; infinite where no point is found for what is alive elsewhere."""
        if stage < 0:
            if self._forward_ns is None:
                known = self._solved(self._forward([]))
                self._forward_ns = 0.0 if isinf(known) else known
            return max(0.0, self._solved(self._forward([stage])) - self._forward_ns)
        return self._rise(self._staged.interval_of(stage), [stage], [])

    def rise_of_recomputation(self, position: int, op: int) -> float:
        """The ns by which the cost rises with the moment at which an op runs again before a backward position."""
        return self._rise(self._staged.interval_of(position), [], [(position, op)])

    def _rise(self, q: int, stages: Sequence[int], recomputations: Sequence[tuple[int, int]]) -> float:
        program, point = self._staged.program, self._point
        paid = [*self._staged.runs[q].values(), *self._staged.twice.get(q, {}).values()]
        known = sum(program.cost[variable] for variable in paid if point[variable])
        return max(0.0, self._solved(self._interval(q, stages, recomputations)) - known)

    def _solved(self, program: LinearProgram) -> float:
        found = minimum(program, 0, _WORK, self._limits)
        self.work += found.work
        return inf if found.point is None else found.bound_ns

    def _alive(self, q: int) -> list[int]:
        """The storages that are alive at a stage."""
        return [storage for storage, variable in self._staged.alive[q].items() if self._point[variable]]

    def _interval(self, q: int, stages: Sequence[int], recomputations: Sequence[tuple[int, int]]) -> LinearProgram:
        """An interval with more in it, between what is alive at the stages before and after it."""
        relaxed, staged, lp = self._relaxed, self._staged, LinearProgram()
        producer, time = relaxed.problem.producer.tolist(), relaxed.problem.forward_ns.tolist()
        last = q + 1 == len(staged.stages)
        end = len(relaxed.order) - 1 if last else staged.stages[q + 1]
        alive, start = {storage: lp.variable() for storage in self._alive(q)}, staged.stages[q] + 1
        known = [(recomputation.position, recomputation.op) for recomputation in staged.recomputations]
        for position in [*stages, end]:
            covered = range(start, position + 1)
            runs = relaxed.interval(lp, time, alive, producer, covered)
            if position != end:
                now = relaxed.stage(lp, position, alive, runs, producer)
                relaxed.room(lp, self._budget_nbytes, position, now)
            else:
                now = {} if last else {storage: lp.variable() for storage in self._alive(q + 1)}
                for storage, variable in now.items():
                    lp.at_least(1, [(1, variable)])
                    lp.at_least(0, [*relaxed.available(storage, alive, runs, producer), (-1, variable)])
            interval = Interval(covered, alive, runs, now, {})
            for at, op in [*known, *recomputations]:
                if at in covered and op in runs:
                    recompute_rows(relaxed, lp, self._budget_nbytes, interval, at, op)
            alive, start = now, position + 1
        return lp

    def _forward(self, more: list[int]) -> LinearProgram:
        """Moments of the forward, and all backwards as one interval."""
        moments = [moment.stage for moment in self._staged.moments]
        made = self._relaxed.program(self._budget_nbytes, [*moments, *more])
        for storage, variable in self._staged.alive[0].items():
            sign = 1 if self._point[variable] else -1
            made.program.at_least(max(0, sign), [(sign, made.alive[0][storage])])
        return made.program
