"""A bound from stage programs that grow: solve in integers, replay the optimum, add the stage that breaks the budget.

The integer optimum of a few stages (stage_relaxation.py) is found in seconds (cp_sat.py). What then holds the bound
back is what happens between the stages. So the plan that the optimum stands for is replayed, and the worst of the
moments at which it overruns the budget becomes a stage, those far from the stages first, until the optimum costs as
much as the best plan. A replay within the budget that costs no more than its optimum is an optimal plan, but for what
is spared. Stages are generated, not enumerated, as in Benders' decomposition (Numerische Mathematik 1962), with the
replay as the subproblem.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...limits import Limits
from ..evaluation.evaluator import Array, Evaluator
from ..relaxation.stage_relaxation import Relaxation, StageRelaxation
from ..retention.annealer import RetentionAnnealer
from .cp_sat import minimum

_POINTS = 8
_LEAST_WORK = 0.01
"""What a solve counts for at least, so that many easy ones end, too."""
_MORE = 1.5
"""A program that was not solved is tried again with more than so many times the work."""
_INTEGRAL = 0.5
_NEAR = 40
"""A stage whose distance from all others is at least the number of backwards divided by this counts in full."""


class IntegerBound:
    """Raises ``bound_ns``, a lower bound on every plan within the budget in ``relaxed``'s backward order.

    Attributes:
        stages: The stages of the present program.
        points: The last points found in integers, the latest first, for rounding.
        ended: Whether the last point gives no more stages.
    """

    def __init__(
        self, relaxed: StageRelaxation, evaluator: Evaluator, budget_nbytes: int, stages: Iterable[int], known_ns: int
    ) -> None:
        self._relaxed, self._evaluator, self._budget_nbytes = relaxed, evaluator, budget_nbytes
        self._annealer = RetentionAnnealer(evaluator, 0)
        self.stages = tuple(sorted({0, *stages}))
        self.bound_ns = known_ns
        self.ended = False
        self.points: tuple[Relaxation, ...] = ()
        self._work = self._spent = 0.0  # to be done, and done in vain for the present program
        self._staged = relaxed.program(budget_nbytes, self.stages)

    def run(self, incumbent_ns: int, spare_ns: int, work: float, limits: Limits) -> None:
        """Solve and grow until no plan is cheaper than ``incumbent_ns`` by more than ``spare_ns``, or ``work`` is done.

        Work is counted as `minimum` does. A later call goes on for more; a program that was not solved is tried again
        when there is half as much work again for it.
        """
        self._work += work
        while (
            self._work > _MORE * self._spent
            and self.bound_ns < incumbent_ns - spare_ns
            and not self.ended
            and not limits.out_of_time()
        ):
            given = self._work
            found = minimum(self._staged.program, spare_ns, given, limits)
            self._work -= max(_LEAST_WORK, found.work)
            self.bound_ns = max(self.bound_ns, found.bound_ns)
            if found.point is not None:
                relaxation = self._relaxed.relaxation(self._staged, found.point, self.bound_ns, True)
                self.points = (relaxation, *self.points[: _POINTS - 1])
            self._spent = 0.0 if found.proven else given
            if limits.out_of_time() or not found.proven or found.point is None:
                return
            self.ended = not self._grown(self.points[0])

    def _grown(self, point: Relaxation) -> bool:
        """Add the stage where the plan that the point stands for overruns the budget most; whether there was one.

        If all these are stages already, the backward before the worst of them counts.
        """
        replayed = self._annealer.from_stages(point, _INTEGRAL)
        if replayed is None:
            return False
        over = self._overruns(replayed[0])
        before = {stage - 1: nbytes for stage, nbytes in over.items() if stage > 0}
        for candidates in (over, before):
            fresh = {
                stage: nbytes * self._apart(stage)
                for stage, nbytes in sorted(candidates.items())
                if stage not in self.stages
            }
            if fresh:
                self.stages = tuple(sorted({*self.stages, max(fresh, key=fresh.__getitem__)}))
                self._staged = self._relaxed.program(self._budget_nbytes, self.stages)
                return True
        return False

    def _apart(self, stage: int) -> float:
        """The weight of a stage by its distance from the others: near one of them it tells little, and takes long."""
        return min(1.0, _NEAR * min(abs(stage - other) for other in self.stages) / len(self._relaxed.order))

    def _overruns(self, sequence: Array) -> dict[int, int]:
        """The stages during which a plan that begins with the forward overruns the budget, and by how many bytes.

        A backward and the recomputations just before it are one stage; first runs are negative ones (forward_rows.py).
        """
        excess = self._evaluator.in_use(sequence) - self._budget_nbytes
        ops, events = self._relaxed.problem.op_count, np.arange(len(sequence))
        backward = sequence < 0
        stage = np.where(events < ops, events, ops + np.cumsum(backward) - backward)
        over = np.zeros(ops + len(self._relaxed.problem.backward_order), dtype=np.int64)
        np.maximum.at(over, stage, excess)
        return {int(at) - ops: int(over[at]) for at in np.flatnonzero(over > 0)}
