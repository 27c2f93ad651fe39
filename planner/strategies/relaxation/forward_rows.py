"""Rows of the stage program for moments of the forward: what the first backward finds was held, or made again.

Where branches are joined late the forward peaks higher than any backward, and no program of backward stages sees
it. When an op runs for the first time all its ancestors have run, whatever the forward order, so what they made
and the first backward finds alive was held beside the op's own inputs and outputs, or was computed again since.

For each such op i, with t a storage that i or one of its ancestors made, and a one of these ops:

H[t]  t is alive during the first run of i
A[a]  a runs again after it and before the first backward
W[a]  a runs again after it at all

A run of a before the first backward besides its first one is paid once, whatever number of moments it follows.
W takes the time before the first backward and after it as one, without which half of a value could be made in each.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...problem import Problem
from .stage_program import Moment, StageProgram, Uses


def add_forward_stages(uses: Uses, made: StageProgram, budget_nbytes: int, ops: Iterable[int]) -> None:
    """Add to ``made``, a program of the problem of ``uses``, the rows of the first runs of ``ops``."""
    lp, time = made.program, uses.problem.forward_ns.tolist()
    for op in ops:
        _moment(uses, made, budget_nbytes, op)
        for index, variable in made.moments[-1].again.items():
            if index not in made.remade:
                made.remade[index] = lp.variable(time[index])
            lp.at_least(0, [(1, made.remade[index]), (-1, variable)])


def _moment(uses: Uses, made: StageProgram, budget_nbytes: int, op: int) -> None:
    """Variables and rows of one moment."""
    problem, lp = uses.problem, made.program
    producer = problem.producer.tolist()
    before, after = related(problem, op)
    before.add(op)
    again = {index: lp.variable() for index in sorted(before) if not problem.graph.ops[index].once}
    held: dict[int, int] = {}

    def there(storage: int) -> list[tuple[int, int]]:
        """Terms that are at least 1 when a storage is alive at some time from the moment on."""
        if storage not in held:
            held[storage] = lp.variable()
        return uses.available(storage, held, again, producer)

    for storage, variable in made.alive[0].items():
        if producer[storage] in before:  # so that `held` has all that backwards may need
            lp.at_least(0, [*there(storage), (-1, variable)])
    for index, variable in again.items():
        for storage in uses.reads[index]:
            lp.at_least(0, [*there(storage), (-1, variable)])
    for storage in sorted({s for later in after for s in uses.reads[later] if producer[s] in before}):
        lp.at_least(1, there(storage))
    whole = _whole(uses, made, held, again)
    entry = problem.graph.ops[op]
    for storage in dict.fromkeys((*entry.reads, *entry.writes)):
        if not uses.free[storage]:
            there(storage)
            lp.at_least(1, [(1, held[storage])])
    size = problem.nbytes.tolist()
    pinned = sum(size[s] for s in problem.pinned if producer[s] in before)
    used = problem.base_nbytes + problem.costs[op].forward_workspace_nbytes + pinned
    made.rooms.append(uses.memory_row(lp, budget_nbytes - used, held))
    made.moments.append(Moment(op - problem.op_count, held, again, whole))


def _whole(uses: Uses, made: StageProgram, held: dict[int, int], again: dict[int, int]) -> dict[int, int]:
    """The W variables of a moment by op, and their rows; ``held`` and ``again`` are its H and A."""
    lp, producer, later = made.program, uses.problem.producer.tolist(), made.again[0]
    whole = {op: lp.variable() for op in again}

    def there(storage: int) -> list[tuple[int, int]]:
        """Terms that are at least 1 when a storage is alive at the moment or made after it."""
        return uses.available(storage, held, whole, producer)

    for op, variable in whole.items():
        lp.at_least(0, [*((1, table[op]) for table in (again, later) if op in table), (-1, variable)])
        for storage in uses.reads[op]:
            lp.at_least(0, [*there(storage), (-1, variable)])
    for storage in sorted(held):
        if uses.last_use[storage] >= 0:
            lp.at_least(1, there(storage))
    return whole


def related(problem: Problem, op: int) -> tuple[set[int], set[int]]:
    """The ops that ``op`` depends on through values, and those that depend on it, whatever the forward order."""
    import networkx as nx

    reads = nx.DiGraph()
    reads.add_nodes_from(range(problem.op_count))
    producer = problem.producer.tolist()
    reads.add_edges_from((producer[s], index) for index, entry in enumerate(problem.graph.ops) for s in entry.reads)
    return nx.ancestors(reads, op), nx.descendants(reads, op)
