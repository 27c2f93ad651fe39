"""Parameters' gradients that an accumulating step adds up and frees during its backward."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from ogc_plan.planner.annotations import Annotation, dumps, fingerprint, loads
from ogc_plan.planner.errors import InvalidModelError
from ogc_plan.planner.model import Model, from_annotation
from ogc_plan.planner.peak_bounds.gradient_lifetimes import GradientLives
from ogc_plan.planner.pipeline import plan, verify
from ogc_plan.planner.plan_file import writer as plan_writer
from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.plan_file.writer import to_json, write_plan
from ogc_plan.planner.problem import Scope, build_problem, gradient_memory
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import Timeline, simulate
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.training_graph import BackwardOp, GradientEdge, TrainingGraph

from tests.files.annotated_files import WEIGHT_NBYTES, residual_network
from tests.files.plan_schemas import errors_of_schema
from tests.graphs.builders import SMALL_SIZES, Costs, chain, diamond, ending, keep_all, random_decisions, random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.graphs.legal_orders import random_orders
from tests.oracles.brute_orders import minimum_peak_in_any_order
from tests.oracles.lifetimes import recount


def with_ends(graph: TrainingGraph, ends: dict[int, tuple[int, ...]]) -> TrainingGraph:
    """``ends[i]`` end with the backward of op i."""
    ops = (
        replace(op, backward=op.backward and replace(op.backward, ends=ends.get(i, ())))
        for i, op in enumerate(graph.ops)
    )
    return replace(graph, ops=tuple(ops))


def weighted_chain(ends: dict[int, tuple[int, ...]]) -> tuple[TrainingGraph, Costs]:
    """Three ops of 10 bytes with parameters' gradients of 100 bytes, numbers 3, 4 and 5."""
    graph, costs = chain(3, nbytes=10, parameter_nbytes=100)
    return with_ends(graph, ends), costs


def two_weights(left: tuple[int, ...], right: tuple[int, ...]) -> TrainingGraph:
    """The diamond where ``left`` and ``right``, which may run in either order, end gradients."""
    return with_ends(diamond()[0], {1: left, 2: right})


def accumulating(seed: int, most: int = 30, share: float = 0.8) -> tuple[Random, TrainingGraph, Costs]:
    """A random graph, or every other time one of layers, with gradients that end."""
    rng = Random(seed)
    count = rng.randint(2, most)
    if seed % 2:
        graph, costs = random_graph(rng, count, sizes=SMALL_SIZES)
    else:
        graph, costs = layered_graph(rng, count, rng.randint(2, 4))
    return rng, ending(rng, graph.without_ends(), share), costs


class TestOneStep:
    def replay(self, ends: dict[int, tuple[int, ...]]) -> Timeline:
        graph, costs = weighted_chain(ends)
        return simulate(graph, costs, lower(graph, keep_all(graph)))

    def test_without_an_end_gradients_add_up(self) -> None:
        assert self.replay({}).after_nbytes[-1] == 10 + 300

    def test_a_gradient_that_ends_is_freed_after_its_backward(self) -> None:
        timeline = self.replay({2: (5,), 1: (4,), 0: (3,)})
        assert (timeline.total_nbytes[3], timeline.after_nbytes[3]) == (3 * 10 + 2 * 10 + 100, 3 * 10 + 10)

    def test_one_that_ends_before_it_exists_is_freed_as_soon_as_it_does(self) -> None:
        assert self.replay({2: (3, 4, 5)}).total_nbytes == self.replay({2: (5,), 1: (4,), 0: (3,)}).total_nbytes

    def test_it_is_freed_after_the_last_backward_that_ends_it(self) -> None:
        assert self.replay({2: (5,), 0: (5,)}).after_nbytes[3] == 3 * 10 + 10 + 100

    def test_activations_are_the_same_with_and_without(self) -> None:
        assert self.replay({2: (5,), 1: (4,)}).activation_nbytes == self.replay({}).activation_nbytes

    def test_only_a_parameters_gradient_may_end(self) -> None:
        graph, _ = weighted_chain({2: (1,)})
        with pytest.raises(ValueError, match=r"'op2' ends 'gradient of t1', which is no parameter's"):
            graph.validate()

    @pytest.mark.parametrize("order", [(3, 2, 1, 0), (3, 1, 2, 0)])
    def test_whichever_of_two_backwards_is_last_ends_it(self, order: tuple[int, ...]) -> None:
        graph = two_weights((5,), (5,))
        given = graph.ops[3].backward
        assert given is not None
        add = replace(graph.ops[3], backward=replace(given, gives=(*given.gives, GradientEdge(5))))
        graph = replace(graph, ops=(*graph.ops[:3], add), gradients=(*graph.gradients, graph.gradients[4]))
        _, between = gradient_memory(graph, diamond()[1], order, Scope.TOTAL)
        _, bare = gradient_memory(graph.without_ends(), diamond()[1], order, Scope.TOTAL)
        assert (bare - between).tolist() == [0, 0, 0, 7]


