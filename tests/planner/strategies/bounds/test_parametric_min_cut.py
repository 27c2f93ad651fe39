"""The parametric cut bounds from below what exact search finds, and equals the one-stage linear program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.model import load_model
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation, Evaluator, Labels
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.relaxation import max_flow
from ogc_plan.planner.strategies.relaxation import parametric_min_cut as min_cut
from ogc_plan.planner.strategies.relaxation.max_flow import Flow, Network, checked_value, maximum_flow
from ogc_plan.planner.strategies.relaxation.min_cut_rounding import mixture, round_cut
from ogc_plan.planner.strategies.relaxation.parametric_min_cut import MinCut
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation

from models.light import NAMES, light_path
from tests.graphs.builders import SMALL_SIZES, chain, random_graph
from tests.oracles.brute import minimum_peak, minimum_recompute_ns

PATHS = Network(4, 0, 3, np.array([0, 0, 1, 2, 1]), np.array([1, 2, 3, 3, 2]))
CAPACITY = np.array([5, 4, 3, 6, 9])


def random_problem(seed: int, ops: tuple[int, int], **sizes: tuple[int, ...]) -> tuple[Problem, Random]:
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(*ops), **sizes)
    return build_problem(graph, costs, rng.choice(list(Scope))), rng


def budgets(problem: Problem, rng: Random, count: int) -> list[int]:
    """Between the floor and what keeps everything, in no order."""
    evaluator = Evaluator(problem)
    most = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes
    return [rng.randint(problem.floor_nbytes, max(most, problem.floor_nbytes)) for _ in range(count)]


def above_the_optimum(seed: int) -> list[str]:
    problem, rng = random_problem(seed, (2, 7), sizes=SMALL_SIZES)
    cut, smallest, found = MinCut(problem), minimum_peak(problem), []
    for budget in {smallest, *(b for b in budgets(problem, rng, 2) if b >= smallest)}:
        exact, bound = minimum_recompute_ns(problem, budget), cut.bound_ns(budget)
        if exact is None or bound > exact:
            found.append(f"seed {seed} budget {budget}: bound {bound}, optimum {exact}")
    return found


@pytest.mark.parametrize("first_seed", range(73_000, 73_400, 100))
def test_the_bound_never_exceeds_the_optimum(first_seed: int) -> None:
    assert [text for seed in range(first_seed, first_seed + 100) for text in above_the_optimum(seed)] == []


def unlike_the_linear_program(problem: Problem, wanted: list[int]) -> list[str]:
    cut, relaxed, found = MinCut(problem), StageRelaxation(problem), []
    for budget in wanted:
        relaxation, bound = relaxed.solve(budget, (0,)), cut.bound_ns(budget)
        if relaxation.solved and abs(bound - relaxation.bound_ns) > 1:
            found.append(f"budget {budget}: bound {bound}, linear program {relaxation.bound_ns}")
    return found


@pytest.mark.parametrize("first_seed", range(72_000, 72_100, 25))
def test_the_bound_is_that_of_the_one_stage_linear_program(first_seed: int) -> None:
    found = []
    for seed in range(first_seed, first_seed + 25):
        problem, rng = random_problem(seed, (2, 60))
        found += [f"seed {seed} {text}" for text in unlike_the_linear_program(problem, budgets(problem, rng, 4))]
    assert found == []


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_that_of_the_linear_program_on_networks(name: str) -> None:
    model = load_model(light_path(name), batch=32)
    problem, peak = model.problem(Scope.ACTIVATIONS), model.store_all().peak_activation_nbytes
    wanted = [peak * percent // 100 for percent in (30, 50, 80) if peak * percent // 100 >= problem.floor_nbytes]
    assert unlike_the_linear_program(problem, wanted) == []


def test_the_order_in_which_budgets_come_changes_no_bound() -> None:
    problem, rng = random_problem(3, (60, 60))
    wanted = budgets(problem, rng, 12)
    one, other = MinCut(problem), MinCut(problem)
    assert [one.bound_ns(b) for b in wanted] == [other.bound_ns(b) for b in reversed(wanted)][::-1]


def test_a_budget_that_keeps_everything_needs_no_recomputation() -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    assert MinCut(problem).bound_ns(1000) == 0


def test_an_op_that_must_run_once_is_never_priced_as_recomputed() -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    once = replace(graph, ops=tuple(replace(op, once=i == 3) for i, op in enumerate(graph.ops)))
    problem = build_problem(once, costs, Scope.ACTIVATIONS)
    assert all(known.kept[3] for known in MinCut(problem).bracket(problem.floor_nbytes))


def test_kept_sets_bracket_the_budget() -> None:
    problem, rng = random_problem(5, (80, 80))
    cut, fits = MinCut(problem), []
    for budget in budgets(problem, rng, 10):
        within, above = cut.bracket(budget)
        room = budget - int(problem.during_nbytes[0]) - problem.pinned_nbytes
        fits.append(within.nbytes <= room and (above is within or above.nbytes > room))
    assert all(fits)


def test_room_that_no_whole_storage_fills_counts_for_nothing() -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    cut = MinCut(build_problem(graph, costs, Scope.ACTIVATIONS))
    assert cut.bound_ns(70) == cut.bound_ns(79) > cut.bound_ns(80)


def test_a_graph_without_backward_has_a_bound_of_zero() -> None:
    graph, costs = chain(3)
    still = replace(graph, ops=tuple(replace(op, backward=None) for op in graph.ops), seeds=(), gradients=())
    assert MinCut(build_problem(still, costs, Scope.ACTIVATIONS)).bound_ns(100) == 0


def test_petabytes_are_priced_like_bytes() -> None:
    bounds = []
    for unit in (1, 2**50):
        graph, costs = chain(40, nbytes=unit, forward_ns=10**9)
        bounds.append(MinCut(build_problem(graph, costs, Scope.ACTIVATIONS)).bound_ns(17 * unit))
    assert bounds[0] == bounds[1] > 0


def test_the_value_of_a_maximum_flow_is_its_minimum_cut() -> None:
    found = maximum_flow(PATHS, CAPACITY)
    cut = int(CAPACITY[found.smallest[PATHS.tails] & ~found.smallest[PATHS.heads]].sum())
    assert checked_value(PATHS, CAPACITY, found.flow) == cut == 9


def more_than_fits(flow: np.ndarray) -> None:
    flow[[0, 2]] += 3


def lost_on_the_way(flow: np.ndarray) -> None:
    flow[0] -= 1


def made_from_nothing(flow: np.ndarray) -> None:
    flow[2] += 1


def backwards(flow: np.ndarray) -> None:
    flow[4] = -1


@pytest.mark.parametrize("tamper", [more_than_fits, lost_on_the_way, made_from_nothing, backwards])
def test_an_illegal_flow_proves_nothing(tamper: Callable[[np.ndarray], None]) -> None:
    flow = np.array([2, 4, 2, 4, 0])
    tamper(flow)
    assert checked_value(PATHS, CAPACITY, flow) is None


def test_a_flow_of_another_network_proves_nothing() -> None:
    assert checked_value(PATHS, CAPACITY, np.zeros(4, dtype=np.int64)) is None


def test_capacities_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="MAX_TOTAL"):
        checked_value(PATHS, np.full(5, 2**60), np.zeros(5, dtype=np.int64))


def test_a_wrong_flow_weakens_the_bound_but_never_falsifies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)

    def lie(network: Network, capacity: np.ndarray) -> Flow:
        found = max_flow.maximum_flow(network, capacity)
        return Flow(found.flow * 3, found.smallest, found.largest)

    honest = MinCut(problem).bound_ns(70)
    monkeypatch.setattr(min_cut, "maximum_flow", lie)
    assert MinCut(problem).bound_ns(70) <= honest


def roundings(problem: Problem, budget: int) -> list[tuple[Labels, Evaluation]]:
    """Every labelling that rounding offers, with what the evaluator says of it."""
    evaluator = Evaluator(problem)
    offered = []

    def offer(labels: Labels) -> Evaluation:
        found = evaluator.evaluate(labels)
        offered.append((labels.copy(), found))
        return found

    round_cut(MinCut(problem), evaluator, budget, offer)
    return offered


def test_rounding_a_long_chain_comes_within_a_hundredth_of_the_bound() -> None:
    rng = Random(7)
    graph, costs = chain(400, nbytes=10)
    sized = replace(graph, storages=tuple(Storage(s.name, rng.randint(1000, 9000)) for s in graph.storages))
    problem = build_problem(
        sized, tuple(replace(c, forward_ns=rng.randint(500, 1500)) for c in costs), Scope.ACTIVATIONS
    )
    budget = int(problem.nbytes.sum()) // 2
    best = min(found.recompute_ns for _, found in roundings(problem, budget) if found.peak_nbytes <= budget)
    assert best <= 1.01 * MinCut(problem).bound_ns(budget)


def test_roundings_leave_decided_storages_as_they_are() -> None:
    graph, costs = chain(30)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS, keep=frozenset({4}), recompute=frozenset({9}))
    offered = roundings(problem, problem.floor_nbytes * 3)
    assert {(int(labels[4]), int(labels[9])) for labels, _ in offered} == {(Label.KEEP, Label.DROP)}


def test_a_mixture_takes_all_of_the_larger_set_where_it_fits() -> None:
    graph, costs = chain(30)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    evaluator = Evaluator(problem)
    small, large = evaluator.labels(Label.DROP), evaluator.labels(Label.KEEP)
    mixed = mixture(evaluator, small, large, problem.producer, 10**6, evaluator.evaluate)
    assert (mixed == large).all()
