"""Decisions that get more recomputations until they fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner import load_model
from ogc_plan.planner.model import Model, store_all_decisions
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.replan.into_budget import into_budget
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions

from models.light import light_path
from tests.graphs.builders import chain, random_decisions, training_graphs


@pytest.fixture(scope="module")
def some() -> Model:
    """A model whose training graph the tests replace."""
    return load_model(light_path("squeezenet"), batch=1)


def peak(model: Model, decisions: Decisions) -> int:
    return simulate(model.training, model.costs, lower(model.training, decisions)).peak_total_nbytes


@given(drawn=training_graphs(max_ops=25), share=st.floats(0.6, 1.0))
def test_what_is_found_keeps_the_limit(some: Model, drawn: tuple, share: float) -> None:  # type: ignore[type-arg]
    graph, costs, rng = drawn
    model, decisions = replace(some, training=graph, costs=costs), random_decisions(rng, graph)
    limit = int(share * peak(model, decisions))
    found = into_budget(model, decisions, Scope.TOTAL, limit)
    assert found is None or peak(model, found) <= limit


@given(drawn=training_graphs(max_ops=25), share=st.floats(0.6, 1.0))
def test_the_given_runs_stay_in_their_order(some: Model, drawn: tuple, share: float) -> None:  # type: ignore[type-arg]
    graph, costs, rng = drawn
    model, decisions = replace(some, training=graph, costs=costs), random_decisions(rng, graph)
    found = into_budget(model, decisions, Scope.TOTAL, int(share * peak(model, decisions)))
    rest = iter(() if found is None else found.sequence)
    assert found is None or all(entry in rest for entry in decisions.sequence)


def test_a_chain_that_stores_everything_is_brought_to_two_thirds(some: Model) -> None:
    graph, costs = chain(12)
    model = replace(some, training=graph, costs=costs)
    decisions = store_all_decisions(graph)
    assert into_budget(model, decisions, Scope.TOTAL, 2 * peak(model, decisions) // 3) is not None


def test_decisions_that_fit_stay(some: Model) -> None:
    graph, costs = chain(12)
    model = replace(some, training=graph, costs=costs)
    decisions = store_all_decisions(graph)
    assert into_budget(model, decisions, Scope.TOTAL, peak(model, decisions)) == decisions


def test_a_limit_that_nothing_reaches_gives_none(some: Model) -> None:
    graph, costs = chain(12)
    model = replace(some, training=graph, costs=costs)
    assert into_budget(model, store_all_decisions(graph), Scope.TOTAL, 10) is None
