"""The integer optimum of a stage program, or a certified bound below it: branch and bound over 0/1 variables.

Every plan is a 0/1 point of the program, so boxes of such points may be split and each bounded on its own (Land &
Doig, Econometrica 1960). A box is closed only when its bound from the duals, in integers, reaches the incumbent, or
when propagation in integers finds it empty; what the floating-point solver says about a box is never taken on trust.
Branching by pseudo-costs that strong branching starts (Achterberg, Koch & Martin, OR Letters 2005).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cover_cuts import rounded, separate
from .linear_program import Certifier, Floats, Simplex
from .propagation import Bits, Rows, propagate, rows_of
from .pseudo_costs import PseudoCosts, weights
from .stage_lp import StageLP
from .stage_program import StageProgram
from .through_rows import ThroughRows

_FRACTIONAL = 1e-6
_CANDIDATES = 8
_LOOKAHEAD = 4
_CUT_ROUNDS = 20
_POINTS = 8
UNLIMITED = 1 << 62
_OVERRUN = 300_000_000
"""What the last linear program may take beyond the work: cut short, it would lose the basis for those after it."""
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
    solves: int
    nodes: int
    closed: bool
    points: tuple[Floats, ...] = ()


@dataclass
class _Node:
    """A box and its bound; ``cut_short`` when the work ended before its linear program was solved."""

    bound: int
    low: Bits
    high: Bits
    primal: Floats
    depth: int = 0
    final: bool = False
    cut_short: bool = False


class BranchAndBound:
    """One search: ``run`` splits boxes until all are closed or the work is spent, and may be called again for more.

    The two sides of a split are solved at once, each by a simplex of its own.
    """

    def __init__(
        self, staged: StageProgram, through: ThroughRows, incumbent_ns: int, late: Callable[[], bool] = never
    ) -> None:
        self.staged, self.program, self.through = staged, staged.program, through
        self.incumbent, self.late = incumbent_ns, late
        self.most_work = 0
        total = sum(self.program.cost)
        self.penalty = 100 * max(1, min(total, incumbent_ns))
        self.sides = [Simplex(self.program, self.penalty)]  # the other one when there is something to split
        self.limits = [0, 0]
        self.solved = [0, 0]
        self.certifier = Certifier(self.program)
        self.rows: Rows = rows_of(self.program)
        terms = self.program.by_row()
        self.knapsacks = [(terms[room], self.program.lower[room]) for room in staged.rooms]
        self.pseudo = PseudoCosts(weights(staged, terms))
        self.nodes = self.pushed = 0
        self.heap: list[tuple[int, int, int, _Node]] | None = None  # None before the root

    @property
    def work(self) -> int:
        """What both sides have done, as Simplex counts it."""
        return sum(simplex.work for simplex in self.sides)

    @property
    def solves(self) -> int:
        """Linear programs solved so far."""
        return sum(self.solved)

    def solve(self, low: Bits, high: Bits, bound: int, depth: int = 0) -> _Node | None:
        """The node of a box; None when it is closed. Reduced costs tighten ``low`` and ``high`` in place."""
        self._share_out()
        return self._solve(0, low, high, bound, depth)

    def _share_out(self) -> None:
        """Let each side do what is left of the work: what one does meanwhile must not decide where the other ends."""
        left = self.most_work - self.work
        self.limits = [simplex.work + left for simplex in self.sides]

    def _solve(self, side: int, low: Bits, high: Bits, bound: int, depth: int) -> _Node | None:
        simplex, limit = self.sides[side], self.limits[side]
        for _ in range(3):
            if self.late() or simplex.work >= limit:
                return _Node(bound, low, high, np.full(len(low), 0.5), depth, cut_short=True)
            simplex.set_bounds(low.astype(np.float64), high.astype(np.float64))
            answer = simplex.solve(limit + _OVERRUN)
            self.solved[side] += 1
            if not answer.solved:
                spent = self.late() or simplex.work >= limit
                return _Node(bound, low, high, np.full(len(low), 0.5), depth, cut_short=spent)
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

    def children(self, node: _Node, variable: int, pool: Executor) -> tuple[_Node | None, _Node | None]:
        """The nodes with one more variable fixed, to 0 and to 1; None for one that is closed."""
        if len(self.sides) < 2:
            self.sides.append(Simplex(self.program, self.penalty))
        self._share_out()
        up = pool.submit(self._child, node, variable, 1)
        return self._child(node, variable, 0), up.result()

    def _child(self, node: _Node, variable: int, value: int) -> _Node | None:
        low, high = node.low.copy(), node.high.copy()
        low[variable] = high[variable] = value
        if not propagate(self.rows, low, high, np.array([variable])):
            return None
        return self._solve(value, low, high, node.bound, node.depth + 1)

    def cut(self, node: _Node | None) -> _Node | None:
        """Up to _CUT_ROUNDS rounds of cover cuts at the root."""
        stalled = 0
        for _ in range(_CUT_ROUNDS):
            if node is None or self._spent():
                return node
            found = self.through.separate(node.primal)
            fresh = [([(-c, v) for c, v in row.terms], -row.limit) for row in found]
            for terms, lower in self.knapsacks:
                found += separate(terms, lower, node.primal)
                found += rounded(terms, lower, node.primal)
            if not found:
                return node
            self.knapsacks += fresh
            for cover in found:
                row = [(-c, v) for c, v in cover.terms]
                self.program.at_least(-cover.limit, row, soft=True)
                for simplex in self.sides:
                    simplex.add_row(-cover.limit, row, soft=True)
            self.certifier = Certifier(self.program)
            self.rows = rows_of(self.program)
            low, high, before = node.low, node.high, node.bound
            node = self.solve(low, high, before)
            stalled = stalled + 1 if node is not None and node.bound - before < 1e-3 * (self.incumbent - before) else 0
            if stalled > 4:
                return node
        return node

    def branch(self, node: _Node, pool: Executor) -> list[_Node]:
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
            order = self.pseudo.ranked(node.primal, split)
            best: tuple[float, int, _Node | None, _Node | None] | None = None
            tightened = None
            stale = 0
            for rank, variable in enumerate(order):
                reliable = self.pseudo.reliable(variable)
                if best is not None and (reliable or rank >= _CANDIDATES or stale >= _LOOKAHEAD):
                    break
                down, up = self.children(node, variable, pool)
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

    def _learn(self, node: _Node, variable: int, down: _Node | None, up: _Node | None) -> None:
        for side, child in enumerate((down, up)):
            if child is not None and child.cut_short:
                continue
            change = node.primal[variable] if side == 0 else 1 - node.primal[variable]
            reached = self.incumbent if child is None else child.bound
            self.pseudo.learn(variable, side, float(change), reached - node.bound)

    def _spent(self) -> bool:
        return self.late() or self.work >= self.most_work

    def improved(self, incumbent_ns: int) -> None:
        """A plan of this cost is known now: boxes that cannot hold a better one are closed."""
        self.incumbent = min(self.incumbent, incumbent_ns)

    def run(self, solves: int, work: int) -> Bound:
        """Best bound first, until every node is closed or ``solves`` linear programs or ``work`` are done in all."""
        self.most_work = work
        if self.heap is None:
            self.heap = []
            count = len(self.program.cost)
            low, high = np.zeros(count, dtype=np.int8), np.ones(count, dtype=np.int8)
            root = self.solve(low, high, 0) if propagate(self.rows, low, high, _NOTHING) else None
            root = self.cut(root)
            self._push([root])
        with ThreadPoolExecutor(1) as pool:
            while self.heap and not self.heap[0][3].final and self.heap[0][0] < self.incumbent:
                if self.solves >= solves or self._spent():
                    break
                node = heapq.heappop(self.heap)[3]
                if node.cut_short:
                    self._push([self.solve(node.low, node.high, node.bound, node.depth)])
                    continue
                self.nodes += 1
                self._push(self.branch(node, pool))
        lowest = sorted(self.heap, key=lambda entry: entry[:3])
        reached = min(self.incumbent, lowest[0][0]) if lowest else self.incumbent
        points = tuple(node.primal for bound_ns, _, _, node in lowest[:_POINTS] if bound_ns < self.incumbent)
        return Bound(reached, self.solves, self.nodes, reached >= self.incumbent, points)

    def _push(self, nodes: Sequence[_Node | None]) -> None:
        assert self.heap is not None
        for node in nodes:
            if node is not None:
                self.pushed += 1
                heapq.heappush(self.heap, (node.bound, -node.depth, self.pushed, node))


def begin(
    relaxed: StageLP,
    budget_nbytes: int,
    incumbent_ns: int,
    stages: tuple[int, ...],
    late: Callable[[], bool] = never,
) -> BranchAndBound:
    """A search for a certified lower bound on every plan within the budget, no more than ``incumbent_ns``."""
    staged = relaxed.program(budget_nbytes, stages)
    return BranchAndBound(staged, ThroughRows(relaxed, staged, budget_nbytes), incumbent_ns, late)


def bound(
    relaxed: StageLP,
    budget_nbytes: int,
    incumbent_ns: int,
    stages: tuple[int, ...],
    solves: int = 1000,
    work: int = UNLIMITED,
    late: Callable[[], bool] = never,
) -> tuple[Bound, StageProgram]:
    """A certified lower bound on every plan within the budget, no more than ``incumbent_ns``.

    ``solves`` and ``work`` (as Simplex counts it: some 6e8 a second on one core of a 2020s server) limit the search.
    """
    search = begin(relaxed, budget_nbytes, incumbent_ns, stages, late)
    return search.run(solves, work), search.staged
