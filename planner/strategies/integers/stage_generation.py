"""A bound from stage programs that grow: solve in integers, replay the optimum, add the stage that breaks the budget.

The integer optimum of a few stages (stage_relaxation.py) is found in seconds (cp_sat.py). What then holds the bound
back is what happens between the stages. So the plan that the optimum stands for is replayed, and the worst of the
moments at which it overruns the budget becomes a stage, those far from the stages first, until the optimum costs as
much as the best plan. A replay within the budget that costs no more than its optimum is an optimal plan, but for what
is spared. Stages are generated, not enumerated, as in Benders' decomposition (Numerische Mathematik 1962), with the
replay as the subproblem.

Given much work, stages are chosen by trials (stage_trials.py) from the first backward on, among them moments at which
ops run again (recompute_rows.py): programs without stages that tell nothing are solved many times sooner. For little
work that takes too long, and the stages of a linear program are a better start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...limits import NO_LIMITS, Limits
from ..evaluation.evaluator import Array, Evaluator
from ..relaxation.linear_program import Floats
from ..relaxation.stage_relaxation import Relaxation, StageRelaxation
from ..retention.annealer import RetentionAnnealer
from .cp_sat import Minimum, minimum
from .stage_scores import StageScores
from .stage_trials import Place, StageTrials

_POINTS = 8
_LEAST_WORK = 0.01
"""What a solve counts for at least, so that many easy ones end, too."""
_MORE = 1.5
"""A program that was not solved is tried again with more than so many times the work."""
_INTEGRAL = 0.5
_TRIED = 12
"""Places that are compared before one of them becomes a stage."""
_NEAR = 40
"""A stage farther than one in so many backwards from all others counts in full."""


class IntegerBound:
    """Raises ``bound_ns``, a lower bound on every plan within the budget in ``relaxed``'s backward order.

    It begins with ``stages``, or where it ``chooses`` with the first backward alone. ``points`` are the last points
    found in integers, the latest first, for rounding; ``ended`` when no more stages are to be had from them.
    """

    def __init__(
        self,
        relaxed: StageRelaxation,
        evaluator: Evaluator,
        budget_nbytes: int,
        stages: Iterable[int],
        known_ns: int,
        *,
        chooses: bool = False,
    ) -> None:
        self._relaxed, self._evaluator, self._budget_nbytes = relaxed, evaluator, budget_nbytes
        self._annealer = RetentionAnnealer(evaluator, 0)
        self._choice = StageTrials() if chooses else None
        self.stages = (0,) if chooses else tuple(sorted({0, *stages}))
        self.recomputations: tuple[tuple[int, int], ...] = ()
        self.bound_ns = known_ns
        self.ended = False
        self.points: tuple[Relaxation, ...] = ()
        self._work = self._spent = 0.0  # to be done, and done in vain for the present program
        self._build()

    def _build(self) -> None:
        self._staged = self._relaxed.program(self._budget_nbytes, self.stages, self.recomputations)

    def run(self, incumbent_ns: int, spare_ns: int, work: float, limits: Limits) -> None:
        """Solve and grow until no plan is cheaper than ``incumbent_ns`` by more than ``spare_ns``, or ``work`` is done.

        Work as `minimum` counts it. It may be called again for more, unless it has ``ended``; a program that was not
        solved is tried again when there is half as much work again for it. ``limits`` end it at any moment.
        """
        self._work += work
        while (
            self._work > _MORE * self._spent
            and self.bound_ns < incumbent_ns - spare_ns
            and not self.ended
            and not limits.out_of_time()
        ):
            left, choice = self._work, self._choice
            given = min(left, max(choice.most(left), _MORE * self._spent)) if choice else left
            found = minimum(self._staged.program, spare_ns, given, limits)
            self._work -= max(_LEAST_WORK, found.work)
            self.bound_ns = max(self.bound_ns, found.bound_ns)
            self._take(found)
            self._spent = 0.0 if found.proven else given
            if limits.out_of_time():
                return
            if choice and choice.fails(found, incumbent_ns, cut_short=given < left):
                again = self._replaced(choice, found)
                if again is None:
                    continue
                found = again
                self._take(found)
            if not found.proven or found.point is None:
                return
            if choice:
                choice.keep(found)
            self.ended = not self._grown(self.points[0], found.point, limits)

    def _take(self, found: Minimum) -> None:
        """Keep the point of the present program, if there is one, for rounding."""
        if found.point is not None:
            relaxation = self._relaxed.relaxation(self._staged, found.point, self.bound_ns, True)
            self.points = (relaxation, *self.points[: _POINTS - 1])

    def _grown(self, relaxation: Relaxation, point: Floats, limits: Limits = NO_LIMITS) -> bool:
        """One more stage where the plan that the point stands for overruns the budget; whether there was one."""
        replayed = self._annealer.from_stages(relaxation, _INTEGRAL)
        if replayed is None:
            return False
        sequence = replayed[0]
        excess = self._evaluator.in_use(sequence) - self._budget_nbytes
        over = self._overruns(sequence, excess)
        before = {stage - 1: nbytes for stage, nbytes in over.items() if stage > 0}
        recomputations = self._recomputations(sequence, excess) if self._choice else {}
        candidates = self._weighed(self._new(over)) | recomputations or self._weighed(self._new(before))
        if not candidates:
            return False
        worst = sorted(candidates, key=candidates.__getitem__, reverse=True)
        self._add(self._chosen(self._choice, worst, point, limits) if self._choice else worst[0])
        return True

    def _chosen(self, choice: StageTrials, worst: Sequence[Place], point: Floats, limits: Limits) -> Place:
        """Of the worst places the one that raises the cost of the point most at once."""
        fresh = [place for place in worst if place not in choice.failed] or worst
        worth = StageScores(self._relaxed, self._staged, self._budget_nbytes, point, limits)
        rises = {
            at: worth.rise_of_recomputation(*at) if isinstance(at, tuple) else worth.rise(at) for at in fresh[:_TRIED]
        }
        self._work -= worth.work
        return choice.offer(rises)

    def _replaced(self, choice: StageTrials, found: Minimum) -> Minimum | None:
        """Take back the place on trial, whose program came to ``found``, for another one.

        What the program of that one has come to already is returned if it is solved, None where it is to be.
        """
        self.stages = tuple(stage for stage in self.stages if stage != choice.trial)
        self.recomputations = tuple(
            recomputation for recomputation in self.recomputations if recomputation != choice.trial
        )
        place = choice.retire(found)
        self._add(place)
        known = choice.failed.pop(place, None)
        self._spent = 0.0 if known is None or known.proven else known.work
        return known if known is not None and known.proven else None

    def _add(self, place: Place) -> None:
        if isinstance(place, tuple):
            self.recomputations = tuple(sorted({*self.recomputations, place}))
        else:
            self.stages = tuple(sorted({*self.stages, place}))
        self._build()

    def _new(self, over: dict[int, int]) -> dict[int, int]:
        """Those that are no stages yet."""
        return {stage: nbytes for stage, nbytes in over.items() if stage not in self.stages}

    def _weighed(self, over: dict[int, int]) -> dict[Place, float]:
        """Overruns weighed by the distance from the stages there are."""
        return {stage: nbytes * self._apart(stage) for stage, nbytes in sorted(over.items())}

    def _recomputations(self, sequence: Array, excess: Array) -> dict[Place, float]:
        """The recomputations just before a stage that overrun the budget, the worst of each, and by how many bytes.

        ``excess`` is what each event has in use beyond the budget. The rows are about the first run of an op between
        two stages; where it is another that overruns, they may tell nothing.
        """
        position = np.cumsum(sequence < 0)
        worst: dict[int, tuple[int, int]] = {}
        for event in np.flatnonzero((excess > 0) & (sequence >= 0) & np.isin(position, self.stages)).tolist():
            at, op = int(position[event]), int(sequence[event])
            if at > 0 and (at, op) not in self.recomputations:
                worst[at] = max(worst.get(at, (0, 0)), (int(excess[event]), -op))
        return {(at, -op): float(nbytes) for at, (nbytes, op) in worst.items()}

    def _apart(self, stage: int) -> float:
        """What a stage counts for by its distance from those there are: beside one it tells little, and takes long."""
        return min(1.0, _NEAR * min(abs(stage - other) for other in self.stages) / len(self._relaxed.order))

    def _overruns(self, sequence: Array, excess: Array) -> dict[int, int]:
        """The stages during which a plan that begins with the forward overruns the budget, and by how many bytes.

        ``excess`` is what each event has in use beyond it. A backward and the recomputations just before it are one
        stage; first runs are negative ones (forward_rows.py).
        """
        ops, events = self._relaxed.problem.op_count, np.arange(len(sequence))
        backward = sequence < 0
        stage = np.where(events < ops, events, ops + np.cumsum(backward) - backward)
        over = np.zeros(ops + len(self._relaxed.problem.backward_order), dtype=np.int64)
        np.maximum.at(over, stage, excess)
        return {int(at) - ops: int(over[at]) for at in np.flatnonzero(over > 0)}
