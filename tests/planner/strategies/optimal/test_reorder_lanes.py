"""Orders made for several plans, several times each: the best of all, whichever run ends first."""

from __future__ import annotations

import threading
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.optimal import reorder_lanes
from ogc_plan.planner.strategies.optimal.alternate_orders import Reordered, reorder
from ogc_plan.planner.strategies.optimal.incumbents import Search
from ogc_plan.planner.strategies.optimal.reorder_lanes import reorder_in_lanes
from ogc_plan.planner.strategies.orders.reordered_problem import default_orders

from tests.graphs.layered_graphs import layered_graph
from tests.planner.strategies.optimal.test_alternate_orders import annealed

ROUNDS, MOVES = 2, 20_000


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build_problem(*layered_graph(Random(5), 50, 5), Scope.ACTIVATIONS)


@pytest.fixture(scope="module")
def starts(problem: Problem) -> list[Reordered]:
    """A plan that was annealed, and the one that holds nothing."""
    evaluator = Evaluator(problem)
    sequence = np.array(evaluator.decisions(evaluator.labels(Label.DROP)).sequence, dtype=np.int64)
    nothing = Reordered(default_orders(problem), evaluator, sequence, evaluator.evaluate_sequence(sequence))
    return [nothing, annealed(problem, 0.5)[0]]


def peak(problem: Problem, starts: list[Reordered], restarts: int) -> int:
    search = Search(Evaluator(problem), 1)
    return reorder_in_lanes(
        problem, starts, search, 1, rounds=ROUNDS, restarts=restarts, iterations=MOVES
    ).found.peak_nbytes


def test_the_first_run_from_a_plan_is_that_of_reorder(problem: Problem, starts: list[Reordered]) -> None:
    alone = reorder(problem, starts[1], 1, rounds=ROUNDS, iterations=MOVES, seed=0, stop=never)
    assert peak(problem, starts[1:], 1) == alone.found.peak_nbytes


def test_each_run_from_a_plan_has_random_numbers_of_its_own(
    problem: Problem, starts: list[Reordered], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(reorder_lanes, "reorder", lambda *_, seed, **__: seeds.append(seed) or starts[0])
    peak(problem, starts[:1], 6)
    assert len(set(seeds)) == 6


def test_each_run_anneals_as_long_as_it_is_told(
    problem: Problem, starts: list[Reordered], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(reorder_lanes, "reorder", lambda *_, iterations, **__: given.append(iterations) or starts[0])
    search = Search(Evaluator(problem), 1)
    reorder_in_lanes(problem, starts[:1], search, 1, rounds=ROUNDS, restarts=2, iterations=123)
    assert given == [123, 123]


@pytest.mark.parametrize("turn", [1, -1])
def test_the_best_of_all_starts_counts(problem: Problem, starts: list[Reordered], turn: int) -> None:
    assert peak(problem, starts[::turn], 2) == min(peak(problem, [start], 2) for start in starts)


def test_without_runs_the_best_start_is_left(problem: Problem, starts: list[Reordered]) -> None:
    assert peak(problem, starts, 0) == min(start.found.peak_nbytes for start in starts)


def test_the_plan_does_not_depend_on_how_many_run_at_once(
    problem: Problem, starts: list[Reordered], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = peak(problem, starts, 3)
    monkeypatch.setattr(reorder_lanes, "LANES", 1)
    assert peak(problem, starts, 3) == together


def test_a_search_that_is_stopped_ends_every_run_after_its_round(
    problem: Problem, starts: list[Reordered], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(reorder_lanes, "reorder", lambda *_, stop, **__: ended.append(stop()) or starts[0])
    search = Search(Evaluator(problem), 1)
    search.stopped_early = True
    reorder_in_lanes(problem, starts, search, 1, rounds=ROUNDS, restarts=2, iterations=MOVES)
    assert ended == [True] * 4


def test_two_runs_from_one_plan_do_not_share_working_memory(
    problem: Problem, starts: list[Reordered], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Evaluator] = []
    met = threading.Barrier(2, timeout=60)

    def run(_: Problem, start: Reordered, *__: object, **___: object) -> Reordered:
        seen.append(start.evaluator)
        met.wait()
        return start

    monkeypatch.setattr(reorder_lanes, "reorder", run)
    reorder_in_lanes(problem, starts[:1], Search(Evaluator(problem), 1), 1, rounds=ROUNDS, restarts=2, iterations=MOVES)
    assert len({id(evaluator.scratch) for evaluator in seen}) == 2
