"""Rows for what happens between two stages: whatever is held through an interval leaves its recomputations less room.

A storage alive at stage q whose producer is not recomputed in the interval before it was alive all the time, so
``E[q,t] - R[q,p(t)]`` counts only bytes that are really held throughout. Beside them must fit, at some moment,

- an op that is recomputed there, with all it reads and writes, its workspace and its generator state;
- a backward inside the interval, with all it reads.

Any choice of the storages counted gives a valid row, so only rows that a point breaks are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ..relaxation.linear_program import Floats
from ..relaxation.stage_program import StageProgram
from ..relaxation.stage_relaxation import StageRelaxation

_PER_INTERVAL = 3
_VIOLATION = 1e-3
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AtMost:
    """The row ``sum(coefficient * x) <= limit`` with terms (coefficient, variable)."""

    limit: int
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Interval:
    """What an interval's rows need: E and R variables of what can be held through, bytes, and what must fit beside.

    ``users`` are (variable of the recomputation or -1 for a backward, bytes it uses, storages it uses, room).
    """

    storages: Ints
    held: Ints
    made: Ints  # -1 where the producer runs only once
    nbytes: Ints
    users: tuple[tuple[int, int, frozenset[int], int], ...]


class ThroughRows:
    """The rows of one stage program, separated on demand."""

    def __init__(self, relaxed: StageRelaxation, staged: StageProgram, budget_nbytes: int) -> None:
        self.problem, self.relaxed, self.staged = relaxed.problem, relaxed, staged
        self.budget = budget_nbytes - self.problem.pinned_nbytes
        self.uses = [self._use(op) for op in range(self.problem.op_count)]
        self.intervals = [self._interval(last) for last in range(1, len(staged.stages))]

    def _use(self, op: int) -> tuple[int, frozenset[int]]:
        problem, entry = self.problem, self.problem.graph.ops[op]
        storages = frozenset(s for s in (*entry.reads, *entry.writes) if not self.relaxed.free[s])
        nbytes = int(sum(problem.nbytes[s] for s in storages)) + problem.costs[op].forward_workspace_nbytes
        return nbytes + entry.random_state_nbytes, storages

    def _interval(self, last: int) -> _Interval:
        problem, staged = self.problem, self.staged
        alive, runs = staged.alive[last], staged.runs[last - 1]
        inside = range(staged.stages[last - 1] + 1, staged.stages[last] + 1)
        room = self.budget - int(problem.between_nbytes[inside.start : inside.stop].min())
        users = [(variable, *self.uses[op], room) for op, variable in runs.items()]
        for position in inside[:-1]:
            reads = frozenset(self.relaxed.needs[position])
            nbytes = int(sum(problem.nbytes[s] for s in reads))
            users.append((-1, nbytes, reads, self.budget - int(problem.during_nbytes[position])))
        storages = np.array(list(alive), dtype=np.int64)
        return _Interval(
            storages,
            np.array(list(alive.values()), dtype=np.int64),
            np.array([runs.get(int(problem.producer[s]), -1) for s in alive], dtype=np.int64),
            problem.nbytes[storages],
            tuple(users),
        )

    def separate(self, point: Floats) -> list[AtMost]:
        """The rows that ``point`` breaks most, a few for each interval."""
        found: list[AtMost] = []
        for interval in self.intervals:
            recomputation = np.where(interval.made >= 0, point[interval.made], 0.0)
            through = np.maximum(0.0, point[interval.held] - recomputation) * interval.nbytes
            total, share = float(through.sum()), dict(zip(interval.storages.tolist(), through.tolist(), strict=True))
            broken = []
            for number, (variable, nbytes, storages, room) in enumerate(interval.users):
                value = nbytes * (float(point[variable]) if variable >= 0 else 1.0)
                excess = total - sum(share.get(s, 0.0) for s in storages) + value - room
                if excess > _VIOLATION * max(1, room):
                    broken.append((-excess, number))
            for _, number in sorted(broken)[:_PER_INTERVAL]:
                found.append(self._row(interval, np.flatnonzero(through > 0), number))
        return found

    @staticmethod
    def _row(interval: _Interval, counted: NDArray[np.intp], number: int) -> AtMost:
        variable, nbytes, storages, room = interval.users[number]
        terms: dict[int, int] = {}
        for index in counted.tolist():
            if int(interval.storages[index]) in storages:
                continue
            size = int(interval.nbytes[index])
            terms[int(interval.held[index])] = size
            if interval.made[index] >= 0:
                made = int(interval.made[index])
                terms[made] = terms.get(made, 0) - size
        if variable >= 0:
            terms[variable] = terms.get(variable, 0) + nbytes
        else:
            room -= nbytes
        unit = max(1, gcd(*terms.values()))
        return AtMost(room // unit, tuple((c // unit, v) for v, c in terms.items() if c))
