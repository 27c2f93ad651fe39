"""Decisions that are taken over by a graph of other ops."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

from hypothesis import given
from ogc_plan.planner.dependencies import backward_predecessors, forward_predecessors, is_legal
from ogc_plan.planner.replan.other_ops import on_other_ops
from ogc_plan.planner.schedule import Step, StepKind, lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.training_graph import TrainingGraph

from tests.graphs.builders import Costs, chain, random_decisions, training_graphs

Drawn = tuple[TrainingGraph, Costs, Random]


def parts_of(rng: Random, graph: TrainingGraph) -> list[int | None]:
    """Ops in runs of one to four that are parts of one op; some are part of none."""
    parts: list[int | None] = []
    while len(parts) < len(graph.ops):
        parts += [len(parts)] * rng.randint(1, 4)
    numbers = {part: number for number, part in enumerate(dict.fromkeys(parts[: len(graph.ops)]))}
    return [None if rng.random() < 0.2 else numbers[part] for part in parts[: len(graph.ops)]]


def on_parts(rng: Random, count: int) -> Decisions:
    """Each part forward and backward once, and some again in between."""
    sequence = [*range(count), *(~part for part in reversed(range(count)))]
    for _ in range(rng.choice((0, count, 3 * count))):
        place = rng.randint(count, len(sequence))
        sequence.insert(place, rng.randrange(count))
    return Decisions(tuple(sequence))


def taken_over(drawn: Drawn) -> tuple[TrainingGraph, Decisions]:
    graph, _, rng = drawn
    parts = parts_of(rng, graph)
    count = 1 + max((part for part in parts if part is not None), default=0)
    return graph, on_other_ops(graph, parts, on_parts(rng, count))


@given(training_graphs(max_ops=40))
def test_first_runs_follow_the_dependences(drawn: Drawn) -> None:
    graph, made = taken_over(drawn)
    firsts = list(dict.fromkeys(entry for entry in made.sequence if entry >= 0))
    assert is_legal(firsts, forward_predecessors(graph), range(len(graph.ops)))


@given(training_graphs(max_ops=40))
def test_each_backward_runs_once_after_those_that_make_its_gradients(drawn: Drawn) -> None:
    graph, made = taken_over(drawn)
    backwards = [~entry for entry in made.sequence if entry < 0]
    assert is_legal(backwards, backward_predecessors(graph), graph.backward_order)


@given(training_graphs(max_ops=40))
def test_what_must_run_once_runs_once(drawn: Drawn) -> None:
    graph, made = taken_over(drawn)
    runs = Counter(made.sequence)
    assert all(runs[index] == 1 for index, op in enumerate(graph.ops) if op.once)


@given(training_graphs(max_ops=40))
def test_every_step_can_be_replayed(drawn: Drawn) -> None:
    graph, made = taken_over(drawn)
    schedule = lower(graph, made)
    assert len(simulate(graph, drawn[1], schedule).total_nbytes) == len(schedule)


@given(training_graphs(max_ops=40))
def test_on_its_own_graph_a_plan_takes_no_more_memory(drawn: Drawn) -> None:
    graph, costs, rng = drawn
    decisions = random_decisions(rng, graph)
    again = on_other_ops(graph, range(len(graph.ops)), decisions)
    mine, theirs = (simulate(graph, costs, lower(graph, one)).peak_total_nbytes for one in (again, decisions))
    assert mine <= theirs


@given(training_graphs(max_ops=40))
def test_nothing_is_computed_again_for_nobody(drawn: Drawn) -> None:
    graph, made = taken_over(drawn)
    unread = [
        graph.ops[step.index].name
        for step, after in pairwise(lower(graph, made))
        if step.kind is StepKind.RECOMPUTE and after == Step(StepKind.FREE, graph.ops[step.index].writes[-1])
        and len(graph.ops[step.index].writes) == 1
    ]  # fmt: skip
    assert unread == []


def test_an_op_of_two_calls_runs_both_again() -> None:
    graph, _ = chain(4)
    made = on_other_ops(graph, (0, 0, 1, 1), Decisions((0, 1, 0, ~1, ~0)))
    assert made.sequence[4:6] == (0, 1)
