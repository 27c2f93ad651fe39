"""The floor of all backward orders is the least of theirs, or below, and found without looking at each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from ogc_plan.planner.dependencies import backward_predecessors, is_legal
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.peak_bounds.gradient_lifetimes import GradientLives
from ogc_plan.planner.peak_bounds.gradients_after import GradientSets
from ogc_plan.planner.peak_bounds.order_floor import LeastHeld, OrderFloor, low_order
from ogc_plan.planner.problem import Problem, Scope, backward_workspace_nbytes, build_problem
from ogc_plan.planner.training_graph import (
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    OpCost,
    Stationary,
    TrainingGraph,
    TrainingOp,
)

from tests.graphs.gradient_graphs import gradient_problem
from tests.planner.strategies.search.test_reordered_problem import branching_problem

COUNT = 100


def every_order(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All legal backward orders, of a small graph."""
    members = problem.graph.backward_order
    before = [set(found) for found in backward_predecessors(problem.graph)]

    def onwards(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == len(members):
            yield done
        for index in members:
            if index not in done and before[index] <= set(done):
                yield from onwards((*done, index))

    return onwards(())


def under(problem: Problem, order: tuple[int, ...]) -> Problem:
    return build_problem(
        problem.graph,
        problem.costs,
        problem.scope,
        keep=problem.keep,
        recompute=problem.recompute,
        backward_order=order,
    )


def floor_under(problem: Problem, order: tuple[int, ...]) -> int:
    return under(problem, order).floor_of_order.nbytes


def search(problem: Problem) -> OrderFloor:
    lives = GradientLives(problem.graph, parameters=problem.scope is Scope.TOTAL)
    workspace = [backward_workspace_nbytes(cost, problem.scope) for cost in problem.costs]
    nothing = [0] * problem.op_count
    return OrderFloor(lives, problem.base_nbytes, workspace, nothing)


def found(problem: Problem, most_sets: int = 100_000) -> LeastHeld:
    return search(problem).search(0, most_sets)


def problems(count: int = COUNT) -> list[tuple[int, Problem]]:
    return [(seed, branching_problem(seed, 4, 8)[1]) for seed in range(63_000, 63_000 + count)]


def odd_problems(first: int, count: int) -> Iterator[tuple[int, Problem, list[tuple[int, ...]]]]:
    """Random graphs of gradients with all of their orders, where these are not many."""
    for seed in range(first, first + count):
        problem = gradient_problem(seed)
        orders = [] if problem is None else list(islice(every_order(problem), 100))
        if problem is not None and 0 < len(orders) < 100:
            yield seed, problem, orders


def charged_too_much(problem: Problem, order: tuple[int, ...]) -> list[int]:
    """Backwards of an order that are taken to find more gradients, or to need more, than they do."""
    lives, fixed = GradientLives(problem.graph, parameters=problem.scope is Scope.TOTAL), under(problem, order)
    sets = GradientSets(lives)
    alive, done, wrong = sets.begun(), 0, []
    before, at = fixed.between_nbytes - fixed.base_nbytes, fixed.during_nbytes - fixed.base_nbytes
    for index, between, during in zip(order, before.tolist(), at.tolist(), strict=True):
        change = sets.change(done, index)
        workspace = backward_workspace_nbytes(problem.costs[index], problem.scope)
        fresh, total = lives.fresh_nbytes(index) + workspace, sets.sum_nbytes(done, index)
        if alive > between or alive + max(fresh, change + total) > during:
            wrong.append(index)
        alive, done = alive + change, done | 1 << index
    return wrong


def test_no_step_of_any_order_is_charged_too_much() -> None:
    wrong = [
        f"seed {seed}: backward {index} in {order}"
        for seed, problem, orders in odd_problems(0, 500)
        for order in orders
        for index in charged_too_much(problem, order)
    ]
    assert wrong == []


def test_no_order_of_odd_graphs_has_a_lower_one() -> None:
    above = [
        seed
        for seed, problem, orders in odd_problems(5_000, 500)
        if problem.floor.nbytes > min(floor_under(problem, order) for order in orders)
    ]
    assert above == []


def test_what_an_op_adds_up_of_its_own_is_not_there_when_another_sum_is_made() -> None:
    shared = [GradientEdge(gradient, 0) for gradient in (1, 2, 2, 3)]
    problem = of_gradients(
        [(15, False), (10, False), (4, False), (1, False)],
        {
            0: BackwardOp((), (1, 2, 3), ()),
            1: BackwardOp((), (0,), tuple(shared)),
            2: BackwardOp((), (), (GradientEdge(0), GradientEdge(1))),
        },
    )
    assert found(problem).nbytes <= problem.floor_of_order.nbytes == 35


def test_no_backward_order_has_a_lower_one() -> None:
    above = [
        seed
        for seed, problem in problems()
        if min(floor_under(problem, order) for order in every_order(problem)) < problem.floor.nbytes
    ]
    assert above == []


@pytest.mark.parametrize("seed", [63_718, 64_546, 66_932, 63_505, 64_417, 64_447])
def test_shared_and_ended_gradients_are_not_counted_twice(seed: int) -> None:
    _, problem = branching_problem(seed, 4, 9)
    assert problem.floor.nbytes <= min(floor_under(problem, order) for order in every_order(problem))


def test_it_is_the_floor_of_some_order_nearly_always() -> None:
    least = [min(floor_under(problem, order) for order in every_order(problem)) for _, problem in problems()]
    reached = [problem.floor.nbytes == nbytes for (_, problem), nbytes in zip(problems(), least, strict=True)]
    assert sum(reached) >= 0.9 * COUNT


def test_it_is_above_what_the_dependences_alone_force() -> None:
    lifted = [problem for _, problem in problems(150) if "in the backward order" in problem.floor.step]
    assert len(lifted) > 10


def lowered(problem: Problem) -> tuple[int, ...]:
    """The order that short searches between the floor and that of the default order find, else the default one."""
    return low_order(search(problem), (problem.floor_nbytes, problem.floor_of_order.nbytes)) or problem.backward_order


@pytest.mark.parametrize("order_of", [lambda problem: found(problem).order, lowered], ids=["of the floor", "low"])
def test_an_order_that_is_found_is_legal(order_of: Callable[[Problem], tuple[int, ...]]) -> None:
    illegal = [
        seed
        for seed, problem in problems()
        if not is_legal(order_of(problem), backward_predecessors(problem.graph), problem.graph.backward_order)
    ]
    assert illegal == []


def test_a_low_order_has_about_the_least_floor_nearly_always() -> None:
    near = [
        floor_under(problem, lowered(problem))
        <= problem.floor_nbytes + (problem.floor_of_order.nbytes - problem.floor_nbytes) // 64
        for _, problem in problems()
    ]
    assert sum(near) >= 0.9 * COUNT


def test_a_search_that_is_cut_short_proves_no_more_than_a_whole_one() -> None:
    pairs = [(found(problem, most).nbytes, found(problem).nbytes) for _, problem in problems() for most in (1, 3, 10)]
    assert all(short <= whole for short, whole in pairs)


def of_gradients(sizes: list[tuple[int, bool]], backward: dict[int, BackwardOp]) -> Problem:
    """Ops that hold nothing but the gradients named by ``backward``: (bytes, whether of a parameter) of each."""
    storages = tuple(Storage(f"t{op}", 0) for op in backward)
    ops = tuple(
        TrainingOp(f"op{op}", "Op", tuple(range(op)), (op,), backward[op], forward=op) for op in sorted(backward)
    )
    gradients = tuple(
        Gradient(f"g{number}", nbytes, parameter=parameter) for number, (nbytes, parameter) in enumerate(sizes)
    )
    graph = TrainingGraph(ops, storages, gradients, (), (), Stationary(), tuple((f"t{op}",) for op in range(len(ops))))
    graph.validate()
    return build_problem(graph, (OpCost(1),) * len(ops), Scope.ACTIVATIONS)


def test_a_sum_that_a_backward_spells_out_is_not_there_when_another_is_made() -> None:
    problem = of_gradients(
        [(10, False)] * 4,
        {
            0: BackwardOp((), (0, 3, 1, 2), ()),
            1: BackwardOp((), (), (GradientEdge(0), GradientEdge(2)), (GradientSum(3, (1, 2)),)),
            2: BackwardOp((), (), (GradientEdge(0), GradientEdge(1))),
        },
    )
    assert found(problem).nbytes <= problem.floor_of_order.nbytes == 50


def test_what_shares_the_memory_of_a_gradient_that_is_not_counted_is_not_counted() -> None:
    problem = of_gradients(
        [(10, True), (10, False)],
        {0: BackwardOp((), (0,), (GradientEdge(1, 0),)), 1: BackwardOp((), (), (GradientEdge(0),))},
    )
    assert found(problem).nbytes == problem.floor_of_order.nbytes == 0


def test_a_gradient_of_a_parameter_counts_until_it_is_added_up() -> None:
    problem = of_gradients(
        [(10, True), (1, False), (100, False)],
        {
            0: BackwardOp((), (2,), (GradientEdge(0),)),
            1: BackwardOp((), (1,), (GradientEdge(2),)),
            2: BackwardOp((), (), (GradientEdge(0), GradientEdge(1))),
        },
    )
    assert found(problem).nbytes == problem.floor_of_order.nbytes == 120
