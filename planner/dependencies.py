"""Which orders of one training step compute the same bits: what must precede what, forward and backward.

A forward order is legal if every op follows
- the producers of what it reads, and of what its backward reads;
- if it is random, the random op before it in the default order: they share the stream of a generator;
- every op that runs once and precedes it in the default order: such an op reads a buffer that a later op may
  overwrite.

A backward order is legal if every backward follows those that give, or sum up, a gradient that it takes or adds to a
sum, and if implicit fan-in sums are the same sums. Floating-point addition commutes but does not associate: of three
or more contributions only the first two may be exchanged, and only if each is a single one. Sums that the graph spells
out name their operands and add no further condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from .training_graph import TrainingGraph

Predecessors = tuple[tuple[int, ...], ...]


def forward_predecessors(graph: TrainingGraph) -> Predecessors:
    """For each op, the ops whose first run must precede its own, in increasing order."""
    producer = graph.producer
    before: list[set[int]] = []
    random = once = -1
    for index, op in enumerate(graph.ops):
        made = {producer[s] for s in (*op.reads, *(op.backward.reads if op.backward is not None else ()))}
        if op.random_state_nbytes:
            made.add(random)
            random = index
        made.add(once)
        if op.once:
            once = index
        before.append(made - {-1, index})
    return tuple(tuple(sorted(made)) for made in before)


def backward_predecessors(graph: TrainingGraph) -> Predecessors:
    """For each op, the ops whose backward must precede its own, in increasing order."""
    makers: list[list[int]] = [[] for _ in graph.gradients]  # one entry per contribution, in default order
    users: list[list[int]] = [[] for _ in graph.gradients]
    for index in graph.backward_order:
        backward = graph.ops[index].backward
        assert backward is not None
        for edge in backward.gives:
            makers[edge.gradient].append(index)
        for total in backward.sums:
            makers[total.result].append(index)
        for gradient in (*backward.takes, *(operand for total in backward.sums for operand in total.operands)):
            users[gradient].append(index)
    before: list[set[int]] = [set() for _ in graph.ops]
    seeded = frozenset(graph.seeds)
    for gradient, made in enumerate(makers):
        for user in users[gradient]:
            before[user].update(made)
        for earlier, later in _same_sum(made, gradient in seeded):
            before[later].add(earlier)
    return tuple(tuple(sorted(made - {index})) for index, made in enumerate(before))


def _same_sum(contributors: Sequence[int], seeded: bool) -> Iterator[tuple[int, int]]:
    """Pairs of backwards that must keep their order for one implicit sum; contributors come in default order."""
    distinct = list(dict.fromkeys(contributors))
    single = not seeded and len(distinct) > 1 and all(contributors.count(index) == 1 for index in distinct[:2])
    for place in range(1, len(distinct)):
        if place == 1 and single:
            continue
        yield distinct[place - 1], distinct[place]
        if place == 2 and single:
            yield distinct[0], distinct[2]


def is_legal(order: Sequence[int], predecessors: Predecessors, members: Sequence[int]) -> bool:
    """Whether ``order`` lists every one of ``members`` once, each after its predecessors."""
    place = {index: position for position, index in enumerate(order)}
    if len(order) != len(members) or place.keys() != set(members):
        return False
    return all(place[earlier] < place[index] for index in members for earlier in predecessors[index])


def reversed_dependences(predecessors: Predecessors) -> Predecessors:
    """For each op, the ops that name it as a predecessor, in increasing order."""
    after: list[list[int]] = [[] for _ in predecessors]
    for index, before in enumerate(predecessors):
        for earlier in before:
            after[earlier].append(index)
    return tuple(tuple(found) for found in after)


def closure(predecessors: Predecessors, order: Sequence[int]) -> list[int]:
    """For each op, a bitmask of all ops that must precede it, directly or not; ``order`` is any legal order."""
    before = [0] * len(predecessors)
    for index in order:
        for earlier in predecessors[index]:
            before[index] |= before[earlier] | 1 << earlier
    return before


def is_forced(order: Sequence[int], predecessors: Predecessors) -> bool:
    """Whether the legal order ``order`` is the only one."""
    return all(earlier in predecessors[later] for earlier, later in pairwise(order))
