"""Random legal orders of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ogc_plan.planner.dependences import (
    Predecessors,
    backward_predecessors,
    forward_predecessors,
    reversed_dependences,
)
from ogc_plan.planner.strategies.orders import Orders
from ogc_plan.planner.training import TrainingGraph


def random_order(rng: Random, members: Sequence[int], predecessors: Predecessors) -> tuple[int, ...]:
    """Any topological order of ``members``."""
    missing = {index: len(predecessors[index]) for index in members}
    ready = [index for index in members if not missing[index]]
    after, order = reversed_dependences(predecessors), list[int]()
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for later in after[order[-1]]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    return tuple(order)


def random_orders(rng: Random, graph: TrainingGraph) -> Orders:
    """Any legal forward and backward order."""
    forward = random_order(rng, range(len(graph.ops)), forward_predecessors(graph))
    return Orders(forward, random_order(rng, graph.backward_order, backward_predecessors(graph)))
