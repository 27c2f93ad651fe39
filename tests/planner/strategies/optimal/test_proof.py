"""The bound raised in parallel with the search: certified, no higher than the plan, and the same every time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ogc_plan.planner.limits import NO_LIMITS
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.fixed_order import FixedOrderSearch
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents
from ogc_plan.planner.strategies.optimal.problem_cache import ProblemCache
from ogc_plan.planner.strategies.optimal.proof import Proof, certifying
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from tests.graphs.builders import chain
from tests.oracles.brute import best_decisions, minimum_recompute_ns

BUDGET = 80
GRAPH, COSTS = chain(8, nbytes=10)
PROBLEM = build_problem(GRAPH, tuple(replace(c, forward_ns=5 + op) for op, c in enumerate(COSTS)), Scope.ACTIVATIONS)


def incumbents() -> Incumbents:
    """A search on a chain that knows a best plan and wants no gap."""
    wanted = replace(EFFORTS["default"], bound=replace(EFFORTS["default"].bound, accepted_gap=0.0))
    made = Incumbents(Evaluator(PROBLEM), BUDGET, effort=wanted)
    best = best_decisions(PROBLEM, BUDGET)
    assert best is not None
    made.offer_sequence(np.array(best.sequence, dtype=np.int64))
    return made


def advanced(work: float) -> int:
    made = Proof(incumbents(), StageRelaxation(PROBLEM))
    assert made.incumbents.best is not None
    made.advance(made.incumbents.best, work, NO_LIMITS)
    return made.bound_ns


def test_it_meets_the_exact_optimum_of_a_chain() -> None:
    assert advanced(1.0) == minimum_recompute_ns(PROBLEM, BUDGET)


def test_in_parallel_it_finds_what_it_finds_alone() -> None:
    bounds = {advanced(0.5)}
    for _ in range(3):
        with certifying(Proof(incumbents(), StageRelaxation(PROBLEM))) as begun:
            begun.go_on(0.5)
            bounds.add(begun.certified().bound_ns)
    assert len(bounds) == 1


@pytest.mark.parametrize("thorough", [True, False])
def test_a_thorough_effort_solves_in_integers_before_it_anneals(thorough: bool) -> None:
    run = FixedOrderSearch(incumbents(), ProblemCache(PROBLEM))
    run.incumbents.effort = replace(run.incumbents.effort, thorough=thorough)
    run.solve()
    assert run.incumbents.bound_ns == (minimum_recompute_ns(PROBLEM, BUDGET) if thorough else 0)
