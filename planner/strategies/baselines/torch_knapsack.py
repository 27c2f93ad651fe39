"""A 0/1 knapsack over the results of expensive ops, then a minimum cut: torch.compile's activation memory budget.

What PyTorch 2.13 does (torch/_functorch/partitioners.py and _activation_checkpointing/knapsack.py,
read for their rules; no code taken): an op is *banned* from recomputation when it is compute intensive or random, or
when it writes less than a quarter of the bytes it reads ("reduction"). Banned ops are the items of a knapsack: the
value is an op's own running time, the weight its bytes, the capacity a share of what banned results take, in
10,000 units. What the knapsack leaves out loses its ban; then a minimum cut between the banned ops and the backward
chooses the tensors to save, in the forward graph with a tensor's bytes as its capacity. The cut nearest the
backward is taken; everything else the backward needs is recomputed.

What differs here:
- The capacity there is set by the user and knows nothing of the peak. Here the budget bounds the simulated peak:
  a grid of capacities is tried, the largest that fits is refined by bisection, and the cheapest plan within the
  budget is kept.
- Without fusion a recomputed pointwise chain is not nearly free, so a second set of bans, every op, is tried as
  well: a full knapsack then saves all that the backward reads. The better of the two answers.
- The rules about fusion, the distance to the backward and collectives have no counterpart, nor have the cheaper
  stages tried before the knapsack there; weights are rounded up, not to nearest; the time is the problem's.
- Of equal items the later op's is kept; the original keeps the earlier, and what is dropped is then held again when
  the first backward starts, so that a chain of equal layers gains nothing.
- An op is one item with everything it writes, hidden buffers included.

As in the original an item's value ignores which other tensors are kept: that is the known weakness of the method.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..evaluation.evaluator import Evaluator, Labels
from ..relaxation.max_flow import Network, maximum_flow
from .articulation import keep_only, saved
from .keep_expensive import is_expensive

NAME = "knapsack"
_UNITS = 10_000
_GRID = 32
"""Capacities tried first: 0, 1/32, ..., 32/32 of what all items weigh."""
_BISECTIONS = 8
_REDUCTION = 4


class Knapsack:
    """Every answer of a 0/1 knapsack up to the weight of all items, by dynamic programming over capacities.

    Weights are whole units of 1/10,000 of their sum, rounded up; exact when the sum is no more than that.
    """

    def __init__(self, nbytes: Sequence[int], value: Sequence[int]) -> None:
        self.total = total = sum(nbytes)
        self.unit = max(1, -(-total // _UNITS))
        self.weight = [-(-size // self.unit) for size in nbytes]
        self.taken: NDArray[np.bool_] = np.zeros((len(nbytes), total // self.unit + 1), dtype=np.bool_)
        best = np.zeros(self.taken.shape[1], dtype=np.int64)
        for item, (weight, worth) in enumerate(zip(self.weight, value, strict=True)):
            if weight >= len(best):
                continue
            reached = best[: len(best) - weight] + worth
            self.taken[item, weight:] = reached > best[weight:]
            np.maximum(best[weight:], reached, out=best[weight:])

    def choose(self, capacity_nbytes: int) -> frozenset[int]:
        """The items of most value whose weights fit into the capacity; all of them when they do."""
        if capacity_nbytes >= self.total:
            return frozenset(range(len(self.weight)))
        room = min(capacity_nbytes // self.unit, self.taken.shape[1] - 1)
        chosen = set()
        for item in range(len(self.weight) - 1, -1, -1):
            if self.taken[item, room]:
                chosen.add(item)
                room -= self.weight[item]
        return frozenset(chosen)


class SavedTensors:
    """Minimum cuts of one problem: the cheapest storages to save when some ops must not run again."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.ops, self.storages = len(graph.ops), len(graph.storages)
        held = problem.pinned | problem.keep
        sizes = [0 if s in held else storage.nbytes for s, storage in enumerate(graph.storages)]
        self._unbounded = 1 + sum(sizes)
        edges = []  # op -> in -> out -> reader or sink
        for index, op in enumerate(graph.ops):
            edges += [(index, self.ops + s, self._unbounded) for s in op.writes]
            edges += [(self.ops + self.storages + s, index, self._unbounded) for s in op.reads]
        for s, size in enumerate(sizes):
            capacity = self._unbounded if s in problem.recompute - held else size
            edges.append((self.ops + s, self.ops + self.storages + s, capacity))
        source = self.ops + 2 * self.storages
        edges += [(self.ops + self.storages + s, source + 1, self._unbounded) for s in saved(graph)]
        edges += [(source, index, 0) for index in range(self.ops)]  # the last ones, open where an op is banned
        tails, heads, self._capacity = np.array(edges, dtype=np.int64).reshape(-1, 3).T.copy()
        self._network = Network(source + 2, source, source + 1, tails, heads)

    def cut(self, banned: Iterable[int]) -> frozenset[int]:
        """The storages to save so that the backward needs no recomputation of a banned op; of several cuts the last."""
        capacity = self._capacity.copy()
        capacity[len(capacity) - self.ops + np.array(sorted(banned), dtype=np.int64)] = self._unbounded
        before = maximum_flow(self._network, capacity).largest
        into, out = before[self.ops :][: self.storages], before[self.ops + self.storages :][: self.storages]
        return frozenset(np.flatnonzero(into & ~out).tolist())


