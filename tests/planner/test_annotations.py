"""The annotation: written and read back equal, refused when damaged, and planned as what it says."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ogc_plan.planner import annotations
from ogc_plan.planner.annotations import Annotation, OpWork, dumps, fingerprint, loads
from ogc_plan.planner.errors import InvalidModelError, UsageError
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.model import from_annotation
from ogc_plan.planner.pipeline import plan, verify
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.strategies import STRATEGIES
from ogc_plan.planner.training_graph import Gradient, TrainingGraph

from tests.files.annotated_files import residual_network
from tests.files.mutations import mutations
from tests.graphs.builders import Costs, training_graphs

NETWORK = residual_network(4)
DATA: dict[str, Any] = json.loads(dumps(NETWORK))


def annotated(graph: TrainingGraph, rng: Random) -> Annotation:
    """A random graph as `loads` would give it, with random work."""
    ops = tuple(replace(op, forward=-1) for op in graph.ops)
    fixed = replace(graph.stationary, optimizer_nbytes=0, accumulated_gradient_nbytes=0)
    works = tuple(
        OpWork(*(rng.randint(0, 9999) for _ in range(6)), rng.random() < 0.5, *(rng.randint(0, 99) for _ in range(5)))
        for _ in ops
    )
    scopes = tuple(rng.choice(("", "block", "block.linear")) for _ in ops)
    return Annotation(replace(graph, ops=ops, stationary=fixed, fingerprint=""), works, scopes, "torch 2.13.0", "cuda")


def changed(keys: tuple[str | int, ...], value: Any) -> str:
    """The text of the network's annotation with the entry at ``keys`` replaced."""
    data = copy.deepcopy(DATA)
    place: Any = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(data)


class TestRoundTrip:
    @settings(max_examples=50, deadline=None)
    @given(training_graphs(max_ops=30))
    def test_what_is_written_is_read_back_equal(self, drawn: tuple[TrainingGraph, Costs, Random]) -> None:
        annotation = annotated(drawn[0], drawn[2])
        assert loads(dumps(annotation)) == annotation

    def test_names_of_any_characters_survive(self) -> None:
        strange = 'a"\\\n\x00 [bold] \u202e 漢 \ud800'
        graph = replace(NETWORK.graph, ops=(replace(NETWORK.graph.ops[0], name=strange), *NETWORK.graph.ops[1:]))
        assert loads(dumps(replace(NETWORK, graph=graph))).graph.ops[0].name == strange


def restructured() -> dict[str, TrainingGraph]:
    """Graphs that differ from the network's in one thing each."""
    graph = NETWORK.graph
    first, sixth = graph.ops[0], graph.ops[5]
    assert sixth.backward is not None
    assert sixth.backward.sums
    without = replace(sixth, backward=replace(sixth.backward, sums=()))
    return {
        "an op's name": replace(graph, ops=(replace(first, name="other"), *graph.ops[1:])),
        "once": replace(graph, ops=(replace(first, once=True), *graph.ops[1:])),
        "a backward": replace(graph, ops=(replace(first, backward=None), *graph.ops[1:])),
        "sums": replace(graph, ops=(*graph.ops[:5], without, *graph.ops[6:])),
        "a size": replace(graph, storages=(Storage(graph.storages[0].name, 1), *graph.storages[1:])),
        "a gradient's size": replace(graph, gradients=(Gradient("x", 1), *graph.gradients[1:])),
        "parameters": replace(graph, gradients=(replace(graph.gradients[0], parameter=False), *graph.gradients[1:])),
        "inputs": replace(graph, stationary=replace(graph.stationary, input_nbytes=1)),
        "outputs": replace(graph, outputs=()),
        "seeds": replace(graph, seeds=()),
    }


class TestFingerprint:
    @pytest.mark.parametrize("what", restructured())
    def test_another_structure_has_another_fingerprint(self, what: str) -> None:
        assert fingerprint(restructured()[what]) != fingerprint(NETWORK.graph)


