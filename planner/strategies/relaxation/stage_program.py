"""The parts of a stage program (stage_relaxation.py), and what its rows ask of a problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

from ...problem import Problem
from .linear_program import LinearProgram


@dataclass(frozen=True)
class Moment:
    """The first run of an op, with a negative stage. Variables: H by storage, A and W by op (forward_rows.py)."""

    stage: int
    held: dict[int, int]
    again: dict[int, int]
    whole: dict[int, int]


@dataclass
class StageProgram:
    """The rows and what its variables are: E, R and Z by stage or interval, then by storage or op.

    ``runs[q]`` is the interval that begins at stage q; ``rooms`` are the memory rows, one per stage, then those of the
    ``moments``; ``remade`` what is paid for runs between these and the first backward, by op.
    """

    program: LinearProgram
    stages: tuple[int, ...]
    alive: list[dict[int, int]] = field(default_factory=list)
    runs: list[dict[int, int]] = field(default_factory=list)
    again: list[dict[int, int]] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    remade: dict[int, int] = field(default_factory=dict)


class Uses:
    """Who needs which storages of one problem, and until when."""

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
        """Latest backward position that a recomputation of an op can serve; -1 for one that must run only once."""
        writes = [() if op.once else op.writes for op in self.problem.graph.ops]
        return [max((self.last_useful[s] for s in w if not self.free[s]), default=-1) for w in writes]

    @staticmethod
    def available(
        storage: int, alive: dict[int, int], runs: dict[int, int], producer: list[int]
    ) -> list[tuple[int, int]]:
        """Terms that are at least 1 when a storage is alive or recomputed."""
        terms = [(1, alive[storage])] if storage in alive else []
        return terms + ([(1, runs[producer[storage]])] if producer[storage] in runs else [])

    def unit(self, held: Iterable[int]) -> int:
        """The greatest common divisor of the sizes of some storages."""
        return max(1, gcd(*self.problem.nbytes[list(held)].tolist()))

    def memory_row(self, lp: LinearProgram, room_nbytes: int, held: dict[int, int]) -> int:
        """The row that what is ``held``, variables by storage, fits into so many bytes; in `unit`s of its sizes."""
        size, unit = self.problem.nbytes.tolist(), self.unit(held)
        return lp.at_least(-(room_nbytes // unit), [(-size[s] // unit, variable) for s, variable in held.items()])
