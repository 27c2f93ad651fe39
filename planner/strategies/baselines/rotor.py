"""Optimal checkpointing of a heterogeneous chain, with whole-segment decisions.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous chains: how to
train deep neural networks with limited memory" (arXiv:1911.13214), the algorithm of the package Rotor: every
segment of the chain either saves all that its backward reads or only its input, and a dynamic programme over 500
memory slots finds the cheapest such plan, recomputing segments any number of times.

Deviations: a segment is what lies between two articulation storages, since a graph no longer knows the modules of
an nn.Sequential; values without gradient that cross a cut are held with it; a value is recomputed only if
something uses it, not with its whole segment. A graph without articulation storages is one segment.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..chain.block_cuts import crossing_of
from ..chain.blocks import blocks_of
from ..chain.dynamic_program import table, trace, units_of
from ..chain.lowering import Lowering
from ..chain.options import everything_held
from ..evaluation.evaluator import Array, Evaluation, Evaluator, solution_of
from ..evaluation.labels import Label
from .articulation import separators

NAME = "rotor"
_SLOTS = 500
_MOST_SEGMENTS = 200
"""The table has slots times segments squared entries; longer chains get neighbouring segments joined."""


class Rotor:
    """The chain of segments of one problem."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        n = evaluator.problem.op_count
        crossing = crossing_of(evaluator)
        cuts = [s.after + 1 for s in separators(evaluator.problem.graph) if s.after + 1 < n]
        cuts = [cut for cut in cuts if crossing.allowed[cut]]
        joined = -(-(len(cuts) + 1) // _MOST_SEGMENTS)
        positions = np.array([0, *cuts[joined - 1 :: joined], n], dtype=np.int64)
        self.blocks = blocks_of(evaluator, crossing, [positions])
        self.options, self.ends = (
            tuple((everything_held(block, last=last),) for block in self.blocks.unique) for last in (False, True)
        )
        self.lowering = Lowering(evaluator, crossing, self.blocks, self.options, self.ends)

    def plan(self, memory_nbytes: int, *, smallest: bool = False) -> tuple[Array, Evaluation] | None:
        """The programme's plan for this much memory; ``smallest``: for the fewest slots of it that suffice."""
        units = units_of(self.blocks, self.options, self.ends, max(1, memory_nbytes) / _SLOTS, even=False)
        best = table(units, _SLOTS)
        finite = np.flatnonzero(np.isfinite(best[0, -1]))
        if not len(finite):
            return None
        return self.lowering.lowered(trace(units, best, int(finite[0] if smallest else _SLOTS)))

    @cached_property
    def smallest(self) -> tuple[Array, Evaluation]:
        """The plan of the smallest peak: the fewest slots, in slots of the peak found so far while that still falls."""
        keep_all = self.evaluator.evaluate(self.evaluator.labels(Label.KEEP)).peak_nbytes
        best: tuple[Array, Evaluation] | None = None
        memory = 2 * keep_all
        while True:
            found = self.plan(memory, smallest=True)
            if found is None and best is None:
                memory *= 2  # rounding up has cost more than half
                continue
            if found is None or (best is not None and found[1].peak_nbytes >= best[1].peak_nbytes):
                assert best is not None
                return best
            best, memory = found, found[1].peak_nbytes


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """The cheapest plan of the programme within the budget, or UNKNOWN with the smallest peak that it reaches."""
    evaluator = Evaluator(problem)
    rotor = Rotor(evaluator)
    notes = (f"{len(rotor.blocks)} segments, {len(rotor.blocks.unique)} of them different",)
    found = None if budget_nbytes is None else rotor.plan(budget_nbytes)
    if found is None or (budget_nbytes is not None and found[1].peak_nbytes > budget_nbytes):
        found = rotor.smallest
    return solution_of(*found, budget_nbytes, NAME, notes)