class TestDamage:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("[" * 100_000, "not JSON"),
            ('{"version": NaN}', "NaN"),
            ('{"version": ' + "9" * 5000 + "}", "not JSON"),
            ("{}", "version 'None'"),
            ('{"version": 2}', "version '2', this program reads version 1"),
            ('{"version": 1}', "'storages' is missing"),
        ],
    )
    def test_something_else_is_refused(self, text: str, says: str) -> None:
        with pytest.raises(InvalidModelError, match=says):
            loads(text)

    @pytest.mark.parametrize(
        ("keys", "value", "says"),
        [
            (("storages",), 7, "'storages' is missing"),
            (("storages", 2), {}, r"storages\[2\] is not a list of 3"),
            (("storages", 2, 0), 7, r"storages\[2\] is missing or not a string"),
            (("storages", 2, 1), -1, r"storages\[2\] is not a whole number"),
            (("storages", 2, 1), 2**63, r"storages\[2\] is not a whole number"),
            (("storages", 2, 1), 2**60, "its sizes add up to"),
            (("storages", 2, 0), "product0", "storage 'product0' is listed twice"),
            (("gradients", 1, 2), 0, r"gradients\[1\] is not true or false"),
            (("gradients", 0, 1), 2**58, "its sizes add up to"),
            (("outputs",), [99], "outputs refers to number 99 of"),
            (("seeds",), None, "seeds is missing"),
            (("device",), 7, "device is missing"),
            (("stationary", "input_nbytes"), "7", "stationary.input_nbytes"),
            (("ops",), [], "0 ops"),
            (("ops", 3), [], r"ops\[3\] is not a list of 9"),
            (("ops", 3, 2), [0, 99], r"ops\[3\] reads refers to number 99"),
            (("ops", 0, 2), [5], "'mm_0' reads storage .* before it is written"),
            (("ops", 2, 4), [[], []], r"ops\[2\] backward is not a list of 4"),
            (("ops", 2, 4, 1), [99], r"ops\[2\] backward takes refers to number 99"),
            (("ops", 2, 4, 2), [[0]], r"ops\[2\] backward gives is not a list of pairs"),
            (("ops", 2, 4, 3), [[0, 1]], r"ops\[2\] backward sums is missing or not a list"),
            (("ops", 2, 4, 2), [], "sums .* before it is complete"),
            (("ops", 3, 6), 1, r"ops\[3\] once is not true or false"),
            (("ops", 3, 8), [0], r"ops\[3\] work is not a list of 12"),
            (("ops", 3, 8, 0), 2**60, "its flops add up to"),
            (("ops", 3, 8, 2), 2**21, r"ops\[3\] work forward_kernels is not a whole number"),
            (("ops", 3, 8, 6), 1, r"ops\[3\] work half is not true or false"),
        ],
    )
    def test_a_wrong_value_is_named(self, keys: tuple[str | int, ...], value: Any, says: str) -> None:
        with pytest.raises(InvalidModelError, match=says):
            loads(changed(keys, value))

    def test_more_ops_than_can_be_planned_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(annotations, "MAX_OPS", 3)
        with pytest.raises(InvalidModelError, match="1 to 3 can be planned"):
            loads(dumps(NETWORK))

    def test_every_refusal_says_what_to_do(self) -> None:
        with pytest.raises(InvalidModelError) as caught:
            loads("{}")
        assert "--ignore-annotations" in caught.value.remedy

    @settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(data=st.data())
    def test_a_mutated_annotation_is_planned_or_refused_and_never_crashes(self, data: st.DataObject) -> None:
        text = json.dumps(data.draw(mutations(DATA)))
        try:
            annotation = loads(text)
        except InvalidModelError:
            return
        model = from_annotation(annotation, name="mutated", optimizer="adamw", grad_accumulation=True)
        assert plan(model, "min", strategy="keep-all").recomputed == {}

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_a_mutated_text_is_read_or_refused_and_never_crashes(self, data: st.DataObject) -> None:
        text = list(dumps(NETWORK))
        for _ in range(data.draw(st.integers(1, 4))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.characters())
        with contextlib.suppress(InvalidModelError):
            assert loads("".join(text)).works


class TestModel:
    TRAINED = sum(gradient.nbytes for gradient in NETWORK.graph.gradients if gradient.parameter)

    def test_the_optimizer_counts_per_byte_of_the_parameters_gradients(self) -> None:
        model = from_annotation(NETWORK, name="network", optimizer="adamw")
        assert model.training.stationary.optimizer_nbytes == 2 * self.TRAINED

    def test_accumulation_keeps_the_parameters_gradients_once_more(self) -> None:
        model = from_annotation(NETWORK, name="network", grad_accumulation=True)
        assert model.training.stationary.accumulated_gradient_nbytes == self.TRAINED

    def test_the_graph_carries_its_fingerprint(self) -> None:
        assert from_annotation(NETWORK, name="network").training.fingerprint == fingerprint(NETWORK.graph)

    @pytest.mark.parametrize("part", ["works", "scopes"])
    def test_a_part_that_does_not_fit_the_ops_is_refused(self, part: str) -> None:
        with pytest.raises(ValueError, match="a work and a scope for each"):
            from_annotation(replace(NETWORK, **{part: getattr(NETWORK, part)[1:]}), name="network")


class TestOnlyOnce:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_no_strategy_runs_such_an_op_again(self, strategy: str) -> None:
        assert "norm" not in plan(from_annotation(NETWORK, name="network"), "min", strategy=strategy).recomputed

    @pytest.mark.parametrize("glob", ["normed", "statistics", "*"])
    def test_asking_to_recompute_what_it_makes_is_a_usage_error(self, glob: str) -> None:
        model = from_annotation(replace(NETWORK, graph=replace(NETWORK.graph, outputs=())), name="network")
        with pytest.raises(UsageError, match="'norm' that makes it must run only once"):
            model.problem(Scope.ACTIVATIONS, recompute=[glob])

    def test_what_it_makes_is_kept(self) -> None:
        problem = from_annotation(NETWORK, name="network").problem(Scope.TOTAL)
        assert {problem.graph.storages[s].name for s in problem.keep} == {"normed", "statistics"}


class TestPlans:
    @settings(max_examples=40, deadline=None)
    @given(training_graphs(max_ops=20), st.sampled_from(["greedy", "layers", "sqrt", "ogc", "segments:3", "speed"]))
    def test_a_plan_made_from_an_annotation_verifies_on_what_is_read_back(
        self, drawn: tuple[TrainingGraph, Costs, Random], strategy: str
    ) -> None:
        annotation = annotated(drawn[0], drawn[2])
        made = plan(from_annotation(annotation, name="random"), "min", strategy=strategy)
        assert verify(made, from_annotation(loads(dumps(annotation)), name="other name")) == made.timeline

    def test_a_plan_names_the_modules_of_its_storages(self) -> None:
        made = plan(from_annotation(NETWORK, name="network"), "min", strategy="sqrt")
        assert dict(made.modules)["product1"] == "blocks.1.linear"
