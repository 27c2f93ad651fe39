"""Orders made for a plan: the plan stays a plan of the step, and annealing in turn with its order lowers its cost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.limits import NO_LIMITS, Limits
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.strategies.baselines.greedy import labels as greedy_labels
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.alternate_orders import Reordered, reorder, reorder_in_parallel
from ogc_plan.planner.strategies.optimal.effort import OrderEffort
from ogc_plan.planner.strategies.orders.order_for_plan import PlanOrders, highest_by_step
from ogc_plan.planner.strategies.orders.reordered_problem import default_orders, ordered, restored
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.builders import chain, diamond, random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.graphs.legal_orders import alive_by_step, random_order, random_orders, random_tokens
from tests.planner.strategies.bounds.test_brute import replayed


def layered_problem(seed: int, op_count: int, width: int) -> Problem:
    return build_problem(*layered_graph(Random(seed), op_count, width), Scope.ACTIVATIONS)


def annealed(problem: Problem, share: float) -> tuple[Reordered, int]:
    """A plan of the default orders within a share of the peak of storing everything, as good as a short search gets."""
    evaluator = Evaluator(problem)
    budget = int(evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes * share)
    sequence = np.array(evaluator.decisions(greedy_labels(evaluator, budget)).sequence, dtype=np.int64)
    annealer = RetentionAnnealer(evaluator, 0)
    sequence, _ = annealer.run(sequence, budget, 5_000, heat=0.1, minimise_peak=True)
    sequence, found = annealer.run(sequence, budget, 20_000, heat=0.05)
    return Reordered(default_orders(problem), evaluator, sequence, found), budget


def moved(seed: int, guess: float | None) -> bool:
    """Whether any plan in any orders costs the same in the orders made for it, and replays to what it claims."""
    rng = Random(seed)
    if seed % 2:
        graph, costs = random_graph(rng, rng.randint(3, 30))
    else:
        graph, costs = layered_graph(rng, rng.randint(4, 30), 4)
    problem = build_problem(graph, costs, rng.choice(list(Scope)))
    if not problem.backward_order:
        return True
    orders = random_orders(rng, graph)
    evaluator = Evaluator(ordered(problem, orders))
    labels = np.array([rng.choice((0, 1, 2)) for _ in graph.storages], dtype=np.int8)
    labels[list(problem.keep)] = 1
    sequence = np.array(evaluator.decisions(labels).sequence, dtype=np.int64)
    sequence, _ = RetentionAnnealer(evaluator, seed).run(sequence, 1, 200, heat=0.3, minimise_peak=True)
    before = evaluator.evaluate_sequence(sequence).recompute_ns
    found, made = PlanOrders(problem).better(evaluator, orders, sequence, moves=2_000, seed=seed, guess=guess)
    after = Evaluator(ordered(problem, found)).evaluate_sequence(made)
    decisions = restored(Decisions(tuple(made.tolist())), found)
    return before == after.recompute_ns and replayed(problem, decisions) == (after.peak_nbytes, after.recompute_ns)


def test_a_plan_stays_a_plan_of_the_same_cost_in_the_orders_made_for_it() -> None:
    assert [seed for seed in range(70_000, 70_150) if not moved(seed, None)] == []


def test_it_does_so_in_orders_made_for_a_guess_of_what_is_retained() -> None:
    assert [seed for seed in range(71_000, 71_100) if not moved(seed, 0.4)] == []


def test_a_step_that_reads_a_recomputed_value_stays_behind_its_recomputation() -> None:
    graph, costs = diamond((10, 100, 30, 40))
    top, left, *rest = graph.ops
    assert left.backward is not None
    graph = replace(graph, ops=(top, replace(left, backward=replace(left.backward, reads=(0, 1))), *rest))
    problem, shared = build_problem(graph, costs, Scope.ACTIVATIONS), np.array([0, 1, 2, 3, ~3, 0, ~2, ~1, ~0])
    orders, evaluator = default_orders(problem), Evaluator(problem)

    def steps(sequence: np.ndarray) -> tuple[int, ...]:
        return PlanOrders(problem).better(evaluator, orders, sequence, moves=1_000, seed=0)[0].backward

    without = shared[shared != 0]  # ``top`` is held instead, and the step that frees most goes first
    assert (steps(shared), steps(np.insert(without, 0, 0))) == ((3, 2, 1, 0), (3, 1, 2, 0))


def test_bytes_alive_by_step_are_those_of_tokens_begun_and_not_ended() -> None:
    for seed in range(50):
        rng = Random(seed)
        tokens = random_tokens(rng, 9)
        tokens.add_inside(4, 7)
        order = random_order(rng, range(9), ((),) * 9)
        assert tokens.alive(order) == alive_by_step(order, tokens), seed


def test_the_highest_of_all_backward_steps_is_the_peak_of_the_backward() -> None:
    problem = layered_problem(3, 40, 4)
    evaluator = Evaluator(problem)
    sequence = np.array(evaluator.decisions(evaluator.labels(Label.DROP)).sequence, dtype=np.int64)
    found = evaluator.evaluate_sequence(sequence)
    most = highest_by_step(evaluator, sequence, problem.op_count)
    assert (max(most), most.index(max(most))) == (found.peak_nbytes, found.peak_position)


def test_alternating_plan_and_order_saves_time_on_graphs_with_branches() -> None:
    saved = []
    for seed in range(3):
        problem = layered_problem(seed, 50, 5)
        start, budget = annealed(problem, 0.6)
        found = reorder(problem, start, budget, rounds=6, iterations=20_000, seed=0, limits=NO_LIMITS).found
        saved.append((start.found.recompute_ns - found.recompute_ns) / max(1, start.found.recompute_ns))
    assert sum(saved) / 3 > 0.05, saved


def test_a_plan_within_the_budget_stays_within_it_and_gets_no_slower() -> None:
    problem = layered_problem(7, 50, 5)
    start, budget = annealed(problem, 0.7)
    found = reorder(problem, start, budget, rounds=4, iterations=20_000, seed=0, limits=NO_LIMITS)
    assert found.rank(budget) <= start.rank(budget) == (0, start.found.recompute_ns)


def test_a_peak_is_lowered_further_than_in_the_default_order() -> None:
    problem = layered_problem(5, 60, 5)
    start, _ = annealed(problem, 0.3)
    stayed = RetentionAnnealer(start.evaluator, 0).run(start.sequence, 1, 60_000, heat=0.1, minimise_peak=True)[1]
    found = reorder(problem, start, 1, rounds=6, iterations=20_000, seed=0, limits=NO_LIMITS).found
    assert found.peak_nbytes < stayed.peak_nbytes


def test_a_plan_of_a_chain_is_left_as_it_is() -> None:
    problem = build_problem(*chain(12, nbytes=10), Scope.ACTIVATIONS)
    start, budget = annealed(problem, 0.6)
    assert reorder(problem, start, budget, rounds=3, iterations=20_000, seed=0, limits=NO_LIMITS) is start


@pytest.fixture(scope="module")
def starts() -> tuple[Problem, list[Reordered]]:
    """A problem, the plan that retains nothing, and one that was annealed."""
    problem = layered_problem(5, 50, 5)
    evaluator = Evaluator(problem)
    sequence = np.array(evaluator.decisions(evaluator.labels(Label.DROP)).sequence, dtype=np.int64)
    nothing = Reordered(default_orders(problem), evaluator, sequence, evaluator.evaluate_sequence(sequence))
    return problem, [nothing, annealed(problem, 0.5)[0]]


def peak(problem: Problem, starts: list[Reordered], restarts: int, limits: Limits = NO_LIMITS) -> int:
    effort = OrderEffort(rounds=2, iterations=20_000, restarts=restarts)
    found = reorder_in_parallel(problem, starts, 1, effort, seed=0, limits=limits)
    return found.found.peak_nbytes


def test_one_run_from_a_plan_is_that_of_reorder(starts: tuple[Problem, list[Reordered]]) -> None:
    problem, (_, start) = starts
    alone = reorder(problem, start, 1, rounds=2, iterations=20_000, seed=0, limits=NO_LIMITS)
    assert peak(problem, [start], 1) == alone.found.peak_nbytes


@pytest.mark.parametrize("turn", [1, -1])
def test_the_best_run_from_any_plan_counts(starts: tuple[Problem, list[Reordered]], turn: int) -> None:
    problem, plans = starts
    assert peak(problem, plans[::turn], 2) == min(peak(problem, [start], 2) for start in plans)


@pytest.mark.parametrize(("restarts", "limits"), [(0, NO_LIMITS), (2, Limits(stop=lambda: True))])
def test_without_runs_or_time_the_best_plan_given_is_no_worse(
    starts: tuple[Problem, list[Reordered]], restarts: int, limits: Limits
) -> None:
    problem, plans = starts
    assert peak(problem, plans, restarts, limits) <= min(start.found.peak_nbytes for start in plans)
