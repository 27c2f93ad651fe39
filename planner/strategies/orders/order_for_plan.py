"""A backward order that suits a plan: what the plan holds from step to step, in an order that holds less at once.

Which order is good depends on what is held, and what can be held on the order. With a plan's decisions fixed,
backwards are moved together with the recomputations before them by the search of sequencing.py. The plan stays legal
and takes the same time; the room that it gains is there for annealing to use.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...dependencies import Predecessors, backward_predecessors, is_forced
from ...problem import Problem
from ..evaluation.evaluator import Array, Evaluator
from .reordered_problem import Orders
from .sequencing import Tokens, better_order
from .tokens import gradients_of, held_tokens


class PlanOrders:
    """Searches for backward orders of plans of one problem, the default one."""

    def __init__(self, problem: Problem) -> None:
        assert problem.reorders is None, "orders are those of the default problem"
        self.problem = problem

    @cached_property
    def _predecessors(self) -> Predecessors:
        return backward_predecessors(self.problem.graph)

    @cached_property
    def forced(self) -> bool:
        """Whether there is but one backward order."""
        return is_forced(self.problem.backward_order, self._predecessors)

    def better(
        self,
        evaluator: Evaluator,
        orders: Orders,
        sequence: Array,
        *,
        moves: int,
        seed: int,
        guess: float | None = None,
    ) -> tuple[Orders, Array]:
        """Orders under which a plan holds less from step to step, and the plan under them.

        ``sequence`` is a plan of ``evaluator``'s problem, which is the default one under ``orders``. Recomputations
        between first runs stay where they are. The search tries ``moves`` exchanges. With a ``guess`` it supposes
        that this share of all that backwards read is held from the start: orders far from the present one.
        """
        start, groups = _groups(sequence, len(orders.forward))
        if guess is None:
            tokens = gradients_of(self.problem)
            before = self._hold(tokens, orders, groups)
            most = highest_by_step(evaluator, sequence, start)
            for step, held, alive in zip(orders.backward, most, tokens.alive(orders.backward), strict=True):
                tokens.add_inside(step, held - alive)
        else:
            before = self._hold(Tokens([[] for _ in orders.forward]), orders, groups)
            tokens = held_tokens(self.problem, guess)
        backward, _ = better_order(orders.backward, before, tokens, moves=moves, seed=seed)
        place = {op: position for position, op in enumerate(orders.backward)}
        moved = [sequence[:start], *(groups[place[op]] for op in backward)]
        return Orders(orders.forward, backward), np.concatenate(moved)

    def _hold(self, tokens: Tokens, orders: Orders, groups: list[Array]) -> Predecessors:
        """Add what the plan holds of values; returns what must precede each backward for the plan to stay legal."""
        graph, forward = self.problem.graph, orders.forward
        touched: list[list[int]] = [[] for _ in graph.storages]
        makers = [-1] * len(graph.storages)
        before = [set(earlier) for earlier in self._predecessors]

        def end(storage: int) -> None:
            """The life of the last copy is known."""
            if storage in self.problem.pinned:
                return
            maker, steps = makers[storage], touched[storage]
            tokens.add(int(self.problem.nbytes[storage]), steps, started=maker < 0)
            if maker >= 0:
                for step in steps:
                    before[step] |= {maker} - {step}

        for step, group in zip(orders.backward, groups, strict=True):
            for entry in group[:-1].tolist():
                op = graph.ops[forward[entry]]
                for storage in op.reads:
                    touched[storage].append(step)
                for storage in op.writes:
                    end(storage)
                    makers[storage], touched[storage] = step, [step]
            backward = graph.ops[step].backward
            assert backward is not None
            for storage in backward.reads:
                touched[storage].append(step)
        for storage in range(len(graph.storages)):
            end(storage)
        return tuple(tuple(sorted(earlier)) for earlier in before)


def _groups(sequence: Array, op_count: int) -> tuple[int, list[Array]]:
    """Where the backward begins, just after the last first run, and each backward with the recomputations before it."""
    start = int(np.unique(sequence, return_index=True)[1][-op_count:].max()) + 1
    ends = np.flatnonzero(sequence < 0) + 1
    return start, [sequence[begin:end] for begin, end in zip([start, *ends[:-1]], ends, strict=True)]


def highest_by_step(evaluator: Evaluator, sequence: Array, start: int) -> list[int]:
    """The most bytes alive at any moment of each backward and the recomputations before it, in backward order.

    ``start`` is where the backward begins in ``sequence``.
    """
    backward = sequence[start:] < 0
    most = np.zeros(len(evaluator.arrays.order), dtype=np.int64)
    np.maximum.at(most, np.cumsum(backward) - backward, evaluator.in_use(sequence)[start:])
    return [int(nbytes) for nbytes in most]
