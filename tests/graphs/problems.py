"""Problems for tests of strategies and bounds, and budgets for them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies import strategy_named
from ogc_plan.planner.training_graph import BackwardOp

from tests.graphs.builders import SMALL_SIZES, chain, random_graph
from tests.graphs.layered_graphs import layered_graph

NONE: frozenset[int] = frozenset()


def chain_problem(
    ops: int, nbytes: int = 10, forward_ns: int = 1, *, keep: frozenset[int] = NONE, recompute: frozenset[int] = NONE
) -> Problem:
    """Ops in a row; the budget bounds the activations."""
    graph, costs = chain(ops, nbytes=nbytes, forward_ns=forward_ns)
    return build_problem(graph, costs, Scope.ACTIVATIONS, keep=keep, recompute=recompute)


def input_chain(ops: int) -> Problem:
    """A homogeneous chain whose backwards read their input only, where nested checkpoints are optimal."""
    graph, costs = chain(ops, nbytes=1000)
    backwards = [replace(op.backward or BackwardOp(), reads=op.reads) for op in graph.ops]
    changed = (replace(op, backward=backward) for op, backward in zip(graph.ops, backwards, strict=True))
    return build_problem(replace(graph, ops=tuple(changed)), costs, Scope.ACTIVATIONS)


def layered_problem(seed: int, ops: int, width: int, *, unit: int = 1) -> Problem:
    """Random layers with branches and joins; the budget bounds the activations."""
    return build_problem(*layered_graph(Random(seed), ops, width, unit=unit), Scope.ACTIVATIONS)


def random_problem(seed: int, least: int, most: int, *, scope: Scope | None = None) -> Problem:
    """A random graph of ``least`` to ``most`` ops, of small sizes where it is small, under a random scope if none."""
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(least, most), sizes=SMALL_SIZES if most <= 9 else None)
    return build_problem(graph, costs, scope or rng.choice(list(Scope)))


def keep_all_peak(problem: Problem) -> int:
    """The peak of a step that recomputes nothing."""
    return strategy_named("keep-all")(problem).peak_nbytes


def between(problem: Problem, percent: int) -> int:
    """A budget at a percentage of the way from the floor to the peak of a step that recomputes nothing."""
    return problem.floor_nbytes + (keep_all_peak(problem) - problem.floor_nbytes) * percent // 100
