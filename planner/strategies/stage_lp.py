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
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem
from .linear_program import Floats, LinearProgram, certified_bound, solve

BOUND_CLASS = "the default backward order; any forward order, any number of recomputations"


@dataclass(frozen=True)
class Relaxation:
    """A certified bound in ns (0 when the solver gave up) and the values of E, 1 for storages that cost nothing.

    alive[t] = E[0,t], shape [storages]; held[q,t] = E[q,t] at the backward position stages[q].
    """

    bound_ns: int
    alive: NDArray[np.float64]
    solved: bool
    stages: tuple[int, ...] = (0,)
    held: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))


@dataclass
class StageProgram:
    """The rows and what its variables are: E, R and Z by stage or interval, then by storage or op.

    ``runs[q]`` is the interval that begins at stage q; ``rooms`` are the memory rows, one per stage;
    ``spans`` are (first stage, last stage, R) of every interval and of every run of intervals with rows of its own.
    """

    program: LinearProgram
    stages: tuple[int, ...]
    alive: list[dict[int, int]] = field(default_factory=list)
    runs: list[dict[int, int]] = field(default_factory=list)
    again: list[dict[int, int]] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    spans: list[tuple[int, int, dict[int, int]]] = field(default_factory=list)


class StageLP:
    """Builds and solves the relaxation of one problem for varying budgets and stages."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.order = problem.backward_order
        self.needs: list[tuple[int, ...]] = []
        for op in self.order:
            backward = problem.graph.ops[op].backward
            assert backward is not None
            self.needs.append(tuple(s for s in backward.reads if not self.free[s]))
        self.reads = [tuple(s for s in op.reads if not self.free[s]) for op in problem.graph.ops]

    @cached_property
    def free(self) -> list[bool]:
        """Storages that cost nothing to keep: held by the caller, or empty."""
        return [
            s in self.problem.pinned or storage.nbytes == 0 for s, storage in enumerate(self.problem.graph.storages)
        ]

    @cached_property
    def last_use(self) -> list[int]:
        """Latest backward position that reads a storage directly; -1 if none."""
        last = [-1] * len(self.free)
        for position, needs in enumerate(self.needs):
            for storage in needs:
                last[storage] = position
        return last

    @cached_property
    def last_useful(self) -> list[int]:
        """Latest backward position that a storage can serve, directly or through a recomputation."""
        useful = list(self.last_use)
        for op in range(self.problem.op_count - 1, -1, -1):
            if self.problem.graph.ops[op].once:
                continue
            latest = max((useful[s] for s in self.problem.graph.ops[op].writes if not self.free[s]), default=-1)
            for storage in self.reads[op]:
                useful[storage] = max(useful[storage], latest)
        return useful

    @cached_property
    def op_useful(self) -> list[int]:
        """Latest backward position that a re-run of an op can serve; -1 for one that must run only once."""
        writes = [() if op.once else op.writes for op in self.problem.graph.ops]
        return [max((self.last_useful[s] for s in w if not self.free[s]), default=-1) for w in writes]

    def program(self, budget_nbytes: int, stages: Sequence[int], extra: Sequence[int] = ()) -> StageProgram:
        """The program for ``stages`` (backward positions; 0 is always one).

        ``extra`` stages split intervals between ``stages`` whose rows are kept beside those of the parts, so they
        never weaken the bound; splitting an interval alone may.
        """
        problem, lp = self.problem, LinearProgram()
        producer, time = problem.producer.tolist(), problem.forward_ns.tolist()
        coarse = sorted({0, *stages})
        positions = sorted({*coarse, *extra})
        made = StageProgram(lp, tuple(positions))
        for q, position in enumerate([*positions, len(self.order)]):
            runs: dict[int, int] = {}
            alive = made.alive[-1] if q else None
            again = made.again[-1] if q else {}
            if alive is not None:
                covered = range(positions[q - 1] + 1, min(position + 1, len(self.order)))
                runs = self._interval(lp, time, alive, producer, covered)
                made.runs.append(runs)
            if position == len(self.order):
                for op, variable in again.items():
                    lp.at_least(0, [(1, runs[op]), (-1, variable)] if op in runs else [(-1, variable)])
                break
            now = self._stage(lp, position, alive, runs, producer)
            later = {op: lp.variable() for op, useful in enumerate(self.op_useful) if useful > position}
            for op, variable in again.items():
                terms = [(1, table[op]) for table in (later, runs) if op in table]
                lp.at_least(0, [*terms, (-1, variable)])
            for op, variable in later.items():
                for storage in self.reads[op]:
                    lp.at_least(0, [*self._available(storage, now, later, producer), (-1, variable)])
            for storage, last in enumerate(self.last_use):
                if last > position:
                    lp.at_least(1, self._available(storage, now, later, producer))
            made.rooms.append(self._room(lp, budget_nbytes, position, now))
            made.alive.append(now)
            made.again.append(later)
        made.spans += [(q, q + 1, runs) for q, runs in enumerate(made.runs)]
        inner = [positions.index(stage) for stage in coarse] + [len(positions)]
        for begin, end in pairwise(inner):
            for first, last in combinations(range(begin, end + 1), 2):
                if last - first > 1:
                    self._span(made, first, last)
        return made

    def _span(self, made: StageProgram, first: int, last: int) -> None:
        """Rows of several intervals taken as one: its R variables mean at least one re-run in any of them."""
        lp, producer, count = made.program, self.problem.producer.tolist(), len(self.order)
        alive, parts = made.alive[first], made.runs[first:last]
        ends = last == len(made.stages)
        covered = range(made.stages[first] + 1, count if ends else made.stages[last] + 1)
        runs = self._interval(lp, [0] * self.problem.op_count, alive, producer, covered)
        for op, variable in runs.items():
            lp.at_least(0, [*((1, part[op]) for part in parts if op in part), (-1, variable)])
        for storage, variable in ({} if ends else made.alive[last]).items():
            lp.at_least(0, [*self._available(storage, alive, runs, producer), (-1, variable)])
        later = {} if ends else made.again[last]
        for op, variable in made.again[first].items():
            lp.at_least(0, [*((1, table[op]) for table in (later, runs) if op in table), (-1, variable)])
        made.spans.append((first, last, runs))

    def _room(self, lp: LinearProgram, budget_nbytes: int, position: int, now: dict[int, int]) -> int:
        """The memory row of a stage, in units of the greatest common divisor of its sizes."""
        size = self.problem.nbytes.tolist()
        room = budget_nbytes - int(self.problem.during_nbytes[position]) - self.problem.pinned_nbytes
        unit = max(1, gcd(*(size[storage] for storage in now)))
        return lp.at_least(-(room // unit), [(-size[s] // unit, variable) for s, variable in now.items()], soft=True)

    @staticmethod
    def _available(
        storage: int, alive: dict[int, int], runs: dict[int, int], producer: list[int]
    ) -> list[tuple[int, int]]:
        """Terms that are at least 1 when a storage is alive or recomputed."""
        terms = [(1, alive[storage])] if storage in alive else []
        return terms + ([(1, runs[producer[storage]])] if producer[storage] in runs else [])

    def _interval(
        self, lp: LinearProgram, time: list[int], alive: dict[int, int], producer: list[int], covered: range
    ) -> dict[int, int]:
        """R variables of the interval that ends with the backwards ``covered``, and its rows."""
        runs = {op: lp.variable(time[op]) for op, useful in enumerate(self.op_useful) if useful >= covered.start}
        for op, variable in runs.items():
            for storage in self.reads[op]:
                lp.at_least(0, [*self._available(storage, alive, runs, producer), (-1, variable)])
        for storage in sorted({s for position in covered for s in self.needs[position]}):
            lp.at_least(1, self._available(storage, alive, runs, producer))
        return runs

    def _stage(
        self, lp: LinearProgram, position: int, alive: dict[int, int] | None, runs: dict[int, int], producer: list[int]
    ) -> dict[int, int]:
        """E variables of one stage: what may be alive there came from the stage before or a recomputation."""
        useful = self.last_useful
        now = {s: lp.variable() for s in range(len(self.free)) if useful[s] >= position and not self.free[s]}
        if alive is not None:
            for storage, variable in now.items():
                lp.at_least(0, [*self._available(storage, alive, runs, producer), (-1, variable)])
        for storage in self.needs[position]:
            lp.at_least(1, [(1, now[storage])])
        return now

    def solve(self, budget_nbytes: int, stages: Sequence[int], time_limit_s: float | None = None) -> Relaxation:
        """Solve the relaxation and certify its bound."""
        staged = self.program(budget_nbytes, stages)
        answer = solve(staged.program, time_limit_s)
        bound = certified_bound(staged.program, answer.dual) if answer.solved else 0
        return self.relaxation(staged, answer.primal, bound, answer.solved)

    def relaxation(self, staged: StageProgram, primal: Floats, bound_ns: int, solved: bool) -> Relaxation:
        """A point of the program as what is alive at each stage."""
        held = np.zeros((len(staged.stages), len(self.free)))
        held[:, self.free] = 1.0
        for q, alive in enumerate(staged.alive):
            held[q, list(alive)] = primal[list(alive.values())]
        return Relaxation(bound_ns, held[0], solved, staged.stages, held)


def lower_bound(problem: Problem, budget_nbytes: int, stages: Sequence[int] = (0,)) -> int:
    """A certified lower bound on the recomputation time (ns) of every plan of BOUND_CLASS within the budget."""
    if not problem.backward_order:
        return 0
    return StageLP(problem).solve(budget_nbytes, stages).bound_ns
