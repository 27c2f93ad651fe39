"""Which ops look alike: colours that repeated layers share.

Ops are coloured by type, time and sizes, and the colours are refined over producers and consumers
(Weisfeiler and Leman 1968) for _ROUNDS rounds. Few rounds on purpose: more would tell every layer from
the next by its distance to the ends of the network.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ...problem import Problem

_ROUNDS = 2


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys get equal numbers, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def colours(problem: Problem, rounds: int = _ROUNDS) -> list[int]:
    """A colour per op: equal for ops that look alike up to ``rounds`` hops away."""
    graph, size = problem.graph, [storage.nbytes for storage in problem.graph.storages]
    producer = graph.producer
    slot = {s: position for op in graph.ops for position, s in enumerate(op.writes)}
    readers: list[list[tuple[int, int]]] = [[] for _ in graph.ops]  # per op: (reader, which of its reads)
    for index, op in enumerate(graph.ops):
        for position, storage in enumerate(op.reads):
            readers[producer[storage]].append((index, position))
    colour = _numbered(
        [
            (
                op.op_type,
                cost.forward_ns,
                tuple(size[s] for s in op.reads),
                tuple(size[s] for s in op.writes),
                op.backward is not None,
            )
            for op, cost in zip(graph.ops, problem.costs, strict=True)
        ]
    )
    for _ in range(rounds):
        colour = _numbered(
            [
                (
                    colour[index],
                    tuple((colour[producer[s]], slot[s]) for s in op.reads),
                    tuple(sorted((colour[reader], position) for reader, position in readers[index])),
                )
                for index, op in enumerate(graph.ops)
            ]
        )
    return colour
