"""What a strategy sees: integer arrays of one training step under one memory scope.

A problem fixes the backward order, so the gradient bytes alive at each backward step are constants. `gradient_memory`
derives them as lifetime intervals; simulate.py counts references instead and shares no code with this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .dependencies import backward_predecessors, is_forced, is_legal
from .peak_bounds.gradient_lifetimes import GradientLives
from .peak_bounds.order_floor import OrderFloor, floor_of_orders, low_order
from .peak_bounds.step_floor import Floor, StepNeeds, floor_of
from .training_graph import OpCost, TrainingGraph

Ints = NDArray[np.int64]


def _never() -> bool:
    return False


class Scope(Enum):
    """Which bytes a budget bounds: everything, or everything but stationary memory and parameter gradients."""

    TOTAL = "total"
    ACTIVATIONS = "activations"


@dataclass(frozen=True)
class Problem:
    """One training step to be planned. Storages and ops are indexed as in the TrainingGraph.

    Attributes:
        base_nbytes: Stationary bytes of the scope; they are part of all other sizes.
        during_nbytes: Gradients, workspace and stationary bytes during the k-th backward (shape [m]).
        between_nbytes: The same between the (k-1)-th and the k-th backward; index 0 is before the first (shape [m]).
        keep: Storages that must be kept: those that the user wants, and those of ops that run once.
        recompute: Storages that the user wants recomputed.
        reorders: The same step in default orders, if the ops of ``graph`` are permuted.
        pinned: Storages that the caller holds from their first forward to the end.
        late: Asked again and again; ends the search for a higher floor.
    """

    graph: TrainingGraph
    costs: tuple[OpCost, ...]
    scope: Scope
    base_nbytes: int
    backward_order: tuple[int, ...]
    during_nbytes: Ints
    between_nbytes: Ints
    keep: frozenset[int] = frozenset()
    recompute: frozenset[int] = frozenset()
    reorders: Problem | None = None
    late: Callable[[], bool] = field(default=_never, compare=False, repr=False)

    @cached_property
    def op_count(self) -> int:
        """Number of ops."""
        return len(self.graph.ops)

    @cached_property
    def nbytes(self) -> Ints:
        """Size of each storage."""
        return np.array([storage.nbytes for storage in self.graph.storages], dtype=np.int64)

    @cached_property
    def producer(self) -> Ints:
        """Op that writes each storage."""
        return np.array(self.graph.producer, dtype=np.int64)

    @cached_property
    def forward_ns(self) -> Ints:
        """Forward time of each op."""
        return np.array([cost.forward_ns for cost in self.costs], dtype=np.int64)

    @cached_property
    def pinned(self) -> frozenset[int]:
        """Storages the caller holds."""
        return frozenset(self.graph.outputs)

    @cached_property
    def store_all_ns(self) -> int:
        """Forward + backward time of a step that recomputes nothing."""
        backward = sum(self.costs[op].backward_ns for op in self.backward_order)
        return int(self.forward_ns.sum()) + backward

    @cached_property
    def pinned_nbytes(self) -> int:
        """Bytes of the pinned storages; all alive when the backward starts."""
        return sum(self.graph.storages[s].nbytes for s in self.pinned)

    @property
    def floor(self) -> Floor:
        """A proven lower bound on the peak of every plan, in any legal orders (see dependencies.py)."""
        return self._least_floor[0] if self.reorders is None else self.reorders.floor

    def low_order(self, late: Callable[[], bool] = lambda: False) -> tuple[int, ...]:
        """A backward order whose floor is the lowest of all, or the lowest that a short search finds.

        It is this problem's own order if no lower one is found, and on graphs that are too large for such a search.
        ``late`` is asked several times a second, and ends the search.
        """
        known = self.backward_order if self.reorders is not None else self._least_floor[1]
        if known is not None or self.large:
            return known or self.backward_order
        between = self.floor.nbytes, self.floor_of_order.nbytes
        return low_order(self._orders, between, late) or self.backward_order

    @cached_property
    def forced_floor(self) -> Floor:
        """The floor that follows from the dependences alone; no higher than `floor`."""
        if self.reorders is not None:
            return self.reorders.forced_floor
        ahead = [self._lives.after[index] | 1 << index for index in range(self.op_count)]
        return self._floor([self.base_nbytes + nbytes for nbytes in self._least_gradients], ahead)

    @cached_property
    def _least_floor(self) -> tuple[Floor, tuple[int, ...] | None]:
        """The floor of all backward orders, and an order that has it; the last few results are cached."""
        if self.backward_order != self.graph.backward_order:
            return self._find_least_floor()
        step = self.graph, self.costs, self.scope
        found = _FLOORS.pop(step, None) or self._find_least_floor()
        if found[1] is None and self.late():
            return found
        _FLOORS[step] = found
        while len(_FLOORS) > _FLOORS_KNOWN:
            del _FLOORS[next(iter(_FLOORS))]
        return found

    def _find_least_floor(self) -> tuple[Floor, tuple[int, ...] | None]:
        order = self.graph.backward_order
        if is_forced(order, backward_predecessors(self.graph)):
            return self.floor_of_order, order
        floor = self.forced_floor
        if floor.nbytes >= self.floor_of_order.nbytes:
            return floor, self.backward_order
        found = floor_of_orders(self._orders, floor, self.late)
        assert found[0].nbytes <= self.floor_of_order.nbytes, "a floor of all orders is above that of one"
        return found

    @cached_property
    def _lives(self) -> GradientLives:
        return GradientLives(self.graph, parameters=self.scope is Scope.TOTAL)

    @cached_property
    def _orders(self) -> OrderFloor:
        return OrderFloor(self._lives, self.base_nbytes, self._workspace, self._least_gradients)

    @cached_property
    def _workspace(self) -> list[int]:
        return [backward_workspace_nbytes(cost, self.scope) for cost in self.costs]

    @cached_property
    def _least_gradients(self) -> list[int]:
        """Gradient bytes and workspace that each backward needs at least, under any order."""
        least = [0] * self.op_count
        for index in self.graph.backward_order:
            least[index] = self._lives.peak_nbytes(index, self._workspace[index])
        return least

    @cached_property
    def floor_of_order(self) -> Floor:
        """A proven lower bound on the peak of every plan with this problem's backward order."""
        backward, ahead, later = [0] * self.op_count, [0] * self.op_count, 0
        for index, nbytes in zip(reversed(self.backward_order), reversed(self.during_nbytes.tolist()), strict=True):
            later |= 1 << index
            backward[index], ahead[index] = nbytes, later
        return self._floor(backward, ahead)

    def _floor(self, backward: list[int], ahead: list[int]) -> Floor:
        start = self.base_nbytes + sum(self.graph.gradients[seed].nbytes for seed in self.graph.seeds)
        forward = [self.base_nbytes + cost.forward_workspace_nbytes for cost in self.costs]
        start = start if self.backward_order else self.base_nbytes
        return floor_of(self.graph, StepNeeds(forward, backward, start, ahead))

    @property
    def large(self) -> bool:
        """Whether work and memory quadratic in the number of ops are too much, so that a search does without."""
        return self.op_count > _LARGE_OPS

    @property
    def floor_nbytes(self) -> int:
        """Bytes of the floor."""
        return self.floor.nbytes


