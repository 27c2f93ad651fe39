"""The exact search behind the bound tests: what it finds is real, and plain enumeration finds nothing better."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ogc_plan.planner.problem import Problem
from ogc_plan.planner.solution import Decisions

from tests.graphs.builders import keep_all
from tests.graphs.problems import chain_problem, random_problem
from tests.oracles.brute import best_decisions, minimum_peak, minimum_recompute_ns
from tests.oracles.replay import replayed


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


def test_the_decisions_found_reach_the_optimum_when_replayed() -> None:
    for seed in range(40_000, 40_100):
        problem, rng = random_problem(seed, 2, 8), Random(seed)
        smallest, loosest = minimum_peak(problem), replayed(problem, keep_all(problem.graph))[0]
        budget = rng.randint(smallest, loosest)
        decisions = best_decisions(problem, budget)
        assert decisions is not None, seed
        peak, recompute_ns = replayed(problem, decisions)
        assert peak <= budget, seed
        assert recompute_ns == minimum_recompute_ns(problem, budget), seed


def test_the_smallest_peak_is_reached_and_nothing_fits_below_it() -> None:
    for seed in range(41_000, 41_060):
        problem = random_problem(seed, 2, 8)
        smallest = minimum_peak(problem)
        decisions = best_decisions(problem, smallest)
        assert decisions is not None, seed
        assert replayed(problem, decisions)[0] == smallest, seed
        assert best_decisions(problem, smallest - 1) is None, seed
        assert problem.floor_nbytes <= smallest, seed


def test_enumeration_of_tiny_graphs_finds_nothing_better_and_as_good() -> None:
    """Where the search itself needs no more recomputations than were enumerated, both must agree exactly."""
    for seed in range(43_000, 43_020):
        problem = random_problem(seed, 2, 4)
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
    problem = chain_problem(4)
    # The first backward holds t2, the output and two gradients, which leaves room for t1 or t0 but not both;
    # with t1 kept, t0 is computed once more before the backward of op 1.
    assert (minimum_peak(problem), minimum_recompute_ns(problem, 50)) == (50, 1)
