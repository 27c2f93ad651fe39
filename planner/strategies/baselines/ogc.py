"""Checkpoints that minimise their own bytes plus those of the largest segment between them.

Feng and Huang, "Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs", CVPR 2021.
Chain, eq. (2)-(4): for a bound C on a segment's inner bytes, the cheapest set of kept nodes is a
shortest path in the graph that has an edge (i, j) where the bytes strictly between i and j are at
most C; the answer is the best sum of path and C over all C that occur. Graphs, section 3.3: a piece
between two nodes that is larger than C is divided into its branches, each solved with the same C,
and both of its ends are kept.

Deviations: costs are bytes of storages that a backward reads, not element counts of every output;
the independent segments of a tangle with no articulation storage inside are those that series and
parallel reductions find, and what lies between them is kept (the original searches all pairs of
vertices, in time that grows with the cube of their number or worse); not every C is tried: one is
skipped when a larger C already proves that it cannot win, and chains of more than _ALL_PAIRS nodes
offer evenly spread segments only, which the notes then say. Values are recomputed on demand, and
when no checkpoint is worth its bytes nothing is recomputed, since one segment saves nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf

import numpy as np

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ...training_graph import TrainingGraph
from ..evaluation.evaluator import Evaluator, Labels
from ..evaluation.labels import Label
from .articulation import carried, keep_only, separators
from .ogc_division_tree import Chain, Piece, division_tree

NAME = "ogc"
_ALL_PAIRS = 1500
_MAX_BOUNDS = 600
"""Bounds C tried at most; the best-first order makes the first ones the most promising."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Checkpoints, their bytes, and the bytes of the largest segment; the objective is the sum of both."""

    kept: frozenset[int]
    kept_nbytes: int
    segment_nbytes: int
    exhaustive: bool = True

    @property
    def objective_nbytes(self) -> int:
        """Kept bytes plus largest segment."""
        return self.kept_nbytes + self.segment_nbytes


def _prefix(chain: Chain) -> list[int]:
    """Bytes up to each node, the node itself included when it is not a checkpoint."""
    total, sums = 0, [0]
    for piece, node in zip(chain.pieces, (*chain.saved_nbytes, 0), strict=True):
        total += piece.nbytes + node
        sums.append(total)
    return sums


def _shortest_path(chain: Chain, bound_nbytes: int, kept: set[int] | None = None) -> float:
    """Bytes kept inside a chain by the cheapest choice with no segment above the bound; inf when there is none.

    A sliding-window minimum: the first node from which j is reachable only moves forward. With ``kept``
    the chosen storages are added to it.
    """
    sums, nodes = _prefix(chain), len(chain.pieces) + 1
    cost, came = [0.0], [0]
    window: deque[int] = deque()
    for node in range(1, nodes):
        while window and cost[window[-1]] >= cost[node - 1]:
            window.pop()
        window.append(node - 1)
        before = sums[node] - (chain.saved_nbytes[node - 1] if node < nodes - 1 else 0)
        while window and before - sums[window[0]] > bound_nbytes:
            window.popleft()
        best, origin = (cost[window[0]], window[0]) if window else (inf, node - 1)
        piece = chain.pieces[node - 1]
        if piece.nbytes > bound_nbytes and piece.branches:
            best = cost[node - 1] + _divided(piece, bound_nbytes)
            origin = node - 1
        cost.append(best + (chain.kept_nbytes[node - 1] if node < nodes - 1 else 0))
        came.append(origin)
    if kept is not None and cost[-1] < inf:
        node = nodes - 1
        while node > 0:
            piece = chain.pieces[node - 1]
            if piece.nbytes > bound_nbytes:
                kept.update(piece.kept)
                for branch in piece.branches:
                    _shortest_path(branch, bound_nbytes, kept)
            node = came[node]
            if node > 0:
                kept.add(chain.storages[node - 1])
    return cost[-1]


def _divided(piece: Piece, bound_nbytes: int) -> float:
    return piece.kept_nbytes + sum(_shortest_path(branch, bound_nbytes) for branch in piece.branches)


def _bounds(chain: Chain) -> tuple[set[int], bool]:
    """Every inner size of a segment anywhere in the tree, and whether none was left out."""
    sums = np.array(_prefix(chain), dtype=np.int64)
    ends = sums - np.array([0, *chain.saved_nbytes, 0], dtype=np.int64)
    complete = len(sums) <= _ALL_PAIRS
    if not complete:
        step = -(-len(sums) // _ALL_PAIRS)
        near = np.concatenate([ends[1:] - sums[:-1], ends[2:] - sums[:-2]])
        sums, ends = sums[::step], np.append(ends[::step], ends[-1])
    sizes = ends[None, :] - sums[:, None]
    found = set(np.unique(sizes[sizes >= 0]).tolist())
    if not complete:
        found.update(near.tolist())
    for piece in chain.pieces:
        for branch in piece.branches:
            inner, whole = _bounds(branch)
            found |= inner
            complete = complete and whole
    return found, complete


def search(graph: TrainingGraph) -> Choice:
    """The best choice over all bounds C, best-first over intervals of C.

    Kept bytes never grow with C, so an interval's objective is at least the kept bytes at its upper
    end plus its smallest C.
    """
    tree = division_tree(graph)
    found, complete = _bounds(tree)
    bounds = sorted(found)
    known: dict[int, float] = {}

    def kept_at(index: int) -> float:
        if index not in known:
            known[index] = _shortest_path(tree, bounds[index])
        return known[index]

    top = len(bounds) - 1
    best = min((kept_at(index) + bounds[index], index) for index in (0, top))
    intervals = [(kept_at(top) + bounds[1], 0, top)] if top > 1 else []
    while intervals:
        promise, low, high = heappop(intervals)
        if promise >= best[0]:
            break
        if len(known) >= _MAX_BOUNDS:
            complete = False
            break
        middle = (low + high) // 2
        best = min(best, (kept_at(middle) + bounds[middle], middle))
        for first, last in ((low, middle), (middle, high)):
            if last - first > 1:
                heappush(intervals, (kept_at(last) + bounds[first + 1], first, last))
    kept: set[int] = set()
    kept_nbytes = _shortest_path(tree, bounds[best[1]], kept)
    return Choice(frozenset(kept), int(kept_nbytes), bounds[best[1]], complete)


def _labels(evaluator: Evaluator, choice: Choice) -> Labels:
    graph = evaluator.problem.graph
    if not choice.kept:
        return evaluator.labels(Label.KEEP)
    after = (s.after for s in separators(graph) if s.storage in choice.kept)
    return keep_only(evaluator, choice.kept | carried(graph, after))


def labels(evaluator: Evaluator, budget_nbytes: int | None = None) -> Labels:
    """Labels of the one plan of this strategy; the budget plays no part."""
    return _labels(evaluator, search(evaluator.problem.graph))


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """Keep the checkpoints of the smallest kept bytes plus largest segment; UNKNOWN when above the budget."""
    evaluator = Evaluator(problem)
    choice = search(problem.graph)
    solution = evaluator.solution(_labels(evaluator, choice), budget_nbytes, NAME)
    notes = [
        f"{len(choice.kept)} checkpoints of {choice.kept_nbytes} bytes, largest segment {choice.segment_nbytes} bytes"
    ]
    if not choice.exhaustive:
        notes.append("not every segment size was tried")
    return replace(solution, notes=tuple(notes))
