"""The integer bound: what it closes is closed, what it cuts off is no plan, and it is never above exact search."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.branch_and_bound import UNLIMITED, Bound, begin, bound
from ogc_plan.planner.strategies.cover_cuts import Cover, rounded, separate
from ogc_plan.planner.strategies.linear_program import (
    Answer,
    Certifier,
    Interrupter,
    LinearProgram,
    Simplex,
    certified_bound,
    solve,
)
from ogc_plan.planner.strategies.propagation import propagate, rows_of
from ogc_plan.planner.strategies.stage_lp import StageLP

from tests.brute import minimum_peak, minimum_recompute_ns
from tests.builders import SMALL_SIZES, chain, keep_all, random_graph
from tests.test_brute import replayed

Case = tuple[Problem, int, int, tuple[int, ...], int]  # budget, optimum, stages, incumbent


@cache
def small_case(seed: int) -> Case:
    """A random problem at its smallest peak or a little above, with an incumbent at or above the optimum."""
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(3, 7), sizes=rng.choice((SMALL_SIZES, (1, 2, 3, 4, 5, 7, 9))))
    problem = build_problem(graph, costs, rng.choice(list(Scope)))
    smallest, loosest = minimum_peak(problem), replayed(problem, keep_all(graph))[0]
    budget = rng.choice((smallest, rng.randint(smallest, (smallest + loosest) // 2)))
    exact = minimum_recompute_ns(problem, budget)
    assert exact is not None
    positions = list(range(len(problem.backward_order)))
    stages = tuple(positions) if rng.random() < 0.6 else tuple(rng.sample(positions, rng.randint(0, len(positions))))
    return problem, budget, exact, stages, rng.choice((exact, exact + 1, exact + rng.randint(0, 20), 10**6))


def bounded(case: Case, solves: int = 60) -> Bound:
    problem, budget, _, stages, incumbent = case
    return bound(StageLP(problem), budget, incumbent, stages, solves)[0]


CASES = range(71_000, 71_120)


def cases() -> list[Case]:
    return [case for case in map(small_case, CASES) if case[0].backward_order]


def test_the_bound_never_exceeds_the_optimum() -> None:
    assert [case[1:] for case in cases() if bounded(case).bound_ns > case[2]] == []


def test_the_duals_of_an_interrupted_program_bound_no_more_than_the_optimum() -> None:
    above, interrupter = [], Interrupter()
    interrupter.interrupt()
    for problem, budget, exact, stages, _ in cases()[:40]:
        program = StageLP(problem).program(budget, stages).program
        answer = solve(program, interrupter=interrupter)
        above += [answer] if answer.solved or certified_bound(program, answer.dual) > exact else []
    assert above == []


def test_what_is_being_solved_is_interrupted_once() -> None:
    ended, interrupter = [], Interrupter()
    with interrupter.over(lambda: ended.append("before")):
        pass
    with interrupter.over(lambda: ended.append("now")):
        interrupter.interrupt()
    interrupter.interrupt()
    assert ended == ["now"]


def test_the_workspace_of_reruns_counts_against_what_is_held_through_them() -> None:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    found = []
    for workspace in (0, 35):
        heavier = tuple(replace(cost, forward_workspace_nbytes=workspace) for cost in costs)
        problem = build_problem(graph, heavier, Scope.ACTIVATIONS)
        found.append(bound(StageLP(problem), 70, 10**6, (0, 4), 100)[0].bound_ns)
    assert found[0] < found[1]


def test_a_search_cut_short_is_still_a_bound() -> None:
    assert [case[1:] for case in cases() for solves in (1, 3) if bounded(case, solves).bound_ns > case[2]] == []


def test_a_search_taken_up_again_with_better_incumbents_is_still_a_bound() -> None:
    above = []
    for seed, (problem, budget, exact, stages, _) in enumerate(cases()):
        boxes, rng = begin(StageLP(problem), budget, 4 * exact + 50, stages), Random(seed)
        for incumbent in (4 * exact + 50, 2 * exact + 9, exact + rng.randint(0, 3)):
            boxes.improved(incumbent)
            found = boxes.run(UNLIMITED, boxes.work + rng.randint(1, 10**8))
            above += [seed] if found.bound_ns > min(exact, incumbent) else []
    assert above == []


def test_a_search_taken_up_again_closes_what_one_in_one_go_closes() -> None:
    unclosed = []
    for seed, (problem, budget, _, stages, incumbent) in enumerate(cases()[:60]):
        boxes = begin(StageLP(problem), budget, incumbent, stages)
        while not (found := boxes.run(boxes.solves + 1, UNLIMITED)).closed and not boxes.heap[0][3].final:
            assert boxes.solves < 1000
        if found.bound_ns != bound(StageLP(problem), budget, incumbent, stages)[0].bound_ns:
            unclosed.append(seed)
    assert unclosed == []


def test_branching_reaches_optima_that_the_linear_program_does_not() -> None:
    relaxed = sum(StageLP(case[0]).solve(case[1], case[3]).bound_ns >= case[2] for case in cases())
    assert sum(bounded(case).bound_ns >= case[2] for case in cases()) > relaxed + len(cases()) // 8


def test_the_same_search_gives_the_same_answer() -> None:
    case = next(case for case in cases() if bounded(case).nodes > 2)
    first, second = bounded(case), bounded(case)
    assert (first.bound_ns, first.solves, first.nodes) == (second.bound_ns, second.solves, second.nodes)


@pytest.mark.parametrize("slow", [0, 1])
def test_neither_side_of_a_split_needs_to_know_how_fast_the_other_is(
    slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, budget, _, stages, incumbent = next(case for case in cases() if bounded(case).nodes > 2)
    expected = bound(StageLP(problem), budget, incumbent, stages, work=4_000_000)[0]
    solved, boxes = Simplex.solve, begin(StageLP(problem), budget, incumbent, stages)

    def late(simplex: Simplex, most_work: int = UNLIMITED) -> Answer:
        time.sleep(0.003 if boxes.sides.index(simplex) == slow else 0)
        return solved(simplex, most_work)

    monkeypatch.setattr(Simplex, "solve", late)
    found = boxes.run(UNLIMITED, 4_000_000)
    assert (found.bound_ns, found.solves, found.nodes) == (expected.bound_ns, expected.solves, expected.nodes)


def test_points_hold_a_value_for_every_storage_at_every_stage() -> None:
    problem, budget, _, stages, _ = next(case for case in cases() if len(case[3]) > 2)
    relaxed = StageLP(problem)
    found, staged = bound(relaxed, budget, 10**6, stages)
    held = [relaxed.relaxation(staged, point, found.bound_ns, True).held for point in found.points]
    assert {shape.shape for shape in held} == {(len(staged.stages), len(problem.graph.storages))}


def knapsack(seed: int) -> tuple[list[tuple[int, int]], int, list[Cover]]:
    """A random memory row and the cuts found at a fractional point of it."""
    rng = Random(seed)
    size = rng.randint(3, 9)
    weights = [rng.choice((1, 2, 3, 4, 4, 6, 7, 9, 13)) for _ in range(size)]
    room = rng.randint(1, sum(weights) - 1)
    terms = [(-weight, variable) for variable, weight in enumerate(weights)]
    program = LinearProgram()
    for weight in weights:
        program.variable(-rng.randint(1, 3) * weight - rng.randint(0, 2))
    program.at_least(-room, terms)
    point = solve(program).primal
    return terms, room, separate(terms, -room, point) + rounded(terms, -room, point)


def test_cuts_hold_for_every_set_that_fits() -> None:
    broken = []
    for seed in range(400):
        terms, room, cuts = knapsack(seed)
        for chosen in product((0, 1), repeat=len(terms)):
            if sum(-weight * chosen[variable] for weight, variable in terms) > room:
                continue
            broken += [seed for cut in cuts if sum(c * chosen[v] for c, v in cut.terms) > cut.limit]
    assert broken == []


def test_cuts_are_found_where_the_point_is_fractional() -> None:
    assert sum(bool(knapsack(seed)[2]) for seed in range(400)) > 250


def rows(seed: int) -> tuple[LinearProgram, Random]:
    rng = Random(seed)
    program = LinearProgram()
    count = rng.randint(3, 8)
    for _ in range(count):
        program.variable(rng.randint(0, 9))
    for _ in range(rng.randint(2, 8)):
        chosen = rng.sample(range(count), rng.randint(1, count))
        program.at_least(rng.randint(-6, 4), [(rng.choice((-5, -2, -1, 1, 1, 3)), v) for v in chosen], soft=True)
    return program, rng


def satisfies(program: LinearProgram, point: tuple[int, ...]) -> bool:
    return all(
        sum(c * point[v] for c, v in terms) >= lower
        for terms, lower in zip(program.by_row(), program.lower, strict=True)
    )


def test_propagation_loses_no_solution() -> None:
    lost = []
    for seed in range(300):
        program, rng = rows(seed)
        low, high = np.zeros(len(program.cost), dtype=np.int8), np.ones(len(program.cost), dtype=np.int8)
        fixed = rng.randrange(len(low))
        low[fixed] = high[fixed] = rng.randint(0, 1)
        points = [p for p in product((0, 1), repeat=len(low)) if p[fixed] == low[fixed] and satisfies(program, p)]
        alive = propagate(rows_of(program), low, high, np.zeros(0, dtype=np.int64))
        lost += [seed for p in points if not alive or (np.array(p) < low).any() or (np.array(p) > high).any()]
    assert lost == []


def test_the_bound_of_a_box_holds_for_every_solution_in_it() -> None:
    above = []
    for seed in range(300):
        program, rng = rows(seed)
        simplex = Simplex(program, 50)
        low = np.array([float(rng.random() < 0.2) for _ in program.cost])
        high = np.maximum(low, [float(rng.random() < 0.8) for _ in program.cost])
        simplex.set_bounds(low, high)
        proven = Certifier(program).certify(simplex.solve().dual, low.astype(np.int8), high.astype(np.int8)).bound_ns
        for p in product((0, 1), repeat=len(low)):
            inside = (np.array(p) >= low).all() and (np.array(p) <= high).all()
            if inside and satisfies(program, p) and proven > sum(c * x for c, x in zip(program.cost, p, strict=True)):
                above.append(seed)
    assert above == []


def test_a_simplex_with_rows_added_and_boxes_changed_answers_what_a_fresh_one_does() -> None:
    differing = []
    for seed in range(200):
        program, rng = rows(seed)
        simplex = Simplex(program, 10**6)
        low = np.array([float(rng.random() < 0.2) for _ in program.cost])
        simplex.set_bounds(low, np.ones(len(low)))
        simplex.solve()
        row = list(zip((1, 2), rng.sample(range(len(low)), 2), strict=True))
        simplex.add_row(1, row, soft=False)
        program.at_least(1, row)
        fresh = Simplex(program, 10**6)
        fresh.set_bounds(low, np.ones(len(low)))
        answers = simplex.solve(), fresh.solve()
        ones = np.ones(len(low), dtype=np.int8)
        proven = [Certifier(program).certify(answer.dual, low.astype(np.int8), ones).bound_ns for answer in answers]
        costs = [float(np.dot(program.cost, answer.primal)) for answer in answers]
        unbroken = proven[1] < 1000  # else the rows contradict each other, and breaking them has its price
        if proven[0] != proven[1] or (unbroken and max(abs(cost - proven[0]) for cost in costs) > 1.001):
            differing.append(seed)
    assert differing == []


@pytest.mark.parametrize("scale", [1, 10**9, 10**16])
def test_machine_integers_and_long_ones_certify_the_same(scale: int) -> None:
    rng = np.random.default_rng(0)
    program = LinearProgram()
    for _ in range(12):
        program.variable(int(rng.integers(0, 10**6)))
    for _ in range(9):
        program.at_least(int(rng.integers(-5, 5)) * scale, [(int(rng.integers(-9, 9)) * scale, v) for v in range(12)])
    dual = rng.random(9) * 1000 / scale
    whole, part = np.floor(dual).astype(np.int64), np.floor(dual % 1 * 2**44).astype(np.int64)
    certifier = Certifier(program)
    slow = certifier._reduced_slowly(whole, part)
    assert [list(map(int, got)) for got in certifier._reduced(whole, part)] == [list(map(int, s)) for s in slow]
