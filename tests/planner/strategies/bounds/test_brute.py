"""The exact search behind the bound tests: what it finds is real, and plain enumeration finds nothing better."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions

from tests.graphs.builders import SMALL_SIZES, chain, keep_all, random_graph
from tests.oracles.brute import best_decisions, minimum_peak, minimum_recompute_ns


def small_problem(seed: int, low: int, high: int) -> tuple[Random, Problem]:
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(low, high), sizes=SMALL_SIZES)
    return rng, build_problem(graph, costs, rng.choice(list(Scope)))


def replayed(problem: Problem, decisions: Decisions) -> tuple[int, int]:
    """(peak in bytes under the problem's scope, recomputation ns)."""
    timeline = simulate(problem.graph, problem.costs, lower(problem.graph, decisions))
    total = problem.scope is Scope.TOTAL
    return timeline.peak_total_nbytes if total else timeline.peak_activation_nbytes, timeline.recompute_ns


def with_recomputations(problem: Problem, most: int) -> Iterator[Decisions]:
    """Every order with at most ``most`` recomputations in all, by plain recursion over what may come next."""
    planned = keep_all(problem.graph).sequence
    count = problem.op_count

    def extend(done: tuple[int, ...], position: int, left: int) -> Iterator[Decisions]:
        if position == len(planned):
            yield Decisions(done)
            return
        yield from extend((*done, planned[position]), position + 1, left)
        if left:
            for op in (op for op in range(min(position, count)) if not problem.graph.ops[op].once):
                yield from extend((*done, op), position, left - 1)

    return extend((), 0, most)


@pytest.mark.parametrize("first_seed", range(40_000, 40_600, 200))
def test_the_decisions_found_reach_the_optimum_when_replayed(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 200):
        rng, problem = small_problem(seed, 2, 8)
        smallest, loosest = minimum_peak(problem), replayed(problem, keep_all(problem.graph))[0]
        budget = rng.randint(smallest, loosest)
        decisions = best_decisions(problem, budget)
        assert decisions is not None, seed
        peak, recompute_ns = replayed(problem, decisions)
        assert peak <= budget, seed
        assert recompute_ns == minimum_recompute_ns(problem, budget), seed


def test_the_smallest_peak_is_reached_and_nothing_fits_below_it() -> None:
    for seed in range(41_000, 41_200):
        _, problem = small_problem(seed, 2, 8)
        smallest = minimum_peak(problem)
        decisions = best_decisions(problem, smallest)
        assert decisions is not None, seed
        assert replayed(problem, decisions)[0] == smallest, seed
        assert best_decisions(problem, smallest - 1) is None, seed
        assert problem.floor_nbytes <= smallest, seed


def test_nothing_is_recomputed_where_everything_fits() -> None:
    for seed in range(42_000, 42_100):
        _, problem = small_problem(seed, 2, 8)
        assert minimum_recompute_ns(problem, replayed(problem, keep_all(problem.graph))[0]) == 0, seed


@pytest.mark.parametrize("first_seed", range(43_000, 43_120, 30))
def test_enumeration_of_tiny_graphs_finds_nothing_better_and_as_good(first_seed: int) -> None:
    """Where the search itself needs no more recomputations than were enumerated, both must agree exactly."""
    for seed in range(first_seed, first_seed + 30):
        _, problem = small_problem(seed, 2, 4)
        most = 4 if problem.op_count < 4 else 3
        best: dict[int, int] = {}  # peak -> least recomputation
        for decisions in with_recomputations(problem, most):
            peak, recompute_ns = replayed(problem, decisions)
            best[peak] = min(best.get(peak, recompute_ns), recompute_ns)
        for budget in sorted(best):
            enumerated = min(ns for peak, ns in best.items() if peak <= budget)
            found, exact = best_decisions(problem, budget), minimum_recompute_ns(problem, budget)
            assert found is not None, (seed, budget)
            assert exact is not None, (seed, budget)
            assert exact <= enumerated, (seed, budget)
            if len(found.sequence) - len(keep_all(problem.graph).sequence) <= most:
                assert exact == enumerated, (seed, budget)
        assert minimum_peak(problem) <= min(best), seed


def test_a_chain_at_its_smallest_peak_by_hand() -> None:
    graph, costs = chain(4, nbytes=10, forward_ns=1)
    problem = build_problem(graph, costs, Scope.ACTIVATIONS)
    # The first backward holds t2, the output and two gradients, which leaves room for t1 or t0 but not both;
    # with t1 kept, t0 is computed once more before the backward of op 1.
    assert (minimum_peak(problem), minimum_recompute_ns(problem, 50)) == (50, 1)
