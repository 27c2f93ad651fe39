"""The bound raised in parallel with the search: certified, no higher than the plan, and the same every time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ogc_plan.planner.limits import NO_LIMITS
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation, Evaluator
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.fixed_order import FixedOrderSearch
from ogc_plan.planner.strategies.optimal.incumbents import Candidate, Incumbents
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.proof import Proof, certifying
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.builders import chain
from tests.graphs.layered_graphs import tight_layers
from tests.oracles.brute import best_decisions, minimum_recompute_ns

BUDGET = 80


def chain_problem() -> Problem:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    costs = tuple(replace(cost, forward_ns=5 + op) for op, cost in enumerate(costs))
    return build_problem(graph, costs, Scope.ACTIVATIONS)


def incumbents(problem: Problem, budget_nbytes: int = BUDGET) -> Incumbents:
    """A search that knows a best plan and wants no gap."""
    wanted = replace(EFFORTS["default"], bound=replace(EFFORTS["default"].bound, accepted_gap=0.0))
    made = Incumbents(Evaluator(problem), budget_nbytes, effort=wanted)
    best = best_decisions(problem, budget_nbytes)
    assert best is not None
    made.offer_sequence(np.array(best.sequence, dtype=np.int64))
    return made


def proof() -> Proof:
    """Of a search on a chain."""
    problem = chain_problem()
    return Proof(incumbents(problem), StageRelaxation(problem))


def tight() -> Proof:
    """Of a search on layers that takes more work than a moment."""
    problem, budget = tight_layers(5)
    return Proof(Incumbents(Evaluator(problem), budget, effort=EFFORTS["default"]), StageRelaxation(problem))


def exact_ns() -> int:
    found = minimum_recompute_ns(chain_problem(), BUDGET)
    assert found is not None
    return found


def best(made: Proof) -> Candidate:
    found = made.incumbents.best
    assert found is not None
    return found


def costing(recompute_ns: int) -> Candidate:
    """What stands for a plan of that cost."""
    return Candidate(np.zeros(0, dtype=np.int64), Evaluation(0, recompute_ns, 0, -1))


def order(*, thorough: bool) -> FixedOrderSearch:
    """A search on a chain that knows a best plan and no bound."""
    problem = chain_problem()
    run = FixedOrderSearch(incumbents(problem), ProblemCache(problem))
    run.incumbents.effort = replace(run.incumbents.effort, thorough=thorough)
    return run


def test_it_meets_the_exact_optimum_of_a_chain() -> None:
    made = proof()
    made.advance(costing(made.incumbents.problem.store_all_ns), 1.0, NO_LIMITS)
    assert made.bound_ns == exact_ns()


def test_a_bound_is_not_lowered_to_the_cost_of_a_cheaper_plan() -> None:
    made = proof()
    made.advance(costing(made.incumbents.problem.store_all_ns), 1.0, NO_LIMITS)
    made.advance(costing(1), 1.0, NO_LIMITS)
    assert made.bound_ns > 1


def test_more_work_raises_the_bound_further() -> None:
    made, bounds = tight(), []
    for _ in range(3):
        made.advance(costing(10**15), 0.1, NO_LIMITS)
        bounds.append(made.bound_ns)
    assert bounds[0] < bounds[-1]


def test_points_are_handed_out_once() -> None:
    made = proof()
    made.advance(costing(made.incumbents.problem.store_all_ns), 1.0, NO_LIMITS)
    assert (len(made.taken()) > 0, made.taken()) == (True, ())


def test_no_point_is_handed_out_twice() -> None:
    made, taken = tight(), []
    for _ in range(3):
        made.advance(costing(10**15), 0.1, NO_LIMITS)
        taken += made.taken()
    assert len(taken) == len({id(point) for point in taken}) > 3


def test_it_starts_from_the_known_bound() -> None:
    problem = chain_problem()
    known = incumbents(problem)
    known.bound_ns = 3
    made = Proof(known, StageRelaxation(problem))
    made.advance(best(made), 0.0, NO_LIMITS)
    assert made.bound_ns == 3


def test_in_parallel_it_finds_what_it_finds_alone() -> None:
    alone = proof()
    alone.advance(best(alone), 0.5, NO_LIMITS)
    bounds = [alone.bound_ns]
    for _ in range(3):
        made = proof()
        with certifying(made) as begun:
            begun.go_on(0.5)
            bounds.append(begun.certified().bound_ns)
    assert len(set(bounds)) == 1


@pytest.mark.parametrize("thorough", [True, False])
def test_a_thorough_effort_solves_in_integers_before_it_anneals(thorough: bool) -> None:
    run = order(thorough=thorough)
    run.solve()
    assert run.incumbents.bound_ns == (exact_ns() if thorough else 0)


def test_a_point_in_integers_becomes_a_plan() -> None:
    run, run.incumbents.best = order(thorough=True), None
    run.incumbents.offer_sequence(np.array([*range(8), *(e for op in range(7, -1, -1) for e in (*range(op + 1), ~op))]))
    before = run.incumbents.best
    run.solve()
    assert before is not None
    assert before.found.recompute_ns > run.incumbents.best.found.recompute_ns == exact_ns()
