"""The relaxation at fixed stages under one budget after another, each solved from the basis of the one before.

Only the right-hand sides of the memory rows depend on the budget, so an optimal basis stays dual feasible and the
dual simplex needs a few iterations where a solve from scratch needs thousands.
"""

from __future__ import annotations

from collections.abc import Sequence

from .certificate import certified_bound
from .linear_program import UNLIMITED, Simplex
from .stage_relaxation import Relaxation, StageRelaxation


class BudgetSweep:
    """Answers one budget after the other. ``stages`` are backward positions; 0 is always one."""

    def __init__(self, relaxed: StageRelaxation, stages: Sequence[int], budget_nbytes: int) -> None:
        self._relaxed = relaxed
        self._staged = relaxed.program(budget_nbytes, stages)
        self._simplex = Simplex(self._staged.program)

    @property
    def work(self) -> int:
        """What all answers so far took, as `Simplex` counts it."""
        return self._simplex.work

    def solve(self, budget_nbytes: int, most_work: int = UNLIMITED) -> Relaxation:
        """The relaxation under a budget; not ``solved`` where it has no point or ``work`` would pass ``most_work``."""
        staged = self._staged
        for row, lower in zip(staged.rooms, self._relaxed.rooms(staged, budget_nbytes), strict=True):
            staged.program.lower[row] = lower
            self._simplex.set_lower(row, lower)
        answer = self._simplex.solve(most_work)
        bound_ns = certified_bound(staged.program, answer.dual)
        return self._relaxed.relaxation(staged, answer.primal, bound_ns, answer.solved)
