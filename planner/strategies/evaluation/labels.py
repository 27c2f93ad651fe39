"""One label per storage, and the order of computations that the labels stand for.

KEEP: alive from the forward to its last backward use. DROP: recomputed just before a backward needs
it, then held to its last use. TEMPORARY: recomputed like DROP, but as a checkpoint of the second
level: what was recomputed on the way to it serves only the backwards above it and is recomputed when
the backward comes down to it, so a value may be computed three times in all (the idea of
nested checkpoints is Griewank & Walther's, ACM TOMS 2000).

This is the readable reference; evaluator.py compiles the same rule and a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from ...problem import Problem
from ...solution import Decisions


class Label(IntEnum):
    """What happens to a storage between its forward and its backward uses."""

    DROP = 0
    KEEP = 1
    TEMPORARY = 2


def decisions_of(problem: Problem, labels: Sequence[int]) -> Decisions:
    """All forwards in order; then before each backward the runs it still needs, in forward order."""
    graph, n = problem.graph, problem.op_count
    kept = [label == Label.KEEP or s in problem.pinned for s, label in enumerate(labels)]
    temporary = [any(labels[s] == Label.TEMPORARY and not kept[s] for s in op.writes) for op in graph.ops]
    next_temporary = [n] * n
    upcoming = n
    for op in range(n - 1, -1, -1):
        next_temporary[op] = upcoming
        if temporary[op]:
            upcoming = op
    producer = graph.producer
    until = [n] * n  # a run of op i serves the backwards of ops above until[i]
    sequence = list(range(n))
    for current in problem.backward_order:
        backward = graph.ops[current].backward
        assert backward is not None
        runs: set[int] = set()
        pending = [s for s in backward.reads if not kept[s]]
        while pending:
            op = producer[pending.pop()]
            if op in runs or until[op] < current:
                continue
            runs.add(op)
            pending += [s for s in graph.ops[op].reads if not kept[s]]
        for op in sorted(runs):
            sequence.append(op)
            passed = next_temporary[op] < current and not temporary[op]
            until[op] = next_temporary[op] if passed else -1
        sequence.append(~current)
    return Decisions(tuple(sequence))
