"""A lower bound on the recomputation time that no choice of orders can escape.

The relaxation of stage_relaxation.py at the first backward alone knows no order beyond which backward comes first:
what is alive then must fit beside the gradients of that backward, and what is not and is read later costs its
recomputation. So its optimum bounds every legal plan where every backward order begins with the same op, and
the least of the optima does where it may begin with one of a few. Where there are more, the first backward is
stood for by one that reads what all of them read and holds the least gradients that any of them holds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...dependencies import backward_predecessors
from ...limits import NO_LIMITS, Limits
from ...problem import Problem, gradient_memory
from ...training_graph import BackwardOp, OpCost, TrainingOp
from .stage_relaxation import lower_bound

ANY_ORDER = "any forward order, any backward order, any number of recomputations"
"""The class of plans that `order_free_bound` covers: every legal plan."""

_MAX_FIRST = 3


def order_free_bound(problem: Problem, budget_nbytes: int, limits: Limits = NO_LIMITS) -> int:
    """A certified lower bound on the recomputation time (ns) of every legal plan within the budget.

    Outside ``limits`` it is that of the duals found so far, mostly 0.

    ``problem`` must number its ops in default forward order; its backward order does not matter.
    """
    assert problem.reorders is None, "the default order says which orders are legal"
    firsts = first_backwards(problem)
    if not firsts or limits.out_of_time():
        return 0
    if len(firsts) > _MAX_FIRST:
        begun = _begun_by_any(problem, firsts, limits)
        return 0 if begun is None else lower_bound(begun, budget_nbytes, limits=limits)
    return min(lower_bound(_begun_by(problem, first), budget_nbytes, limits=limits) for first in firsts)


def first_backwards(problem: Problem) -> list[int]:
    """The ops whose backward may come first, in default order."""
    predecessors = backward_predecessors(problem.graph)
    return [index for index in problem.graph.backward_order if not predecessors[index]]


def _begun_by(problem: Problem, first: int) -> Problem:
    """The problem under the default backward order with one backward moved to its beginning."""
    order = (first, *(index for index in problem.graph.backward_order if index != first))
    during, between = gradient_memory(problem.graph, problem.costs, order, problem.scope)
    base = problem.base_nbytes
    return replace(problem, backward_order=order, during_nbytes=during + base, between_nbytes=between + base)


def _begun_by_any(problem: Problem, firsts: list[int], limits: Limits) -> Problem | None:
    """The problem with one more backward, first of all, that asks for no more than any of ``firsts`` does.

    None outside ``limits``.
    """
    least, reads = 1 << 62, []
    for first in firsts:
        backward = problem.graph.ops[first].backward
        assert backward is not None
        reads.append(set(backward.reads))
        least = min(least, int(_begun_by(problem, first).during_nbytes[0]))
        if limits.out_of_time():
            return None
    op = TrainingOp("the first backward", "", (), (), BackwardOp(tuple(sorted(set.intersection(*reads)))))
    return replace(
        problem,
        graph=replace(problem.graph, ops=(*problem.graph.ops, op)),
        costs=(*problem.costs, OpCost(0)),
        backward_order=(problem.op_count, *problem.graph.backward_order),
        during_nbytes=np.concatenate([[least], problem.during_nbytes]),
        between_nbytes=np.concatenate([problem.between_nbytes[:1], problem.between_nbytes]),
    )