class TestRandomSteps:
    def test_the_replay_is_what_lifetimes_in_a_table_say(self) -> None:
        for seed in range(80_000, 80_100):
            rng, graph, costs = accumulating(seed)
            schedule = lower(graph, random_decisions(rng, graph))
            found, expected = simulate(graph, costs, schedule), recount(graph, costs, schedule)
            same = found.total_nbytes == expected.total_nbytes, found.activation_nbytes == expected.activation_nbytes
            assert (*same, found.after_nbytes == expected.after_nbytes) == (True, True, True), seed

    @pytest.mark.parametrize("scope", list(Scope), ids=[scope.value for scope in Scope])
    def test_gradients_of_the_problem_are_those_of_the_replay_in_any_backward_order(self, scope: Scope) -> None:
        for seed in range(81_000, 81_100):
            rng, graph, costs = accumulating(seed)
            order = random_orders(rng, graph).backward
            during, _ = gradient_memory(graph, costs, order, scope)
            bare = replace(graph, storages=tuple(replace(storage, nbytes=0) for storage in graph.storages))
            decisions = Decisions((*range(len(graph.ops)), *(~op for op in order)))
            steps = simulate(bare, costs, schedule := lower(bare, decisions))
            held = steps.total_nbytes if scope is Scope.TOTAL else steps.activation_nbytes
            base = graph.stationary.total_nbytes if scope is Scope.TOTAL else 0
            backwards = [n - base for n, step in zip(held, schedule, strict=True) if step.kind.value == "backward"]
            assert backwards == during.tolist(), seed

    def test_what_is_surely_alive_is_alive_in_every_order(self) -> None:
        for seed in range(82_000, 82_100):
            rng, graph, costs = accumulating(seed)
            lives = GradientLives(graph, parameters=True)
            order = random_orders(rng, graph).backward
            during, _ = gradient_memory(graph, costs, order, Scope.TOTAL)
            least = [lives.peak_nbytes(op, costs[op].backward_workspace_nbytes) for op in order]
            assert all(sure <= held for sure, held in zip(least, during.tolist(), strict=True)), seed

    @pytest.mark.parametrize("ends", [{0: (5,)}, {2: (5,)}, {1: (4, 5)}], ids=["later", "before its use", "now"])
    def test_during_a_sum_every_gradient_that_has_not_ended_is_alive(self, ends: dict[int, tuple[int, ...]]) -> None:
        graph, costs = weighted_chain(ends)
        summing = BackwardOp((), (1, 5), (GradientEdge(0), GradientEdge(0), GradientEdge(4)), (), ends.get(1, ()))
        graph = replace(graph, ops=(graph.ops[0], replace(graph.ops[1], backward=summing), graph.ops[2]))
        graph = replace(graph, gradients=(replace(graph.gradients[0], nbytes=50), *graph.gradients[1:]))
        during, _ = gradient_memory(graph, costs, (2, 1, 0), Scope.TOTAL)
        assert GradientLives(graph, parameters=True).peak_nbytes(1, 0) == during[1] == 3 * 50 + 200

    def test_no_plan_goes_below_the_floor(self) -> None:
        for seed in range(83_000, 83_060):
            problem = build_problem(*accumulating(seed, 7, 1.0)[1:], Scope.TOTAL)
            assert problem.floor.nbytes <= minimum_peak_in_any_order(problem), seed


LAYERS = 6


def network() -> Annotation:
    """The residual network; each weight's gradient goes with its own backward, the shared one's with the last."""
    annotation = residual_network(LAYERS)
    graph = annotation.graph
    made = {
        gradient: index
        for index in graph.backward_order
        for gradient in _made(graph.ops[index].backward)
        if graph.gradients[gradient].parameter
    }
    ends: dict[int, tuple[int, ...]] = {}
    for gradient, index in made.items():
        ends[index] = (*ends.get(index, ()), gradient)
    return replace(annotation, graph=with_ends(graph, ends))


def _made(backward: BackwardOp | None) -> list[int]:
    assert backward is not None
    return [*(edge.gradient for edge in backward.gives), *(total.result for total in backward.sums)]


def loaded(*, grad_accumulation: bool = True) -> Model:
    return from_annotation(network(), name="network", device="t4", grad_accumulation=grad_accumulation)


@cache
def planned() -> Plan:
    return plan(loaded(), "min", scope=Scope.TOTAL, strategy="greedy")


class TestAnnotation:
    def test_what_is_written_is_read_back_equal(self) -> None:
        assert loads(dumps(network())) == network()

    def test_the_fingerprint_is_that_of_the_step_without(self) -> None:
        assert fingerprint(network().graph) == fingerprint(residual_network(LAYERS).graph)

    @pytest.mark.parametrize("ends", [[10**6], ["d weight0"], None, list(network().graph.seeds)])
    def test_damaged_ends_are_refused(self, ends: object) -> None:
        data = json.loads(dumps(network()))
        next(op for op in data["ops"] if op[4] is not None and len(op[4]) == 5)[4][4] = ends
        with pytest.raises(InvalidModelError, match="ends"):
            loads(json.dumps(data))

    def test_a_step_that_does_not_accumulate_keeps_its_gradients(self) -> None:
        training = loaded(grad_accumulation=False).training
        assert training == training.without_ends()

    def test_an_accumulating_step_has_one_set_of_gradients_and_those_not_ended(self) -> None:
        full = from_annotation(residual_network(LAYERS), name="n", device="t4", grad_accumulation=True).store_all()
        assert full.after_nbytes[-1] - loaded().store_all().after_nbytes[-1] == (LAYERS - 1) * WEIGHT_NBYTES + 256


class TestPlan:
    def test_its_peak_is_below_that_of_two_full_sets(self) -> None:
        full = from_annotation(residual_network(LAYERS), name="n", device="t4", grad_accumulation=True)
        assert planned().peak.total_nbytes < plan(full, "min", scope=Scope.TOTAL, strategy="greedy").peak.total_nbytes

    def test_it_is_read_back_as_written_and_verifies_against_the_model(self, tmp_path: Path) -> None:
        made = planned()
        write_plan(made, tmp_path / "plan.json")
        again = read_plan(tmp_path / "plan.json")
        assert (to_json(again), verify(again, loaded())) == (to_json(made), made.timeline)

    def test_its_file_is_as_the_schema_says(self) -> None:
        assert errors_of_schema(json.loads(plan_writer.dumps(planned()))) == []
