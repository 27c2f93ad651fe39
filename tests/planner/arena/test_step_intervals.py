"""Lives of a step: at every moment they add up to what the replay counts, and each lies where its steps say."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.arena.step_intervals import LifeKind, StepLives, step_lives
from ogc_plan.planner.schedule import Schedule, lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.training_graph import TrainingGraph

from tests.graphs.builders import Costs, chain, diamond, keep_all, random_decisions, training_graphs
from tests.graphs.gradient_graphs import gradient_problem


def sums(found: StepLives, *, activations: bool) -> tuple[int, ...]:
    """For each step the most bytes alive at any of its moments."""
    changes = [0] * (found.moments + 1)
    for life in found.lives:
        if life.activation or not activations:
            changes[life.begin] += life.nbytes
            changes[life.end] -= life.nbytes
    alive, held = [], 0
    for change in changes:
        held += change
        alive.append(held)
    ends = (*found.first_moment[1:], found.moments)
    return tuple(max(alive[begin:end]) for begin, end in zip(found.first_moment, ends, strict=True))


def agrees(graph: TrainingGraph, costs: Costs, schedule: Schedule) -> None:
    """The replay's timeline is the sum of the lives; the total is, where one size of workspace fits both."""
    found = step_lives(graph, costs, schedule)
    assert sums(found, activations=True) == simulate(graph, costs, schedule).activation_nbytes
    one_size = tuple(replace(cost, backward_activation_workspace_nbytes=None) for cost in costs)
    total = simulate(graph, one_size, schedule).total_nbytes
    stationary = graph.stationary.total_nbytes
    assert sums(step_lives(graph, one_size, schedule), activations=False) == tuple(n - stationary for n in total)


@settings(max_examples=300, deadline=None)
@given(training_graphs(max_ops=12))
def test_lives_add_up_to_the_timeline_of_random_plans(drawn: tuple[TrainingGraph, Costs, Random]) -> None:
    graph, costs, rng = drawn
    agrees(graph, costs, lower(graph, random_decisions(rng, graph)))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_lives_add_up_whatever_backwards_do_with_gradients(seed: int) -> None:
    problem = gradient_problem(seed)
    if problem is not None:
        agrees(problem.graph, problem.costs, lower(problem.graph, keep_all(problem.graph)))


def test_each_recomputation_is_a_new_life() -> None:
    graph, costs = chain(3)
    found = step_lives(graph, costs, lower(graph, Decisions((0, 1, 2, ~2, 0, ~1, ~0))))
    first = [life for life in found.lives if life.names == ("t0",)]
    assert [(life.first_step, life.last_step) for life in first] == [(0, 2), (5, 9)]


def test_a_life_is_named_by_its_kind_and_all_gradients_that_share_it() -> None:
    graph, costs = diamond()
    found = step_lives(graph, costs, lower(graph, keep_all(graph)))
    gradients = [life.names for life in found.lives if life.kind is LifeKind.GRADIENT]
    assert gradients[0] == ("gradient of add", "gradient of left", "gradient of right")  # an addition's gradients
    assert gradients.count(("gradient of top",)) == 3  # both contributions and their sum


def test_outputs_and_gradients_that_nothing_releases_escape() -> None:
    graph, costs = chain(2, parameter_nbytes=4)
    found = step_lives(graph, costs, lower(graph, keep_all(graph)))
    escaping = {life.names[0]: life.activation for life in found.lives if life.escapes}
    assert escaping == {"t1": True, "gradient of w0": False, "gradient of w1": False}


def test_workspace_is_alive_while_its_op_computes_and_not_during_the_sums_after_it() -> None:
    graph, costs = diamond()
    costs = tuple(replace(cost, backward_workspace_nbytes=6, forward_workspace_nbytes=5) for cost in costs)
    found = step_lives(graph, costs, lower(graph, keep_all(graph)))
    scratch = [life for life in found.lives if life.kind is LifeKind.WORKSPACE]
    assert [(life.nbytes, life.names) for life in scratch[:5]] == [
        (5, ("top",)), (5, ("left",)), (5, ("right",)), (5, ("add",)), (6, ("add",)),
    ]  # fmt: skip
    assert {life.end - life.begin for life in scratch} == {1}
    assert {found.first_moment[life.first_step] for life in scratch} == {life.begin for life in scratch}
