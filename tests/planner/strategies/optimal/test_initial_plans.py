"""The plans of the other strategies that a search starts from."""

from __future__ import annotations

from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.baselines import checkpoint_sequential as segments
from ogc_plan.planner.strategies.baselines import greedy, ogc, sqrt_n
from ogc_plan.planner.strategies.baselines import keep_expensive as speed
from ogc_plan.planner.strategies.baselines import per_layer as layers
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.labelling import checkpoint_grids as cuts
from ogc_plan.planner.strategies.optimal.incumbents import Search
from ogc_plan.planner.strategies.optimal.initial_plans import Others
from ogc_plan.planner.strategies.optimal.problem_cache import Prepared
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels

from tests.graphs.builders import chain
from tests.graphs.layered_graphs import layered_graph

REPEATED = build_problem(*chain(12), Scope.ACTIVATIONS)
DIFFERENT = build_problem(*layered_graph(Random(0), 30, 4), Scope.ACTIVATIONS)


@pytest.mark.parametrize(("problem", "times"), [(REPEATED, 2), (DIFFERENT, 1)])
def test_layers_are_decided_together_only_where_any_is_repeated(
    problem: Problem, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    descend, asked = greedy.descend, list[list[list[int]]]()
    monkeypatch.setattr(
        greedy, "descend", lambda of, groups, budget: asked.append(groups) or descend(of, groups, budget)
    )
    prepared = Prepared(problem)
    Others(Search(prepared.evaluator, problem.floor_nbytes + 1), prepared).make()
    assert len(asked) == times


def test_strategies_that_know_no_budget_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Prepared(DIFFERENT)
    first, second = (Others(Search(prepared.evaluator, DIFFERENT.floor_nbytes * share), prepared) for share in (1, 2))
    first.make()
    for module in (ogc, speed, sqrt_n, segments):
        monkeypatch.setattr(module, "labels", None)
    second.make()
    assert len(prepared.unbudgeted) == len(list(cuts.grids(prepared.evaluator))) + 6


def test_what_a_stop_cut_short_is_not_taken_for_all_of_their_plans() -> None:
    prepared = Prepared(DIFFERENT)
    Others(Search(prepared.evaluator, DIFFERENT.floor_nbytes, stop=lambda: True), prepared).make()
    assert prepared.unbudgeted == ()


def test_without_repeated_layers_both_strategies_decide_alike() -> None:
    evaluator = Evaluator(DIFFERENT)
    budget = DIFFERENT.floor_nbytes * 3 // 2
    assert layers.labels(evaluator, budget).tolist() == greedy.labels(evaluator, budget).tolist()


def test_grids_are_compiled_before_a_clock_starts() -> None:
    prepare_kernels()
    assert cuts._spread.signatures
