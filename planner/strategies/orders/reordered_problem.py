"""One step in other orders: its problem with ops permuted, and plans of that problem as plans of the step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...dependencies import backward_predecessors, forward_predecessors, is_legal
from ...problem import Problem, gradient_memory
from ...solution import Decisions


@dataclass(frozen=True, slots=True)
class Orders:
    """A forward and a backward order: ops of the default problem, in the order in which they run."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def default_orders(problem: Problem) -> Orders:
    """The orders that a problem comes with."""
    return Orders(tuple(range(problem.op_count)), problem.backward_order)


def ordered(problem: Problem, orders: Orders) -> Problem:
    """The same step with its ops numbered in ``orders.forward`` and its backwards in ``orders.backward``.

    Every strategy plans it as it is; `restored` brings its plans back. Storages and gradients keep their
    numbers, and the floor stays that of every legal order. Raises ValueError for orders that are not legal.
    """
    if orders == default_orders(problem):
        return problem
    assert problem.reorders is None, "orders are those of the default problem"
    graph = problem.graph
    forward_legal = is_legal(orders.forward, forward_predecessors(graph), range(problem.op_count))
    if not forward_legal or not is_legal(orders.backward, backward_predecessors(graph), graph.backward_order):
        raise ValueError("the orders do not compute what the default ones do")
    number = {op: position for position, op in enumerate(orders.forward)}
    during, between = gradient_memory(graph, problem.costs, orders.backward, problem.scope)
    return Problem(
        replace(graph, ops=tuple(graph.ops[op] for op in orders.forward)),
        tuple(problem.costs[op] for op in orders.forward),
        problem.scope,
        problem.base_nbytes,
        tuple(number[op] for op in orders.backward),
        during + problem.base_nbytes,
        between + problem.base_nbytes,
        problem.keep,
        problem.recompute,
        reorders=problem,
    )


def restored(decisions: Decisions, orders: Orders) -> Decisions:
    """Decisions of the `ordered` problem with the ops numbered as in the default one."""
    forward = orders.forward
    return Decisions(tuple(forward[entry] if entry >= 0 else ~forward[~entry] for entry in decisions.sequence))
