"""Random small graphs of gradients: everything that a backward may do with them, mixed more than networks do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ogc_plan.planner.graph import Storage
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.training_graph import (
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    OpCost,
    Stationary,
    TrainingGraph,
    TrainingOp,
)


def gradient_problem(seed: int) -> Problem | None:
    """Three to six ops whose backwards contribute once or twice, share memory, spell sums out and end gradients.

    None where what was drawn is no valid graph.
    """
    rng = Random(seed)
    count, gradients = rng.randint(3, 6), rng.randint(3, 9)
    entries = tuple(
        Gradient(f"g{g}", rng.choice((1, 2, 3, 5, 8, 13, 40)), parameter=rng.random() < 0.25) for g in range(gradients)
    )
    seeds = tuple(g for g in range(gradients) if rng.random() < 0.2)
    begun, complete = set(seeds), set[int]()
    backward: dict[int, BackwardOp | None] = {}
    for index in reversed(range(count)):
        backward[index] = None if rng.random() < 0.07 else _backward(rng, entries, begun, complete)
    storages = tuple(Storage(f"t{op}", rng.choice((0, 1, 4, 9))) for op in range(count))
    ops = []
    for op in range(count):
        made = backward[op]
        if made is not None:
            made = replace(made, reads=tuple(storage for storage in range(op + 1) if rng.random() < 0.3))
        once = rng.random() < 0.25
        ops.append(TrainingOp(f"op{op}", "Op", tuple(range(op)), (op,), made, forward=op, once=once))
    outputs = tuple(op for op in range(count) if rng.random() < 0.15)
    names = tuple((storage.name,) for storage in storages)
    graph = TrainingGraph(tuple(ops), storages, entries, outputs, seeds, Stationary(rng.choice((0, 3))), names)
    costs = tuple(OpCost(1, 1, 0, rng.choice((0, 0, 2, 7)), rng.choice((None, 0, 3))) for _ in ops)
    try:
        graph.validate()
        return build_problem(graph, costs, rng.choice(list(Scope)))
    except ValueError:
        return None


def _backward(rng: Random, entries: tuple[Gradient, ...], begun: set[int], complete: set[int]) -> BackwardOp:
    """One that takes some of what is ``begun``, which makes it ``complete``, and contributes to what is not."""
    takes = [g for g in sorted(begun) if rng.random() < 0.45]
    complete |= set(takes)
    open_ones = [g for g in range(len(entries)) if g not in complete]
    gives = []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)) if open_ones else 0):
        gradient = rng.choice(open_ones)
        shared = rng.choice(takes) if takes and not entries[gradient].parameter and rng.random() < 0.6 else None
        for _ in range(2 if rng.random() < 0.25 else 1):
            gives.append(GradientEdge(gradient, shared if rng.random() < 0.8 else None))
    rng.shuffle(gives)
    begun |= {edge.gradient for edge in gives}
    sums = []
    for _ in range(rng.randint(1, 2) if rng.random() < 0.2 else 0):
        results = [g for g in range(len(entries)) if g not in begun and g not in complete]
        if results:
            result = rng.choice(results)
            operands = tuple(rng.sample(sorted(begun), min(len(begun), rng.randint(0, 3))))
            sums.append(GradientSum(result, operands))
            complete |= {*operands, result}
            begun.add(result)
    ends = tuple(g for g, entry in enumerate(entries) if entry.parameter and rng.random() < 0.2)
    return BackwardOp((), tuple(takes), tuple(gives), tuple(sums), ends)
