"""Other orders of one step: which are legal, that their plans are plans of the step, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from ogc_plan.planner.dependencies import backward_predecessors, forward_predecessors, is_legal
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.orders.reordered_problem import ordered, restored
from ogc_plan.planner.strategies.relaxation.order_free_bound import order_free_bound
from ogc_plan.planner.training_graph import BackwardOp, GradientEdge, GradientSum, TrainingGraph, TrainingOp

from tests.graphs.builders import SMALL_SIZES, chain, diamond, random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.graphs.legal_orders import random_orders
from tests.oracles.brute import minimum_peak
from tests.oracles.brute_orders import best_in_any_order, minimum_peak_in_any_order
from tests.oracles.replay import replayed


def branching_problem(seed: int, least: int, most: int) -> tuple[Random, Problem]:
    """A small problem with branches, every other one with everything that the memory model speaks of."""
    rng = Random(seed)
    count = rng.randint(least, most)
    if seed % 2:
        graph, costs = random_graph(rng, count, sizes=SMALL_SIZES)
    else:
        graph, costs = layered_graph(rng, count, rng.randint(2, 4))
    return rng, build_problem(graph, costs, rng.choice(list(Scope)))


def test_a_plan_in_any_legal_orders_replays_to_what_the_evaluator_says() -> None:
    for seed in range(60_000, 60_100):
        rng, problem = branching_problem(seed, 2, 30)
        orders = random_orders(rng, problem.graph)
        evaluator = Evaluator(ordered(problem, orders))
        labels = np.array([rng.choice((0, 1, 2)) for _ in problem.graph.storages], dtype=np.int8)
        labels[list(problem.keep)] = 1
        found = evaluator.evaluate(labels)
        decisions = restored(evaluator.decisions(labels), orders)
        assert replayed(problem, decisions) == (found.peak_nbytes, found.recompute_ns), seed


@pytest.mark.parametrize("order", [(3, 2, 0, 1), (3, 2, 1), (3, 2, 1, 1), (2, 3, 1, 0)])
def test_a_backward_order_that_computes_something_else_is_refused(order: tuple[int, ...]) -> None:
    graph, costs = diamond()
    with pytest.raises(ValueError, match="backward order"):
        build_problem(graph, costs, Scope.TOTAL, backward_order=order)


def flat(count: int, **changes: dict[int, Any]) -> TrainingGraph:
    """``count`` ops that depend on nothing, each giving to one gradient, and ``changes`` to some of them."""
    ops = [TrainingOp(f"op{i}", "Op", (), (), BackwardOp((), (), (GradientEdge(0),))) for i in range(count)]
    for name, values in changes.items():
        for index, value in values.items():
            ops[index] = replace(ops[index], **{name: value})
    return replace(chain(1)[0], ops=(chain(1)[0].ops[0], *ops), seeds=(), outputs=())


def test_random_ops_keep_their_order() -> None:
    graph = flat(4, random_state_nbytes={0: 5, 2: 5, 3: 5})
    assert forward_predecessors(graph) == ((), (), (), (1,), (3,))


def test_readers_of_an_op_that_runs_once_stay_behind_it() -> None:
    graph = flat(4, once={1: True})
    assert forward_predecessors(graph) == ((), (), (), (2,), (2,))


def test_only_the_first_two_terms_of_an_implicit_sum_may_change_places() -> None:
    graph = flat(4)
    # The default order is 4, 3, 2, 1; op 0 takes the sum.
    assert backward_predecessors(graph) == ((1, 2, 3, 4), (2,), (3, 4), (), ())


def test_terms_that_meet_a_seed_keep_their_order() -> None:
    graph = replace(flat(2), seeds=(0,))
    assert backward_predecessors(graph) == ((1, 2), (2,), ())


def test_the_operands_of_a_sum_spelled_out_must_be_there_and_nothing_more() -> None:
    graph = flat(3, backward={
        0: BackwardOp((), (), (GradientEdge(1),), (GradientSum(0, (1, 2, 3)),)),
        1: BackwardOp((), (), (GradientEdge(2),)),
        2: BackwardOp((), (), (GradientEdge(3),)),
    })  # fmt: skip
    graph = replace(graph, gradients=(*graph.gradients, *(replace(graph.gradients[0], name=n) for n in "abc")))
    assert backward_predecessors(graph) == ((1,), (2, 3), (), ())


def test_legal_orders_hold_every_op_once() -> None:
    assert not is_legal((0, 1, 1), ((), (), ()), range(3))


def violations(seed: int) -> list[str]:
    """Bounds on time and peak that free orders beat, and plans of the exact search that the replay contradicts."""
    rng, problem = branching_problem(seed, 4, 7)
    smallest = minimum_peak_in_any_order(problem)
    fixed = minimum_peak(problem)
    found = []
    if not problem.floor.nbytes <= smallest <= fixed or problem.floor_of_order.nbytes > fixed:
        found.append(f"seed {seed}: floor {problem.floor.nbytes}, smallest peak {smallest}, in default order {fixed}")
    for budget in sorted({smallest, rng.randint(smallest, fixed + 5)}):
        best = best_in_any_order(problem, budget)
        assert best is not None
        peak, recompute_ns = replayed(problem, best[1])
        if peak > budget or recompute_ns != best[0]:
            found.append(f"seed {seed} budget {budget}: the exact plan replays to {peak} B, {recompute_ns} ns")
        if order_free_bound(problem, budget) > best[0]:
            found.append(f"seed {seed} budget {budget}: bound {order_free_bound(problem, budget)}, optimum {best[0]}")
    return found


def test_no_plan_in_any_order_beats_the_order_free_bound() -> None:
    assert [text for seed in range(61_000, 61_150) for text in violations(seed)] == []


@pytest.mark.parametrize("seed", [20_788, 21_039, 21_422, 21_758])
def test_memory_that_a_sum_leaves_is_not_counted_on(seed: int) -> None:
    """A first term in shared memory, a second, and the step in which they become a sum of its own memory."""
    rng = Random(seed)
    problem = build_problem(*layered_graph(rng, rng.randint(5, 7), rng.randint(2, 4)), rng.choice(list(Scope)))
    assert problem.floor.nbytes <= minimum_peak_in_any_order(problem)


def test_the_floor_of_all_orders_lies_below_that_of_one() -> None:
    below = sum(p.floor.nbytes < p.floor_of_order.nbytes for p in (branching_problem(s, 8, 20)[1] for s in range(100)))
    assert below > 10


def test_a_problem_in_other_orders_keeps_the_floor_of_all_orders() -> None:
    rng, problem = branching_problem(62_000, 12, 12)
    assert ordered(problem, random_orders(rng, problem.graph)).floor == problem.floor