_FLOORS: dict[tuple[TrainingGraph, tuple[OpCost, ...], Scope], tuple[Floor, tuple[int, ...] | None]] = {}
_FLOORS_KNOWN = 4
"""A plan is often made and then checked or bound in one process: both need the floors of the same step."""
_LARGE_OPS = 2_000


def gradient_memory(
    graph: TrainingGraph, costs: tuple[OpCost, ...], order: tuple[int, ...], scope: Scope
) -> tuple[Ints, Ints]:
    """Gradient and workspace bytes at each backward step of ``order``: (during[m], between[m]).

    Walks the backward once and follows every allocation of a gradient to the step that releases its last alias. For a
    moment, the operands of a sum and its result are alive, whether the sum is implicit or spelled out. Under
    Scope.ACTIVATIONS the final gradient of a parameter is not counted. The gradient of a parameter that a backward ends
    is released after the last backward that touches it.
    """
    remaining = [0] * len(graph.gradients)
    last_use: dict[int, tuple[int, int]] = {}  # gradient -> position in the order, 0 for takes or 1 + number of the sum
    for position, index in enumerate(order):
        backward = graph.ops[index].backward
        assert backward is not None
        for edge in backward.gives:
            remaining[edge.gradient] += 1
        last_use.update((gradient, (position, 0)) for gradient in backward.takes)
        for number, summed in enumerate(backward.sums, start=1):
            last_use.update((gradient, (position, number)) for gradient in summed.operands)
    ending = _ending(graph, order)
    lasting = {gradient for gradient, entry in enumerate(graph.gradients) if entry.parameter}
    sizes: list[int] = []  # one entry per gradient allocation
    users: list[int] = []
    alive = 0
    allocation: dict[int, int] = {}  # gradient -> its current allocation

    def allocate(gradient: int, final: bool) -> int:
        nonlocal alive
        counted = not (final and graph.gradients[gradient].parameter and scope is Scope.ACTIVATIONS)
        sizes.append(graph.gradients[gradient].nbytes if counted else 0)
        users.append(1)
        alive += sizes[-1]
        return len(sizes) - 1

    def release(which: int) -> None:
        nonlocal alive
        users[which] -= 1
        if users[which] == 0:
            alive -= sizes[which]

    def end(gradients: tuple[int, ...], now: tuple[int, int]) -> None:
        for gradient in gradients:
            if gradient in allocation and gradient not in lasting and last_use[gradient] == now:
                release(allocation.pop(gradient))

    for gradient in graph.seeds:
        allocation[gradient] = allocate(gradient, final=False)
    during, between = [], []
    for position, index in enumerate(order):
        backward = graph.ops[index].backward
        assert backward is not None
        between.append(alive)
        given: list[tuple[int, int]] = []
        pending: Counter[int] = Counter()  # contributions of this backward to each gradient
        for edge in backward.gives:
            remaining[edge.gradient] -= 1
            if edge.alias_of is not None and edge.alias_of in allocation:
                users[allocation[edge.alias_of]] += 1
                given.append((edge.gradient, allocation[edge.alias_of]))
            else:
                final = remaining[edge.gradient] == 0 and edge.gradient not in allocation
                given.append((edge.gradient, allocate(edge.gradient, final and not pending[edge.gradient])))
            pending[edge.gradient] += 1
        peak = alive + backward_workspace_nbytes(costs[index], scope)
        end(backward.takes, (position, 0))
        for gradient, new in given:
            pending[gradient] -= 1
            if gradient not in allocation:
                allocation[gradient] = new
                continue
            result = allocate(gradient, final=remaining[gradient] == 0 and not pending[gradient])
            peak = max(peak, alive)
            release(new)
            release(allocation[gradient])
            allocation[gradient] = result
        for number, summed in enumerate(backward.sums, start=1):
            allocation[summed.result] = allocate(summed.result, final=True)
            peak = max(peak, alive)
            end(summed.operands, (position, number))
        during.append(peak)
        for gradient in ending.get(position, ()):
            if gradient in allocation:
                release(allocation.pop(gradient))
    return np.array(during, dtype=np.int64), np.array(between, dtype=np.int64)


