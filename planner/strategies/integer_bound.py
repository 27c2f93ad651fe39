"""A bound from stage programs that grow: solved in integers, replayed, given the stage where that breaks the budget.

The integer optimum of a few stages (stage_lp.py) is found in seconds (cp_sat.py), and is no longer what holds the
bound back: that is what happens between the stages. So the plan that the optimum stands for is replayed, and the
worst of the moments at which it overruns the budget, those far from the stages first, becomes a stage; until the
optimum costs as much as the best plan. Rows for what happens between the stages (through_rows.py) tell less than a
stage and take as long to solve, so they come in only where the replay asks for no other stage. A replay within the
budget that costs no more than its optimum is an optimal plan, but for what is spared. Rows are generated, not
enumerated, as Benders (Numerische Mathematik 1962) does it with a replay as the subproblem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from .anneal_holds import HoldAnnealer
from .cp_sat import minimum
from .evaluate import Array, Evaluator
from .linear_program import Floats
from .stage_lp import Relaxation, StageLP
from .through_rows import ThroughRows

_POINTS = 8
_LEAST_WORK = 0.01
"""What a solve counts for at least, so that many easy ones end, too."""
_MORE = 1.5
"""A program that was not solved is tried again with more than so many times the work."""
_INTEGRAL = 0.5
_NEAR = 40
"""A stage farther than one in so many backwards from all others counts in full."""


class IntegerBound:
    """Raises ``bound_ns``, a lower bound on every plan within the budget in ``relaxed``'s backward order.

    ``points`` are the last points found in integers, the latest first, for rounding; ``ended`` when no more stages are
    to be had from them.
    """

    def __init__(
        self, relaxed: StageLP, evaluator: Evaluator, budget_nbytes: int, stages: Iterable[int], known_ns: int
    ) -> None:
        self._relaxed, self._evaluator, self._budget_nbytes = relaxed, evaluator, budget_nbytes
        self._annealer = HoldAnnealer(evaluator, 0)
        self.stages = tuple(sorted({0, *stages}))
        self.bound_ns = known_ns
        self.ended = False
        self.points: tuple[Relaxation, ...] = ()
        self._work = self._spent = 0.0  # to be done, and done in vain for the present program
        self._build()

    def _build(self) -> None:
        self._staged = self._relaxed.program(self._budget_nbytes, self.stages)
        self._through = ThroughRows(self._relaxed, self._staged, self._budget_nbytes)

    def run(self, incumbent_ns: int, spare_ns: int, work: float, late: Callable[[], bool]) -> None:
        """Solve and grow until no plan is cheaper than ``incumbent_ns`` by more than ``spare_ns``, or ``work`` is done.

        Work as `minimum` counts it. It may be called again for more, unless it has ``ended``; a program that was not
        solved is tried again when there is half as much work again for it. ``late`` ends it at any moment.
        """
        self._work += work
        while (
            self._work > _MORE * self._spent
            and self.bound_ns < incumbent_ns - spare_ns
            and not self.ended
            and not late()
        ):
            found = minimum(self._staged.program, spare_ns, self._work, late)
            self._spent = 0.0 if found.proven else self._work
            self._work -= max(_LEAST_WORK, found.work)
            self.bound_ns = max(self.bound_ns, found.bound_ns)
            if found.point is None:
                return
            relaxation = self._relaxed.relaxation(self._staged, found.point, self.bound_ns, True)
            self.points = (relaxation, *self.points[: _POINTS - 1])
            if not found.proven:
                return
            self.ended = not self._grown(relaxation) and not self._cut(found.point)

    def _cut(self, point: Floats) -> bool:
        """Rows that the point breaks, for what happens between the stages; whether there were any."""
        broken = self._through.separate(point)
        for row in broken:
            self._staged.program.at_least(-row.limit, [(-c, v) for c, v in row.terms])
        return bool(broken)

    def _grown(self, point: Relaxation) -> bool:
        """One more stage where the plan that the point stands for overruns the budget most; whether there was one."""
        replayed = self._annealer.from_stages(point, _INTEGRAL)
        if replayed is None:
            return False
        over = self._overruns(replayed[0])
        before = {stage - 1: nbytes for stage, nbytes in over.items() if stage > 0}
        candidates = self._new(over) or self._new(before)
        if not candidates:
            return False
        worst = max(sorted(candidates), key=lambda stage: candidates[stage] * self._apart(stage))
        self.stages = tuple(sorted({*self.stages, worst}))
        self._build()
        return True

    def _new(self, over: dict[int, int]) -> dict[int, int]:
        """Those that are no stages yet."""
        return {stage: nbytes for stage, nbytes in over.items() if stage not in self.stages}

    def _apart(self, stage: int) -> float:
        """What a stage counts for by its distance from those there are: beside one it tells little, and takes long."""
        return min(1.0, _NEAR * min(abs(stage - other) for other in self.stages) / len(self._relaxed.order))

    def _overruns(self, sequence: Array) -> dict[int, int]:
        """The stages during which a plan that begins with the forward overruns the budget, and by how many bytes.

        A backward and the re-runs just before it are one stage; first runs are negative ones (forward_stage.py).
        """
        ops, events = self._relaxed.problem.op_count, np.arange(len(sequence))
        backward = sequence < 0
        stage = np.where(events < ops, events, ops + np.cumsum(backward) - backward)
        over = np.zeros(ops + len(self._relaxed.problem.backward_order), dtype=np.int64)
        np.maximum.at(over, stage, self._evaluator.in_use(sequence) - self._budget_nbytes)
        return {int(at) - ops: int(over[at]) for at in np.flatnonzero(over > 0)}
