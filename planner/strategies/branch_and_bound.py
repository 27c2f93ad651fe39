"""The integer optimum of a stage program, or a certified bound below it: branch and bound over 0/1 variables.

Every plan is a 0/1 point of the program, so boxes of such points may be split and each bounded on its own (Land &
Doig, Econometrica 1960). A box is closed only when its bound from the duals, in integers, reaches the incumbent, or
when propagation in integers finds it empty; what the floating-point solver says about a box is never taken on trust.
Branching by pseudo-costs that strong branching starts (Achterberg, Koch & Martin, OR Letters 2005).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cover_cuts import rounded, separate
from .linear_program import Certifier, Floats, Simplex
from .propagation import Bits, Rows, propagate, rows_of
from .stage_lp import StageLP, StageProgram
from .through_rows import ThroughRows

_FRACTIONAL = 1e-6
_RELIABLE = 4
_CANDIDATES = 8
_LOOKAHEAD = 4
_CUT_ROUNDS = 20
_POINTS = 8
UNLIMITED = 1 << 62
_NOTHING: NDArray[np.int64] = np.zeros(0, dtype=np.int64)


def never() -> bool:
    """No reason to stop."""
    return False


@dataclass(frozen=True)
class Bound:
    """A certified lower bound in ns, and what the search for it has seen.

    ``closed``: no plan of the bound's class costs less than the incumbent. ``points``: fractional or integral
    points (one value per variable of the program), those of the lowest open boxes first.
    """

    bound_ns: int
    root_ns: int
    solves: int
    nodes: int
    closed: bool
    points: tuple[Floats, ...] = ()


@dataclass
class _Node:
    bound: int
    low: Bits
    high: Bits
    primal: Floats
    depth: int = 0
    final: bool = False


@dataclass
class _PseudoCosts:
    """Mean gain in ns per unit of change, of each variable downwards (0) and upwards (1)."""

    total: Floats
    count: NDArray[np.int64]

    def gain(self, variable: int, side: int, change: float, default: float) -> float:
        seen = self.count[side, variable]
        return change * (self.total[side, variable] / seen if seen else default)


class BranchAndBound:
    """One search: ``run`` splits boxes until all are closed or the work is spent."""

    def __init__(
        self, staged: StageProgram, through: ThroughRows, incumbent_ns: int, late: Callable[[], bool] = never
    ) -> None:
        self.staged, self.program, self.through = staged, staged.program, through
        self.knapsacks = list(staged.rooms)
        self.incumbent, self.late = incumbent_ns, late
        self.most_work = 0
        total = sum(self.program.cost)
        self.simplex = Simplex(self.program, 100 * max(1, min(total, incumbent_ns)))
        self.certifier = Certifier(self.program)
        self.rows: Rows = rows_of(self.program)
        count = len(self.program.cost)
        self.pseudo = _PseudoCosts(np.zeros((2, count)), np.zeros((2, count), dtype=np.int64))
        self.solves = self.nodes = 0
        self.weight = self._weights()

    def _weights(self) -> Floats:
        """How much a variable decides: bytes of a storage at a stage, time of a re-run."""
        weight = np.ones(len(self.program.cost))
        terms = self.program.by_row()
        for q, room in enumerate(self.staged.rooms):
            largest = max((abs(c) for c, _ in terms[room]), default=1)
            for coefficient, variable in terms[room]:
                weight[variable] = (10.0 + 1000.0 * abs(coefficient) / largest) / (1 + 0.2 * q)
        return weight

    def solve(self, low: Bits, high: Bits, bound: int, depth: int = 0) -> _Node | None:
        """The node of a box; None when it is closed. Reduced costs tighten ``low`` and ``high`` in place."""
        for _ in range(3):
            self.simplex.set_bounds(low.astype(np.float64), high.astype(np.float64))
            answer = self.simplex.solve(self.most_work)
            self.solves += 1
            if not answer.solved:
                return _Node(bound, low, high, np.full(len(low), 0.5), depth)
            proof = self.certifier.certify(answer.dual, low, high)
            bound = max(bound, proof.bound_ns)
            if bound >= self.incumbent:
                return None
            gap = self.incumbent - proof.bound_ns + 1
            free = low < high
            zero, one = free & (proof.reduced >= gap), free & (proof.reduced < -gap)
            high[zero], low[one] = 0, 1
            changed = np.flatnonzero(zero | one)
            if not len(changed):
                break
            before = int((low < high).sum())
            if not propagate(self.rows, low, high, changed):
                return None
            moved = (answer.primal > high + _FRACTIONAL) | (answer.primal < low - _FRACTIONAL)
            if not moved.any() or before == int((low < high).sum()):
                break
        return _Node(bound, low, high, answer.primal, depth)

    def child(self, node: _Node, variable: int, value: int) -> _Node | None:
        """The node with one more variable fixed; None when it is closed."""
        low, high = node.low.copy(), node.high.copy()
        low[variable] = high[variable] = value
        if not propagate(self.rows, low, high, np.array([variable])):
            return None
        return self.solve(low, high, node.bound, node.depth + 1)

    def cut(self, node: _Node | None) -> _Node | None:
        """Rounds of cover cuts at the root."""
        stalled = 0
        for _ in range(_CUT_ROUNDS):
            if node is None or self._spent():
                return node
            found = self.through.separate(node.primal)
            fresh = len(found)
            terms = self.program.by_row()
            for room in self.knapsacks:
                found += separate(terms[room], self.program.lower[room], node.primal)
                found += rounded(terms[room], self.program.lower[room], node.primal)
            if not found:
                return node
            self.knapsacks += range(len(self.program.lower), len(self.program.lower) + fresh)
            for cover in found:
                row = [(-c, v) for c, v in cover.terms]
                self.program.at_least(-cover.limit, row, soft=True)
                self.simplex.add_row(-cover.limit, row, soft=True)
            self.certifier = Certifier(self.program)
            self.rows = rows_of(self.program)
            low, high, before = node.low, node.high, node.bound
            node = self.solve(low, high, before)
            stalled = stalled + 1 if node is not None and node.bound - before < 1e-3 * (self.incumbent - before) else 0
            if stalled > 4:
                return node
        return node

    def branch(self, node: _Node) -> list[_Node]:
        """Split a node, or tighten it when one side of a split is closed; the open nodes that replace it.

        A node that cannot be split, because its point is a solution, comes back alone and ``final``.
        """
        while True:
            fraction = np.minimum(node.primal, 1 - node.primal)
            split = np.flatnonzero((fraction > _FRACTIONAL) & (node.low < node.high))
            if not len(split) and self._breached(node):
                split = np.flatnonzero(node.low < node.high)
            if not len(split):
                node.final = True
                return [node]
            order = self._ranked(node, split)
            best: tuple[float, int, _Node | None, _Node | None] | None = None
            tightened = None
            stale = 0
            for rank, variable in enumerate(order):
                reliable = min(self.pseudo.count[0, variable], self.pseudo.count[1, variable]) >= _RELIABLE
                if best is not None and (reliable or rank >= _CANDIDATES or stale >= _LOOKAHEAD):
                    break
                down, up = self.child(node, variable, 0), self.child(node, variable, 1)
                self._learn(node, variable, down, up)
                if down is None and up is None:
                    return []
                if down is None or up is None:
                    tightened = up if down is None else down
                    break
                score = max(down.bound - node.bound, 0.1) * max(up.bound - node.bound, 0.1)
                if best is None or score > best[0]:
                    best, stale = (score, variable, down, up), 0
                else:
                    stale += 1
            if tightened is None:
                assert best is not None
                return [child for child in best[2:] if child is not None]
            node = tightened

    def _breached(self, node: _Node) -> bool:
        """Whether the rounded point breaks a row: the solver's point was not one of the hard program."""
        point = np.round(node.primal).astype(np.int64)
        return bool((self.certifier.transposed.T @ point < self.certifier.lower).any())

    def _ranked(self, node: _Node, variables: NDArray[np.int64]) -> list[int]:
        count, total = self.pseudo.count, self.pseudo.total
        scores = []
        known = [total[side].sum() / max(1, count[side].sum()) for side in (0, 1)]
        scale = self.weight[variables].max()
        for variable in variables.tolist():
            x = float(node.primal[variable])
            tilt = self.weight[variable] / scale
            down = self.pseudo.gain(variable, 0, x, known[0] * tilt)
            up = self.pseudo.gain(variable, 1, 1 - x, known[1] * tilt)
            scores.append((-max(down, 1e-3) * max(up, 1e-3), -tilt * min(x, 1 - x), variable))
        return [variable for _, _, variable in sorted(scores)]

    def _learn(self, node: _Node, variable: int, down: _Node | None, up: _Node | None) -> None:
        for side, child in enumerate((down, up)):
            change = node.primal[variable] if side == 0 else 1 - node.primal[variable]
            reached = self.incumbent if child is None else child.bound
            self.pseudo.total[side, variable] += (reached - node.bound) / max(change, 1e-3)
            self.pseudo.count[side, variable] += 1

    def _spent(self) -> bool:
        return self.late() or self.simplex.work >= self.most_work

    def run(self, solves: int, work: int) -> Bound:
        """Best bound first, until every node is closed or ``solves`` linear programs or ``work`` are done."""
        self.most_work = work
        count = len(self.program.cost)
        low, high = np.zeros(count, dtype=np.int8), np.ones(count, dtype=np.int8)
        root = self.solve(low, high, 0) if propagate(self.rows, low, high, _NOTHING) else None
        root = self.cut(root)
        first = self.incumbent if root is None else root.bound
        heap: list[tuple[int, int, int, _Node]] = [(root.bound, 0, 0, root)] if root is not None else []
        while heap and not heap[0][3].final and self.solves < solves and not self._spent():
            node = heapq.heappop(heap)[3]
            self.nodes += 1
            for number, child in enumerate(self.branch(node)):
                heapq.heappush(heap, (child.bound, -child.depth, 2 * self.nodes + number, child))
        lowest = sorted(heap, key=lambda entry: entry[:3])
        reached = min(self.incumbent, lowest[0][0]) if lowest else self.incumbent
        points = tuple(node.primal for _, _, _, node in lowest[:_POINTS])
        return Bound(reached, first, self.solves, self.nodes, reached >= self.incumbent, points)


def bound(
    relaxed: StageLP,
    budget_nbytes: int,
    incumbent_ns: int,
    stages: tuple[int, ...],
    solves: int = 1000,
    work: int = UNLIMITED,
    late: Callable[[], bool] = never,
    extra: tuple[int, ...] = (),
) -> tuple[Bound, StageProgram]:
    """A certified lower bound on every plan within the budget, no more than ``incumbent_ns``.

    ``solves`` and ``work`` (as Simplex counts it: some 6e8 a second on one core of a 2020s server) limit the search.
    """
    staged = relaxed.program(budget_nbytes, stages, extra)
    through = ThroughRows(relaxed, staged, budget_nbytes)
    return BranchAndBound(staged, through, incumbent_ns, late).run(solves, work), staged