def _ending(graph: TrainingGraph, order: tuple[int, ...]) -> dict[int, list[int]]:
    """Position in the order -> the gradients of parameters that are released after the backward there."""
    last: dict[int, int] = {}
    ended: dict[int, None] = {}
    for position, index in enumerate(order):
        backward = graph.ops[index].backward
        assert backward is not None
        ended |= dict.fromkeys(backward.ends)
        last |= dict.fromkeys((edge.gradient for edge in backward.gives), position)
        last |= dict.fromkeys((*backward.takes, *backward.ends), position)
        for total in backward.sums:
            last |= dict.fromkeys((total.result, *total.operands), position)
    found: dict[int, list[int]] = {}
    for gradient in ended:
        found.setdefault(last[gradient], []).append(gradient)
    return found


def backward_workspace_nbytes(cost: OpCost, scope: Scope) -> int:
    """The workspace of the backward of an op, as a budget of ``scope`` counts it."""
    if scope is Scope.TOTAL or cost.backward_activation_workspace_nbytes is None:
        return cost.backward_workspace_nbytes
    return cost.backward_activation_workspace_nbytes


def build_problem(
    graph: TrainingGraph,
    costs: tuple[OpCost, ...],
    scope: Scope,
    *,
    keep: frozenset[int] = frozenset(),
    recompute: frozenset[int] = frozenset(),
    backward_order: tuple[int, ...] | None = None,
    late: Callable[[], bool] = _never,
) -> Problem:
    """The problem of planning ``graph`` under one memory scope and a backward order, by default the default one.

    The outputs of ops that run only once are always kept. ``late`` ends the search for a higher floor. Raises
    ValueError for an invalid graph and for a backward order that is not legal.
    """
    graph.validate()
    keep |= frozenset(storage for op in graph.ops if op.once for storage in op.writes)
    base = graph.stationary.total_nbytes if scope is Scope.TOTAL else 0
    order = graph.backward_order if backward_order is None else backward_order
    if backward_order is not None and not is_legal(order, backward_predecessors(graph), graph.backward_order):
        raise ValueError("the backward order computes other gradients, or none, than the default one")
    during, between = gradient_memory(graph, costs, order, scope)
    return Problem(graph, costs, scope, base, order, during + base, between + base, keep, recompute, late=late)
