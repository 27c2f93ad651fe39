"""A bound from stage programs that grow: solved in integers, replayed, given the stage where that breaks the budget.

The integer optimum of a few stages (stage_lp.py) is found in seconds (cp_sat.py), and is no longer what holds the
bound back: that is what happens between the stages. So the plan that the optimum stands for is replayed, and the
backward before which it holds most becomes a stage; until the optimum costs as much as the best plan, or no longer
overruns the budget where another stage could tell. Rows are generated, not enumerated, as Benders (Numerische
Mathematik 1962) does it with a replay as the subproblem.
"""

from __future__ import annotations

from collections import deque
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


class IntegerBound:
    """Raises ``bound_ns``, a lower bound on every plan within the budget in ``relaxed``'s backward order.

    ``points`` are the last integer optima, for rounding; ``ended`` when no more stages are to be had from them.
    """

    def __init__(
        self, relaxed: StageLP, evaluator: Evaluator, budget_nbytes: int, stages: Iterable[int], known_ns: int
    ) -> None:
        self._relaxed, self._evaluator, self._budget_nbytes = relaxed, evaluator, budget_nbytes
        self._annealer = HoldAnnealer(evaluator, 0)
        self.stages = tuple(sorted({0, *stages}))
        self.bound_ns = known_ns
        self.ended = False
        self.points: deque[Relaxation] = deque(maxlen=_POINTS)
        self._build()

    def _build(self) -> None:
        self._staged = self._relaxed.program(self._budget_nbytes, self.stages)
        self._through = ThroughRows(self._relaxed, self._staged, self._budget_nbytes)

    def run(self, incumbent_ns: int, work: float, late: Callable[[], bool]) -> None:
        """Solve and grow until no plan is cheaper than ``incumbent_ns`` or ``work``, as `minimum` counts it, is done.

        It may be called again for more, unless it has ``ended``. ``late`` ends it at any moment.
        """
        while work > 0 and self.bound_ns < incumbent_ns and not self.ended and not late():
            found = minimum(self._staged.program, incumbent_ns, work, late)
            work -= max(_LEAST_WORK, found.work)
            self.bound_ns = max(self.bound_ns, found.bound_ns)
            if found.point is None or not found.proven:
                return
            broken = self._through.separate(found.point)
            for cover in broken:
                self._staged.program.at_least(-cover.limit, [(-c, v) for c, v in cover.terms])
            self.ended = not broken and not self._grown(found.point)

    def _grown(self, point: Floats) -> bool:
        """One more stage where what the point stands for overruns the budget most; whether there was one."""
        relaxation = self._relaxed.relaxation(self._staged, point, self.bound_ns, True)
        self.points.appendleft(relaxation)
        replayed = self._annealer.from_stages(relaxation.stages, relaxation.held, 0.5)
        if replayed is None:
            return False
        over = self._overrun(replayed[0])
        broken = [int(g) for g in np.argsort(-over, kind="stable") if over[g] > 0]
        fresh = [g for g in (*broken, *(g - 1 for g in broken)) if g > 0 and g not in self.stages]
        if not fresh:
            return False
        self.stages = tuple(sorted({*self.stages, fresh[0]}))
        self._build()
        return True

    def _overrun(self, sequence: Array) -> Array:
        """Bytes above the budget during each backward or the re-runs just before it, at most; shape [backwards]."""
        problem, evaluator = self._relaxed.problem, self._evaluator
        evaluator.evaluate_sequence(sequence)
        held = np.cumsum(evaluator.scratch.memory[: len(sequence)])
        backward = sequence < 0
        group: Array = np.cumsum(backward) - backward
        counted = backward | (np.arange(len(sequence)) >= problem.op_count)
        beside = np.where(backward, problem.during_nbytes[group * counted], problem.between_nbytes[group * counted])
        over = np.zeros(len(problem.backward_order), dtype=np.int64)
        np.maximum.at(over, group[counted], (held + beside - self._budget_nbytes)[counted])
        return over