def banned_ops(problem: Problem) -> frozenset[int]:
    """Ops that PyTorch does not recompute by itself: compute intensive, random, or writing far less than they read."""
    graph = problem.graph
    size = [storage.nbytes for storage in graph.storages]
    return frozenset(
        index
        for index, op in enumerate(graph.ops)
        if is_expensive(op.op_type)
        or op.random_state_nbytes
        or sum(size[s] for s in op.writes) * _REDUCTION < sum(size[s] for s in op.reads)
    )


def labels(evaluator: Evaluator, budget_nbytes: int | None = None) -> Labels:
    """The labels of the cheapest plan within the budget, else of the smallest peak that the method reaches."""
    problem = evaluator.problem
    tried = _Tried(evaluator, budget_nbytes)
    for banned in (banned_ops(problem), frozenset(range(problem.op_count))):
        items = sorted(_items(problem, banned), reverse=True)  # of equal items the first is taken
        size = [sum(int(problem.nbytes[s]) for s in problem.graph.ops[op].writes) for op in items]
        knapsack = Knapsack(size, [int(problem.forward_ns[op]) for op in items])
        fixed = frozenset(op for op in banned if problem.recompute.isdisjoint(problem.graph.ops[op].writes))
        fixed -= set(items)
        fitting = -1  # the last step of the grid within the budget
        for step in range(_GRID + 1):
            if tried.offer(fixed | {items[at] for at in knapsack.choose(sum(size) * step // _GRID)}):
                fitting = step
        low, high = sum(size) * fitting // _GRID, sum(size) * (fitting + 1) // _GRID
        for _ in range(_BISECTIONS if 0 <= fitting < _GRID else 0):
            middle = (low + high) // 2
            if tried.offer(fixed | {items[at] for at in knapsack.choose(middle)}):
                low = middle
            else:
                high = middle
    assert tried.best is not None
    return tried.best


class _Tried:
    """The best labels of a search: the least time within the budget, else the smallest peak."""

    def __init__(self, evaluator: Evaluator, budget_nbytes: int | None) -> None:
        self.evaluator, self.budget_nbytes = evaluator, budget_nbytes
        self.tensors = SavedTensors(evaluator.problem)
        self.best: Labels | None = None
        self.key: tuple[bool, int, int] | None = None
        self.fitted: dict[frozenset[int], bool] = {}

    def offer(self, banned: frozenset[int]) -> bool:
        """Measure the plan of the cut that spares the ``banned`` ops; whether it is within the budget."""
        if banned in self.fitted:
            return self.fitted[banned]
        found = keep_only(self.evaluator, self.tensors.cut(banned))
        peak, recompute_ns, _, _ = self.evaluator.evaluate(found)
        fits = self.fitted[banned] = self.budget_nbytes is not None and peak <= self.budget_nbytes
        key = (False, recompute_ns, peak) if fits else (True, peak, recompute_ns)
        if self.key is None or key < self.key:
            self.key, self.best = key, found
        return fits


def _items(problem: Problem, banned: frozenset[int]) -> set[int]:
    """Banned ops whose results a backward needs, directly or through others, and that may run again at all."""
    graph = problem.graph
    needed, useful = set(saved(graph)), set()
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if not needed.isdisjoint(op.writes):
            needed.update(op.reads)
            if index in banned and not op.once and problem.recompute.isdisjoint(op.writes):
                useful.add(index)
    return useful


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """The cheapest of the method's plans within the budget, or UNKNOWN with the smallest peak it reached."""
    evaluator = Evaluator(problem)
    return evaluator.solution(labels(evaluator, budget_nbytes), budget_nbytes, NAME)
