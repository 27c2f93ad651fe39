"""Random layered training graphs: many branches and joins, as in searched cell networks, and nothing odd."""

from __future__ import annotations

from functools import cache
from random import Random

from ogc_plan.planner.graph import Storage
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.training_graph import (
    BackwardOp,
    Gradient,
    GradientEdge,
    OpCost,
    Stationary,
    TrainingGraph,
    TrainingOp,
)

from tests.graphs.builders import Costs


def layered_graph(rng: Random, op_count: int, width: int, *, unit: int = 1) -> tuple[TrainingGraph, Costs]:
    """``op_count`` ops in layers of up to ``width``, each reading one to three values of the two layers before.

    Values that nobody has read yet come first; what nobody reads is joined by the last op, the only output.
    Sizes are multiples of ``unit``. Ops with several inputs are additions, whose gradients share memory; of the
    others half keep their input for the backward and half their output.
    """
    sizes: list[int] = []
    reads: list[tuple[int, ...]] = []
    kinds: list[str] = []
    layers: list[list[int]] = []
    used: set[int] = set()
    while len(reads) < op_count - 1:
        near = [op for layer in layers[-2:] for op in layer]
        layer = []
        for _ in range(min(rng.randint(1, width), op_count - 1 - len(reads))):
            layer.append(len(reads))
            count = min(len(near), rng.choice((1, 1, 2, 2, 3)))
            first = sorted(near, key=lambda value: (value in used, rng.random()))[:1]
            reads.append(tuple(sorted({*first, *rng.sample(near, count)} if count > 1 else first)))
            used.update(reads[-1])
            kinds.append(rng.choice(("Convolution", "Activation")) if len(reads[-1]) < 2 else "Add")
            sizes.append(unit * rng.randint(1, 8))
        layers.append(layer)
    reads.append(tuple(op for op in range(len(reads)) if op not in used))
    kinds.append("Convolution")
    sizes.append(unit)
    ops, costs = [], []
    for op, (kind, read) in enumerate(zip(kinds, reads, strict=True)):
        shared = op if kind == "Add" else None
        gives = [GradientEdge(value, shared) for value in read]
        if kind == "Convolution":
            gives.append(GradientEdge(op_count + op))
        kept = {"Convolution": read, "Activation": (op,), "Add": ()}[kind]
        ops.append(TrainingOp(f"op{op}", kind, read, (op,), BackwardOp(kept, (op,), tuple(gives)), forward=op))
        forward_ns = rng.randint(20, 60) if kind == "Convolution" else rng.randint(1, 8)
        costs.append(OpCost(forward_ns, 2 * forward_ns))
    gradients = [Gradient(f"gradient of t{op}", nbytes) for op, nbytes in enumerate(sizes)]
    gradients += [Gradient(f"gradient of w{op}", unit, parameter=True) for op in range(op_count)]
    graph = TrainingGraph(
        tuple(ops),
        tuple(Storage(f"t{op}", nbytes) for op, nbytes in enumerate(sizes)),
        tuple(gradients),
        (op_count - 1,),
        (op_count - 1,),
        Stationary(),
        tuple((f"t{op}",) for op in range(op_count)),
        fingerprint=f"layered{op_count}",
    )
    graph.validate()
    return graph, tuple(costs)


@cache
def tight_layers(seed: int) -> tuple[Problem, int]:
    """A problem of 60 ops in layers, and a tight budget: a fifth of the way from the floor to keeping everything."""
    graph, costs = layered_graph(Random(seed), 60, 4, unit=1000)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    whole = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes
    return problem, problem.floor_nbytes + (whole - problem.floor_nbytes) // 5
