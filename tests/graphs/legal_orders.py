"""Random legal orders of a training step, and what is alive under an order, counted from the definition."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ogc_plan.planner.dependencies import (
    Predecessors,
    backward_predecessors,
    forward_predecessors,
    reversed_dependences,
)
from ogc_plan.planner.strategies.orders.reordered_problem import Orders
from ogc_plan.planner.strategies.orders.sequencing import Tokens
from ogc_plan.planner.training_graph import TrainingGraph


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


def random_tokens(rng: Random, steps: int) -> Tokens:
    """Twelve tokens, each of a few steps, some with bytes for the moments in which they are touched again."""
    tokens = Tokens([[] for _ in range(steps)])
    for _ in range(12):
        tokens.add(rng.randint(0, 9), rng.sample(range(steps), rng.randint(1, 4)), started=rng.random() < 0.3)
        if rng.random() < 0.4:
            tokens.add_again(rng.sample(range(steps), rng.randint(2, 4)), rng.randint(1, 9))
    return tokens


def alive_by_step(order: Sequence[int], tokens: Tokens) -> list[int]:
    """Bytes of the tokens that are begun by each step and not done with before it, and of those touched again."""
    alive = []
    for position in range(len(order)):
        past = {token for step in order[: position + 1] for token in tokens.touching[step]}
        future = {token for step in order[position:] for token in tokens.touching[step]}
        past |= {token for token, begun in enumerate(tokens.started) if begun}
        before = {token for step in order[:position] for token in tokens.touching[step]}
        touched_again = before.intersection(tokens.touching[order[position]])
        alive.append(sum(tokens.nbytes[t] for t in past & future) + sum(tokens.again[t] for t in touched_again))
    return alive
