"""Orders made for a plan: the plan stays a plan of the step, and annealing in turn with its order lowers its cost."""

from __future__ import annotations

from random import Random

import numpy as np
from ogc_plan.planner.limits import NO_LIMITS
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.strategies.baselines.greedy import labels as greedy_labels
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal.alternate_orders import Reordered, reorder
from ogc_plan.planner.strategies.orders.order_for_plan import PlanOrders
from ogc_plan.planner.strategies.orders.reordered_problem import default_orders, ordered, restored
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.builders import random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.graphs.legal_orders import random_orders
from tests.graphs.problems import layered_problem
from tests.oracles.replay import replayed


def annealed(problem: Problem, share: float) -> tuple[Reordered, int]:
    """A plan of the default orders within a share of the peak of storing everything, as good as a short search gets."""
    evaluator = Evaluator(problem)
    budget = int(evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes * share)
    sequence = np.array(evaluator.decisions(greedy_labels(evaluator, budget)).sequence, dtype=np.int64)
    annealer = RetentionAnnealer(evaluator, 0)
    sequence, _ = annealer.run(sequence, budget, 5_000, heat=0.1, minimise_peak=True)
    sequence, found = annealer.run(sequence, budget, 20_000, heat=0.05)
    return Reordered(default_orders(problem), evaluator, sequence, found), budget


def moved(seed: int) -> bool:
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
    found, made = PlanOrders(problem).better(
        evaluator, orders, sequence, moves=2_000, seed=seed, guess=0.4 if seed % 3 else None
    )
    after = Evaluator(ordered(problem, found)).evaluate_sequence(made)
    decisions = restored(Decisions(tuple(made.tolist())), found)
    return before == after.recompute_ns and replayed(problem, decisions) == (after.peak_nbytes, after.recompute_ns)


def test_a_plan_stays_a_plan_of_the_same_cost_in_the_orders_made_for_it() -> None:
    assert [seed for seed in range(70_000, 70_060) if not moved(seed)] == []


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
