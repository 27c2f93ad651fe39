"""Moments of the forward in the stage program: bounds that hold for every plan, and what they see."""

from __future__ import annotations

from pathlib import Path
from random import Random

import onnx
from ogc_plan.planner.dependencies import forward_predecessors
from ogc_plan.planner.model import load_model
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.orders.reordered_problem import Orders, ordered
from ogc_plan.planner.strategies.relaxation.certificate import certified_bound
from ogc_plan.planner.strategies.relaxation.forward_rows import add_forward_stages
from ogc_plan.planner.strategies.relaxation.linear_program import solve
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from models.graphs.layered_dag import layered_dag
from tests.graphs.builders import SMALL_SIZES, linear, random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.graphs.legal_orders import random_order
from tests.oracles.brute import minimum_peak, minimum_recompute_ns


def bound_ns(problem: Problem, budget: int, stages: tuple[int, ...], ops: tuple[int, ...]) -> int:
    """The bound of a program with backward ``stages`` and the first runs of ``ops``."""
    relaxed = StageRelaxation(problem)
    staged = relaxed.program(budget, stages)
    add_forward_stages(relaxed, staged, budget, ops)
    answer = solve(staged.program)
    assert answer.solved
    return certified_bound(staged.program, answer.dual)


def small_problem(seed: int) -> tuple[Random, Problem]:
    rng = Random(seed)
    if seed % 2:
        graph, costs = random_graph(rng, rng.randint(3, 8), sizes=SMALL_SIZES)
    else:
        graph, costs = layered_graph(rng, rng.randint(4, 8), 3)
    return rng, build_problem(graph, costs, rng.choice(list(Scope)))


def test_no_plan_in_any_forward_order_beats_the_bound_of_any_moments_of_the_forward() -> None:
    beaten = []
    for seed in range(95_000, 95_020):
        rng, problem = small_problem(seed)
        forward = random_order(rng, range(problem.op_count), forward_predecessors(problem.graph))
        other = ordered(problem, Orders(tuple(forward), problem.backward_order))
        budget = minimum_peak(other) + rng.randint(0, 30)
        exact = minimum_recompute_ns(other, budget)
        ops = tuple(sorted(rng.sample(range(problem.op_count), rng.randint(1, problem.op_count))))
        stages = tuple(sorted({0, *rng.sample(range(max(1, len(problem.backward_order))), 1)}))
        assert exact is not None
        if problem.backward_order and bound_ns(problem, budget, stages, ops) > exact:
            beaten.append(seed)
    assert beaten == []


def test_a_value_that_only_the_forward_reads_may_be_recomputed_before_the_first_backward() -> None:
    # The wide value does not fit beside the first, which the last op reads once more: it is made twice.
    problem = build_problem(*linear(((), (0,), (1,), (2,), (0, 3)), (10, 1, 20, 1, 1)), Scope.ACTIVATIONS)
    assert (bound_ns(problem, 21, (0,), (2,)), minimum_recompute_ns(problem, 21)) == (7, 7)


def test_a_value_recomputed_after_the_first_backward_need_not_be_recomputed_before_it() -> None:
    # The first value does not fit beside the third, nor at the first backward beside the fifth.
    problem = build_problem(
        *linear(((), (0,), (1,), (2,), (3,), (4,)), (10, 1, 20, 1, 17, 1), saved=(0, 4)), Scope.ACTIVATIONS
    )
    assert (bound_ns(problem, 21, (0,), (2,)), minimum_recompute_ns(problem, 21)) == (7, 7)


def test_an_op_of_another_branch_may_run_after_the_moment() -> None:
    # The first value is saved for the backward; where the branch of the wide one runs first, both fit.
    problem = build_problem(*linear(((), (), (1,), (0, 2)), (10, 30, 1, 1), saved=(0,)), Scope.ACTIVATIONS)
    assert bound_ns(problem, 35, (0,), (1,)) == 0


def test_where_many_branches_are_joined_last_the_moment_of_joining_raises_the_bound(tmp_path: Path) -> None:
    onnx.save(layered_dag(60, 0, batch=4), str(tmp_path / "dag.onnx"))
    model = load_model(tmp_path / "dag.onnx", batch=None)
    budget = model.store_all().peak_activation_nbytes // 2
    problem = model.problem(Scope.ACTIVATIONS)
    join = max(range(60), key=lambda index: len(problem.graph.ops[index].reads))
    assert bound_ns(problem, budget, (0,), ()) < bound_ns(problem, budget, (0,), (join,))
