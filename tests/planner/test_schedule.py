"""Lowering: computations become steps, and every value is freed as early as the rules allow."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ogc_plan.planner.schedule import Schedule, StepKind, lower
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.training_graph import TrainingGraph

from tests.graphs.builders import chain, keep_all, random_decisions, random_graph
from tests.oracles.lifetimes import deaths

FORWARD, RECOMPUTE, BACKWARD, FREE = StepKind.FORWARD, StepKind.RECOMPUTE, StepKind.BACKWARD, StepKind.FREE


def steps_of(graph: TrainingGraph, *sequence: int) -> list[tuple[str, int]]:
    return [(step.kind.value, step.index) for step in lower(graph, Decisions(sequence))]


def test_a_value_is_freed_after_its_last_use() -> None:
    graph, _ = chain(2)
    assert steps_of(graph, 0, 1, ~1, ~0) == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 1),
        ("backward", 0),
        ("free", 0),
    ]


def test_a_value_that_is_computed_again_is_freed_before() -> None:
    graph, _ = chain(2)
    assert steps_of(graph, 0, 1, 0, ~1, ~0)[:4] == [("forward", 0), ("forward", 1), ("free", 0), ("recompute", 0)]


def test_the_generator_state_of_a_recomputation_is_freed_after_the_last_run() -> None:
    graph, _ = chain(2)
    graph = replace(graph, ops=(replace(graph.ops[0], random_state_nbytes=9), graph.ops[1]))
    steps = lower(graph, Decisions((0, 1, 0, 0, ~1, ~0))).steps
    last = max(i for i, step in enumerate(steps) if step.kind is RECOMPUTE)
    assert [i for i, step in enumerate(steps) if step.random_state] == [last + 1]


def test_a_random_op_that_runs_once_has_no_state_to_free() -> None:
    graph, _ = chain(2)
    graph = replace(graph, ops=(replace(graph.ops[0], random_state_nbytes=9), graph.ops[1]))
    assert not any(step.random_state for step in lower(graph, keep_all(graph)))


def groups(schedule: Schedule) -> tuple[list[int], list[set[tuple[str, int]]], int]:
    """The computations in order as decisions, the frees that follow each, and how many frees there are."""
    sequence: list[int] = []
    freed: list[set[tuple[str, int]]] = []
    count = 0
    for step in schedule:
        if step.kind is FREE:
            freed[-1].add(("state" if step.random_state else "storage", step.index))
            count += 1
        else:
            sequence.append(~step.index if step.kind is BACKWARD else step.index)
            freed.append(set())
    return sequence, freed, count


def first_runs(schedule: Schedule) -> list[int]:
    return [step.index for step in schedule if step.kind is FORWARD]


def random_cases(first_seed: int) -> list[tuple[int, TrainingGraph, Decisions]]:
    cases = []
    for seed in range(first_seed, first_seed + 100):
        rng = Random(seed)
        graph, _ = random_graph(rng, rng.randint(1, 40))
        cases.append((seed, graph, random_decisions(rng, graph)))
    return cases


def test_frees_come_as_early_as_is_legal() -> None:
    wrong = [
        seed
        for seed, graph, decisions in random_cases(20_000)
        if groups(lower(graph, decisions))[1] != deaths(graph, decisions.sequence)
    ]
    assert wrong == []


def test_lowering_keeps_the_order_and_frees_each_copy_once() -> None:
    for seed, graph, decisions in random_cases(21_000):
        sequence, freed, count = groups(lower(graph, decisions))
        assert tuple(sequence) == decisions.sequence, seed
        assert count == sum(map(len, freed)), seed


def test_the_first_run_of_each_op_is_its_forward() -> None:
    for seed, graph, decisions in random_cases(22_000):
        assert first_runs(lower(graph, decisions)) == list(range(len(graph.ops))), seed
