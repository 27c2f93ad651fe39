"""The replay: what it counts, by hand on small graphs and against the oracle on random ones, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from ogc_plan.planner.errors import PlanMismatchError
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.schedule import Schedule, Step, StepKind, lower
from ogc_plan.planner.simulate import Timeline, simulate
from ogc_plan.planner.solution import Decisions
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

from tests.graphs.builders import Costs, chain, diamond, keep_all, random_decisions, random_graph
from tests.oracles.lifetimes import recount

FORWARD, RECOMPUTE, BACKWARD, FREE = StepKind.FORWARD, StepKind.RECOMPUTE, StepKind.BACKWARD, StepKind.FREE


def replay(graph: TrainingGraph, costs: Costs, *sequence: int) -> Timeline:
    return simulate(graph, costs, lower(graph, Decisions(sequence)))


def one_op(*, workspace: tuple[int, int] = (0, 0), parameter: bool = False) -> tuple[TrainingGraph, Costs]:
    """One op that writes the output, 10 bytes, and gives a gradient of 4 bytes."""
    gradients = (Gradient("dy", 10), Gradient("dw", 4, parameter))
    op = TrainingOp("op", "Op", (), (0,), BackwardOp((), (0,), (GradientEdge(1),)))
    graph = TrainingGraph((op,), (Storage("y", 10),), gradients, (0,), (0,), Stationary(parameter_nbytes=100))
    return graph, (OpCost(3, 5, *workspace),)


# --- by hand ------------------------------------------------------------------------------------------------


def test_backward_step_counts_storages_taken_gradient_and_given_gradient() -> None:
    graph, costs = chain(3)
    timeline = replay(graph, costs, 0, 1, 2, ~2, ~1, ~0)
    assert timeline.total_nbytes[3] == 3 * 10 + 10 + 10


@pytest.mark.parametrize(
    ("workspace", "step", "alive"), [((7, 0), 0, 10), ((0, 7), 1, 10 + 10 + 4)], ids=["forward", "backward"]
)
def test_workspace_counts_during_its_step_only(workspace: tuple[int, int], step: int, alive: int) -> None:
    timeline = replay(*one_op(workspace=workspace), 0, ~0)
    assert timeline.total_nbytes[step] == 100 + alive + 7
    assert timeline.after_nbytes[step] == 100 + alive - (10 if step else 0)


@pytest.mark.parametrize(("parameter", "gradient"), [(False, 4), (True, 0)])
def test_activations_leave_out_stationary_bytes_and_parameter_gradients(parameter: bool, gradient: int) -> None:
    assert replay(*one_op(parameter=parameter), 0, ~0).activation_nbytes == (10, 10 + 10 + gradient)


def test_output_gradients_arrive_with_the_first_step_after_the_forward() -> None:
    graph, costs = chain(2)
    timeline = replay(graph, costs, 0, 1, 0, ~1, ~0)  # t0 is freed after op1 and computed again
    steps = lower(graph, Decisions((0, 1, 0, ~1, ~0))).steps
    assert steps[2] == Step(FREE, 0)
    assert timeline.total_nbytes[1:4] == (20, 20, 10 + 10 + 10)


def test_fan_in_sum_counts_both_operands_and_the_result() -> None:
    graph, costs = diamond((10, 20, 30, 40))
    timeline = replay(graph, costs, *keep_all(graph).sequence)
    schedule = lower(graph, keep_all(graph))
    left = schedule.steps.index(Step(BACKWARD, 1))
    # Present gradient of top, the contribution of left and their sum, 10 each; top, the output and the
    # gradient allocation of add, which left's gradient was the last to share, is already freed.
    live = 7 + 10 + 40
    assert timeline.total_nbytes[left] == max(live + 40 + 10 + 10, live + 3 * 10)


def test_aliased_gradient_keeps_the_allocation_it_shares() -> None:
    graph, costs = diamond((10, 20, 30, 40))
    schedule = lower(graph, keep_all(graph))
    add = schedule.steps.index(Step(BACKWARD, 3))
    timeline = simulate(graph, costs, schedule)
    assert timeline.after_nbytes[add] == timeline.total_nbytes[add] == 7 + 10 + 30 + 40 + 40


def test_partial_sums_of_a_shared_parameter_count_as_activations() -> None:
    shared = Gradient("dw", 1000, parameter=True)
    ops = (
        TrainingOp("a", "A", (), (0,), BackwardOp((), (0,), (GradientEdge(2),))),
        TrainingOp("b", "B", (0,), (1,), BackwardOp((), (1,), (GradientEdge(0), GradientEdge(2)))),
    )
    gradients = (Gradient("da", 1), Gradient("db", 1), shared)
    graph = TrainingGraph(ops, (Storage("a", 0), Storage("b", 0)), gradients, (1,), (1,))
    timeline = replay(graph, (OpCost(1), OpCost(1)), 0, 1, ~1, ~0)
    # In the backward of b both gradients and the partial sum; in that of a both operands, never the final sum.
    assert timeline.activation_nbytes[-2:] == (1 + 1 + 1000, 1 + 1000 + 1000)


def test_recomputation_over_a_live_copy_counts_the_duplicate_during_the_step_only() -> None:
    graph, costs = chain(2)
    steps = [Step(FORWARD, 0), Step(FORWARD, 1), Step(RECOMPUTE, 0), Step(BACKWARD, 1), Step(BACKWARD, 0)]
    timeline = simulate(graph, costs, Schedule(tuple(steps)))
    assert (timeline.total_nbytes[2], timeline.after_nbytes[2]) == (20 + 10 + 10, 20 + 10)


def test_hidden_buffers_are_allocated_by_every_run() -> None:
    ops = (
        TrainingOp("a", "A", (), (0, 1), BackwardOp((1,), (0,), ())),
        TrainingOp("b", "B", (0,), (2,), BackwardOp((0,), (1,), (GradientEdge(0),))),
    )
    storages = (Storage("a", 1), Storage("a#0", 1000), Storage("b", 1))
    graph = TrainingGraph(ops, storages, (Gradient("da", 0), Gradient("db", 0)), (2,), (1,))
    timeline = replay(graph, (OpCost(1), OpCost(1)), 0, 1, 0, ~1, ~0)
    # forward a, free a#0; recompute a, backward b, free a; backward a, free a#0
    assert [n for n in timeline.total_nbytes if n > 1000] == [1001, 1001, 1002, 1002, 1002, 1001, 1001]


def test_generator_state_lives_from_the_first_run_to_the_last() -> None:
    graph, costs = chain(2)
    ops = (replace(graph.ops[0], random_state_nbytes=500), graph.ops[1])
    graph = replace(graph, ops=ops)
    timeline = replay(graph, costs, 0, 1, 0, ~1, ~0)
    assert [n >= 500 for n in timeline.after_nbytes] == [True, True, True, True, False, False, False, False]


def test_time_is_every_run_and_the_excess_is_recomputation() -> None:
    graph, costs = diamond()
    timeline = replay(graph, costs, 0, 1, 2, 3, ~3, 0, 2, ~2, 0, ~1, ~0)
    assert (timeline.time_ns, timeline.recompute_ns) == (3 + 5 + 7 + 1 + 4 + 6 + 8 + 1 + 3 + 7 + 3, 3 + 7 + 3)


def summing(*, parameter: bool = False, taken_twice: bool = True) -> TrainingGraph:
    """``a`` feeds ``b`` and ``c``; the backward of b adds up what c and b gave, 100 bytes each, into 100 more.

    The backward of c takes the seed, 10 bytes; with ``taken_twice`` that of b does so as well.
    """
    seed = (0,)
    first = BackwardOp((), (), (GradientEdge(2),), (GradientSum(3, (1, 2)),))
    ops = (
        TrainingOp("a", "A", (), (0,), BackwardOp((), () if parameter else (3,), ())),
        TrainingOp("b", "B", (0,), (1,), replace(first, takes=seed) if taken_twice else first),
        TrainingOp("c", "C", (0,), (2,), BackwardOp((), seed, (GradientEdge(1),))),
    )
    gradients = (Gradient("dy", 10), Gradient("p", 100), Gradient("q", 100), Gradient("sum", 100, parameter))
    return TrainingGraph(ops, tuple(Storage(name, 0) for name in "abc"), gradients, (1, 2), seed)


def test_an_explicit_sum_counts_its_operands_and_its_result() -> None:
    graph = summing()
    timeline = replay(graph, (OpCost(1),) * 3, 0, 1, 2, ~2, ~1, ~0)
    at = named_steps(graph).index(("backward", "b"))
    assert (timeline.total_nbytes[at], timeline.after_nbytes[at]) == (3 * 100, 100)


def test_a_parameters_gradient_is_no_activation_from_the_sum_that_makes_it() -> None:
    graph = summing(parameter=True, taken_twice=False)
    timeline = replay(graph, (OpCost(1),) * 3, 0, 1, 2, ~2, ~1, ~0)
    assert (max(timeline.total_nbytes), max(timeline.activation_nbytes)) == (3 * 100, 2 * 100)


def test_activations_may_count_another_workspace() -> None:
    graph, _ = one_op(parameter=True)
    timeline = replay(graph, (OpCost(3, 5, 0, 7, 9),), 0, ~0)
    assert (timeline.total_nbytes[-1], timeline.activation_nbytes[-1]) == (100 + 10 + 10 + 4 + 7, 10 + 10 + 9)


def named_steps(graph: TrainingGraph) -> list[tuple[str, str]]:
    """Kind and name of every step of the schedule that recomputes nothing."""
    return [
        (s.kind.value, (graph.storages if s.kind is FREE else graph.ops)[s.index].name)
        for s in lower(graph, keep_all(graph))
    ]


# --- against the oracle -------------------------------------------------------------------------------------


def with_late_frees(rng: Random, schedule: Schedule) -> Schedule:
    """The same computations with some frees left out: legal, and recomputations meet copies that are still alive."""
    keep = rng.choice((1.0, 0.9, 0.5))
    return Schedule(tuple(s for s in schedule if s.kind is not FREE or rng.random() < keep))


def disagreement(timeline: Timeline, graph: TrainingGraph, costs: Costs, schedule: Schedule) -> str:
    """Empty when the oracle counts the same bytes at every step and the same times."""
    expected = recount(graph, costs, schedule)
    for name in ("total_nbytes", "activation_nbytes", "after_nbytes"):
        ours, theirs = getattr(timeline, name), getattr(expected, name)
        for position, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            if mine != other:
                return f"step {position} {schedule.steps[position]}: {name} {mine}, oracle {other}"
    for name in ("time_ns", "recompute_ns", "peak_total_nbytes", "peak_activation_nbytes"):
        if getattr(timeline, name) != getattr(expected, name):
            return f"{name} {getattr(timeline, name)}, oracle {getattr(expected, name)}"
    return ""


def test_replay_agrees_with_the_oracle_to_the_byte_and_nanosecond() -> None:
    failures = {}
    for seed in range(500):
        rng = Random(seed)
        graph, costs = random_graph(rng, rng.randint(2, 50))
        schedule = with_late_frees(rng, lower(graph, random_decisions(rng, graph)))
        if problem := disagreement(simulate(graph, costs, schedule), graph, costs, schedule):
            failures[seed] = problem
    assert failures == {}


# --- what it refuses ----------------------------------------------------------------------------------------


def refusal(graph: TrainingGraph, costs: Costs, steps: list[Step]) -> str:
    """The message of the PlanMismatchError; empty when the schedule is accepted."""
    try:
        simulate(graph, costs, Schedule(tuple(steps)))
    except PlanMismatchError as error:
        return error.message
    return ""


def steps_of(seed: int) -> tuple[Random, TrainingGraph, Costs, list[Step]]:
    """A random graph with a legal schedule."""
    rng = Random(seed)
    graph, costs = random_graph(rng, rng.randint(2, 30))
    return rng, graph, costs, list(lower(graph, random_decisions(rng, graph)).steps)


def named(position: int, step: Step, graph: TrainingGraph) -> str:
    name = graph.storages[step.index].name if step.kind is FREE else graph.ops[step.index].name
    return f"step {position} ({step.kind.value} {name!r}) "


@pytest.mark.parametrize("seed", range(10_000, 10_020))
def test_a_dropped_computation_is_refused_and_a_step_or_op_is_named(seed: int) -> None:
    rng, graph, costs, steps = steps_of(seed)
    pinned = set(graph.outputs)
    droppable = [  # a recomputation that only renews what is alive anyway would not be missed
        i
        for i, step in enumerate(steps)
        if step.kind in (FORWARD, BACKWARD)
        or (step.kind is RECOMPUTE and not pinned.issuperset(graph.ops[step.index].writes))
    ]
    position = rng.choice(droppable)
    message = refusal(graph, costs, steps[:position] + steps[position + 1 :])
    assert re.match(r"step \d+ \(|the schedule ends without running 'op", message)


@pytest.mark.parametrize("seed", range(13_000, 13_020))
def test_reading_a_freed_storage_is_refused_at_the_reader(seed: int) -> None:
    _, graph, costs, steps = steps_of(seed)
    for position, step in enumerate(steps):
        if step.kind is FREE:
            continue
        op = graph.ops[step.index]
        reads = op.backward.reads if step.kind is BACKWARD and op.backward is not None else op.reads
        frees = [i for i in range(position + 1, len(steps)) if steps[i].kind is FREE and steps[i].index in reads]
        if frees and not steps[frees[0]].random_state:
            early = [*steps[:position], steps[frees[0]], *steps[position : frees[0]], *steps[frees[0] + 1 :]]
            assert refusal(graph, costs, early).startswith(named(position + 1, step, graph))


def test_a_backward_before_its_gradient_is_complete_is_refused_there() -> None:
    graph, costs = diamond()
    steps = list(lower(graph, keep_all(graph)).steps)
    top, left = steps.index(Step(BACKWARD, 0)), steps.index(Step(BACKWARD, 1))
    moved = [*steps[:left], steps[top], *steps[left:top], *steps[top + 1 :]]
    assert refusal(graph, costs, moved) == (f"step {left} (backward 'top') runs before 'gradient of top' is complete")


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        (Step(FORWARD, 0), "is a repeated forward"),
        (Step(BACKWARD, 2), "has no backward left to run"),
        (Step(FREE, 2), "frees a model output"),
        (Step(FREE, 1), "is not alive"),
    ],
)
def test_a_step_that_breaks_a_rule_is_refused(extra: Step, what: str) -> None:
    graph, costs = chain(3)
    steps = list(lower(graph, keep_all(graph)).steps)
    assert what in refusal(graph, costs, [*steps, extra])


@pytest.mark.parametrize(
    ("changes", "steps", "says"),
    [
        (
            {},
            [Step(FORWARD, 0), Step(RECOMPUTE, 1), Step(FORWARD, 1)],
            "step 1 (recompute 'op1') recomputes an op that has not run",
        ),
        ({}, [Step(FORWARD, 0)], "the schedule ends without running 'op"),
        (
            {"once": True},
            [Step(FORWARD, 0), Step(FORWARD, 1), Step(RECOMPUTE, 0)],
            "step 2 (recompute 'op0') recomputes an op that must run only once",
        ),
        (
            {"random_state_nbytes": 500},
            [Step(FORWARD, 0), Step(FORWARD, 1), Step(FREE, 0, random_state=True), Step(RECOMPUTE, 0)],
            "needs a generator state that was freed",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused(changes: dict[str, Any], steps: list[Step], says: str) -> None:
    graph, costs = chain(2)
    graph = replace(graph, ops=(replace(graph.ops[0], **changes), graph.ops[1]))
    assert says in refusal(graph, costs, steps)


@pytest.mark.parametrize(
    ("backwards", "says"),
    [([1], "(backward 'b') sums 'p' before it is complete"), ([2, 0], "(backward 'a') runs before 'sum' is complete")],
)
def test_a_sum_before_its_operands_or_a_use_before_the_sum_is_refused(backwards: list[int], says: str) -> None:
    steps = [*(Step(FORWARD, i) for i in range(3)), *(Step(BACKWARD, i) for i in backwards)]
    assert says in refusal(summing(), (OpCost(1),) * 3, steps)


def test_every_refusal_says_what_to_do() -> None:
    graph, costs = chain(2)
    with pytest.raises(PlanMismatchError) as caught:
        simulate(graph, costs, Schedule(()))
    assert caught.value.remedy
