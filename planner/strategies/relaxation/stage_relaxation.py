"""The certificate: a linear relaxation of rematerialisation at a few chosen backward steps ("stages").

Checkmate (Jain et al., MLSys 2020) decides every value at every time step, n^2 variables. Here only the
steps that carry the peak get variables, and rows are generated until the relaxation's own rounding stops
showing new ones. Variables in [0, 1], q counting stages in backward order, t storages, i ops:

E[q,t]  t is alive during the backward at stage q
R[q,i]  i is recomputed between stage q-1 and stage q (the last interval ends the step)
Z[q,i]  i is recomputed at least once after stage q

Any schedule with the default backward order, in any forward order and with any number of recomputations,
satisfies every row, so the optimum bounds its recomputation time from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from .certificate import certified_bound
from .forward_rows import add_forward_stages
from .linear_program import UNLIMITED, Floats, LinearProgram, solve
from .stage_program import StageProgram, Uses

_NECK = 0.06
"""The largest share of the budget that may be retained during the backward of a neck."""
_NECKS_APART = 20
"""Two necks lie farther apart than the number of backwards divided by this."""
BOUND_CLASS = "the default backward order; any forward order, any number of recomputations"


@dataclass(frozen=True)
class Relaxation:
    """A certified bound in ns and a point of the program; all zero when the solver gave up.

    E is 1 for storages that cost nothing to retain.

    Attributes:
        alive: E[0,t], shape [storages].
        held: E[q,t] at the backward positions ``stages``, shape [stages, storages].
        recomputations: i runs again between stage q and the next one, shape [stages, ops].
        kept: t is alive at all moments of the forward that are stages and know it; E[0,t] without such a moment.
        remade: i runs again between these moments and the first backward, shape [ops].
        priced: The stages whose memory has a price in the dual: without the others the bound is no lower.
    """

    bound_ns: int
    alive: NDArray[np.float64]
    solved: bool
    stages: tuple[int, ...] = (0,)
    held: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    recomputations: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    kept: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    remade: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    priced: tuple[int, ...] = ()


class StageRelaxation(Uses):
    """Builds and solves the relaxation of one problem for varying budgets and stages."""

    def program(self, budget_nbytes: int, stages: Sequence[int]) -> StageProgram:
        """The program for ``stages`` (backward positions; 0 is always one).

        Negative ``stages`` are moments of the forward, -1 the run of its last op (forward_rows.py).
        """
        problem, lp = self.problem, LinearProgram()
        producer, time = problem.producer.tolist(), problem.forward_ns.tolist()
        positions = sorted({0, *(stage for stage in stages if 0 <= stage < len(self.order))})
        made = StageProgram(lp, tuple(positions))
        for q, position in enumerate([*positions, len(self.order)]):
            runs: dict[int, int] = {}
            alive = made.alive[-1] if q else None
            again = made.again[-1] if q else {}
            if alive is not None:
                covered = range(positions[q - 1] + 1, min(position + 1, len(self.order)))
                runs = self.interval(lp, time, alive, producer, covered)
                made.runs.append(runs)
            if position == len(self.order):
                for op, variable in again.items():
                    lp.at_least(0, [(1, runs[op]), (-1, variable)] if op in runs else [(-1, variable)])
                break
            now = self.stage(lp, position, alive, runs, producer)
            later = {op: lp.variable() for op, useful in enumerate(self.op_useful) if useful > position}
            for op, variable in again.items():
                terms = [(1, table[op]) for table in (later, runs) if op in table]
                lp.at_least(0, [*terms, (-1, variable)])
            for op, variable in later.items():
                for storage in self.reads[op]:
                    lp.at_least(0, [*self.available(storage, now, later, producer), (-1, variable)])
            for storage, last in enumerate(self.last_use):
                if last > position:
                    lp.at_least(1, self.available(storage, now, later, producer))
            made.rooms.append(self.room(lp, budget_nbytes, position, now))
            made.alive.append(now)
            made.again.append(later)
        forward = sorted({problem.op_count + stage for stage in stages if stage < 0})
        add_forward_stages(self, made, budget_nbytes, forward)
        return made

    def room(self, lp: LinearProgram, budget_nbytes: int, position: int, now: dict[int, int]) -> int:
        """The memory row of a stage."""
        return self.memory_row(lp, self.room_nbytes(budget_nbytes, position), now)

    def room_nbytes(self, budget_nbytes: int, position: int) -> int:
        """Bytes that may be retained during a backward, beyond its own gradients and workspace."""
        return budget_nbytes - int(self.problem.during_nbytes[position]) - self.problem.pinned_nbytes

    def necks(self, budget_nbytes: int) -> list[int]:
        """Backward positions during which hardly anything can be retained, the narrowest first, and far apart.

        They are good stages, because what is recomputed after one must start from little.
        """
        size, backwards = self.problem.nbytes.tolist(), len(self.order)
        room = [self.room_nbytes(budget_nbytes, q) - sum(size[s] for s in self.needs[q]) for q in range(backwards)]
        found: list[int] = []
        for position in sorted(range(backwards), key=room.__getitem__):
            if room[position] > _NECK * budget_nbytes:
                break
            if all(abs(position - other) * _NECKS_APART > backwards for other in found):
                found.append(position)
        return found

    def interval(
        self, lp: LinearProgram, time: list[int], alive: dict[int, int], producer: list[int], covered: range
    ) -> dict[int, int]:
        """R variables of the interval that ends with the backwards ``covered``, and its rows."""
        runs = {op: lp.variable(time[op]) for op, useful in enumerate(self.op_useful) if useful >= covered.start}
        for op, variable in runs.items():
            for storage in self.reads[op]:
                lp.at_least(0, [*self.available(storage, alive, runs, producer), (-1, variable)])
        for storage in sorted({s for position in covered for s in self.needs[position]}):
            lp.at_least(1, self.available(storage, alive, runs, producer))
        return runs

    def stage(
        self, lp: LinearProgram, position: int, alive: dict[int, int] | None, runs: dict[int, int], producer: list[int]
    ) -> dict[int, int]:
        """E variables of one stage: what may be alive there came from the stage before or a recomputation."""
        useful = self.last_useful
        now = {s: lp.variable() for s in range(len(self.free)) if useful[s] >= position and not self.free[s]}
        if alive is not None:
            for storage, variable in now.items():
                lp.at_least(0, [*self.available(storage, alive, runs, producer), (-1, variable)])
        for storage in self.needs[position]:
            lp.at_least(1, [(1, now[storage])])
        return now

    def solve(
        self,
        budget_nbytes: int,
        stages: Sequence[int],
        limits: Limits = NO_LIMITS,
        most_work: int = UNLIMITED,
    ) -> Relaxation:
        """Solve the relaxation and certify its bound, that of the last duals where it was not solved to the end."""
        staged = self.program(budget_nbytes, stages)
        answer = solve(staged.program, limits, most_work)
        bound = certified_bound(staged.program, answer.dual)
        stages_of = (*staged.stages[: len(staged.alive)], *(moment.stage for moment in staged.moments))
        priced = tuple(s for s, room in zip(stages_of, staged.rooms, strict=True) if answer.dual[room] > 0)
        return replace(self.relaxation(staged, answer.primal, bound, answer.solved), priced=priced)

    def relaxation(self, staged: StageProgram, primal: Floats, bound_ns: int, solved: bool) -> Relaxation:
        """A point of the program as what is alive at each stage and runs again between them."""
        held = np.zeros((len(staged.stages), len(self.free)))
        recomputations, remade = np.zeros((len(staged.stages), self.problem.op_count)), np.zeros(self.problem.op_count)
        held[:, self.free] = 1.0
        for q, (alive, runs) in enumerate(zip(staged.alive, staged.runs, strict=True)):
            held[q, list(alive)] = primal[list(alive.values())]
            recomputations[q, list(runs)] = primal[list(runs.values())]
        kept = np.full(len(self.free), np.inf)
        for moment in staged.moments:
            before = list(moment.held)
            kept[before] = np.minimum(kept[before], primal[list(moment.held.values())])
        kept = np.where(np.isinf(kept), held[0], kept)
        remade[list(staged.remade)] = primal[list(staged.remade.values())]
        return Relaxation(bound_ns, held[0], solved, staged.stages, held, recomputations, kept, remade)


def lower_bound(problem: Problem, budget_nbytes: int, stages: Sequence[int] = (0,), limits: Limits = NO_LIMITS) -> int:
    """A certified lower bound on the recomputation time (ns) of every plan of BOUND_CLASS within the budget."""
    if not problem.backward_order:
        return 0
    return StageRelaxation(problem).solve(budget_nbytes, stages, limits).bound_ns
