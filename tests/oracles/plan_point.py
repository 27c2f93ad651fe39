"""The point of a stage program that a plan stands for: what is alive at its stages, what runs between.

It satisfies every row and costs no more than the plan: otherwise the program would not bound what plans cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ogc_plan.planner.strategies.evaluation.evaluator import Array
from ogc_plan.planner.strategies.relaxation.linear_program import Floats
from ogc_plan.planner.strategies.relaxation.stage_program import StageProgram, Uses


def point_of(uses: Uses, staged: StageProgram, sequence: Array) -> Floats:
    """The 0/1 values, one for each variable of ``staged``, of a legal order of computations of the problem of ``uses``.

    Recomputations that can serve nothing after them are left out, for the program knows none.
    """
    plan, point = _Plan(uses, sequence), np.zeros(len(staged.program.cost))
    ends = [*(plan.backwards[position] for position in staged.stages), len(sequence)]
    for q, event in enumerate(ends):
        if q < len(staged.alive):
            _take(point, staged.alive[q], plan.alive(event))
            _take(point, staged.again[q], plan.recomputed(event, len(sequence)))
        if q > 0:
            _take(point, staged.runs[q - 1], plan.recomputed(ends[q - 1], event))
    for moment in staged.moments:
        event = plan.first[moment.stage + uses.problem.op_count]
        again = plan.recomputed(event, plan.backwards[0], all_of_them=True)
        _take(point, moment.held, plan.alive(event))
        _take(point, moment.again, again)
        _take(point, moment.whole, again | plan.recomputed(event, len(sequence)))
        _take(point, staged.remade, again)
    return point


def _take(point: Floats, variables: dict[int, int], which: NDArray[np.bool_]) -> None:
    """Set the ``variables`` of the keys that ``which`` has to 1."""
    point[[variable for key, variable in variables.items() if which[key]]] = 1.0


class _Plan:
    """When things run and how long values live in one order of computations."""

    def __init__(self, uses: Uses, sequence: Array) -> None:
        problem = self.problem = uses.problem
        self.backwards = np.flatnonzero(sequence < 0).tolist()
        self.first = [-1] * problem.op_count
        self.useful = np.zeros(len(sequence), dtype=np.bool_)  # recomputations that can serve a backward after them
        self.again = np.zeros(len(sequence), dtype=np.bool_)
        self.sequence = sequence
        copies: list[tuple[int, int, int]] = []
        made, used = [-1] * len(problem.nbytes), [-1] * len(problem.nbytes)
        position = 0
        for event, entry in enumerate(sequence.tolist()):
            if entry < 0:
                for storage in uses.needs[position]:
                    used[storage] = event
                position += 1
                continue
            if self.first[entry] < 0:
                self.first[entry] = event
            else:
                self.again[event] = True
                self.useful[event] = position <= uses.op_useful[entry]
            for storage in uses.reads[entry]:
                used[storage] = event
            for storage in problem.graph.ops[entry].writes:
                if made[storage] >= 0:
                    copies.append((storage, made[storage], used[storage]))
                made[storage] = used[storage] = event
        copies += [(storage, begun, used[storage]) for storage, begun in enumerate(made) if begun >= 0]
        self._copies = np.array(copies, dtype=np.int64).reshape(-1, 3)

    def alive(self, event: int) -> NDArray[np.bool_]:
        """Storages whose copy is made by then and used then or later; shape [storages]."""
        storage, begun, ended = self._copies.T
        found = np.zeros(len(self.problem.nbytes), dtype=np.bool_)
        found[storage[(begun <= event) & (event <= ended)]] = True
        return found

    def recomputed(self, after: int, before: int, *, all_of_them: bool = False) -> NDArray[np.bool_]:
        """Ops that run again between two events, where that is useful, or at all; shape [ops]."""
        which = (self.again if all_of_them else self.useful)[after + 1 : before]
        found = np.zeros(self.problem.op_count, dtype=np.bool_)
        found[self.sequence[after + 1 : before][which]] = True
        return found
