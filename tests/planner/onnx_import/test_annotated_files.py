"""ONNX files with annotations: planned from them, or refused with one line; the bare file is still there to plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ogc_plan.planner import pipeline
from ogc_plan.planner.annotations import MODEL_KEY, Source
from ogc_plan.planner.errors import ModelError, OgcPlanError, PlanMismatchError, UsageError
from ogc_plan.planner.model import from_annotation, load_model
from ogc_plan.planner.pipeline import plan, verify

from tests.files.annotated_files import annotated_model, residual_network, write_annotated
from tests.files.onnx_models import save


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_annotated(tmp_path / "network.onnx")


class TestReading:
    def test_a_file_with_annotations_is_planned_from_them(self, path: Path) -> None:
        expected = from_annotation(residual_network(), name="network.onnx")
        model = load_model(path)
        assert (model.training, model.costs, model.scopes) == (expected.training, expected.costs, expected.scopes)

    def test_the_model_says_where_its_graph_comes_from(self, path: Path) -> None:
        model = load_model(path)
        assert (model.annotations, model.producer, model.opset) == (Source("torch 2.13.0", "cpu"), "pytorch 2.13", 18)

    def test_the_annotations_can_be_ignored(self, path: Path) -> None:
        model = load_model(path, ignore_annotations=True)
        assert (model.annotations, model.training.ops[0].op_type) == (None, "MatMul")

    def test_a_graph_that_the_bare_reader_cannot_plan_is_planned_from_its_annotations(self, tmp_path: Path) -> None:
        proto = annotated_model()
        proto.graph.node[0].op_type = "Loop"
        assert load_model(save(proto, tmp_path)).training.ops

    @pytest.mark.parametrize(
        ("options", "names"),
        [
            ({"dims": {"n": 4}}, "dims "),
            ({"inputs": {"x": (4, 64)}}, "inputs "),
            ({"batch": 4}, "batch "),
            ({"frozen": ["w*"]}, "frozen "),
            ({"batch": 4, "frozen": ["w*"]}, "batch, frozen "),
        ],
    )
    def test_an_option_that_would_change_the_graph_is_refused(
        self, path: Path, options: dict[str, Any], names: str
    ) -> None:
        with pytest.raises(UsageError, match=f"^{names}cannot change .* its annotations hold for what was exported; "):
            load_model(path, **options)


class TestDamage:
    def test_measured_times_cannot_be_asked_of_a_file_without_any(self, path: Path) -> None:
        with pytest.raises(UsageError, match="has no measured times"):
            load_model(path, device="measured")

    def test_a_node_of_an_unknown_op_is_named(self, tmp_path: Path) -> None:
        proto = annotated_model()
        proto.graph.node[2].metadata_props[0].value = "ghost"
        with pytest.raises(ModelError, match='node "node_mm_1" belongs to the op "ghost"'):
            load_model(save(proto, tmp_path))

    def test_two_annotations_are_refused(self, tmp_path: Path) -> None:
        proto = annotated_model()
        proto.metadata_props.append(proto.metadata_props[0])
        with pytest.raises(ModelError, match="holds 2 annotations"):
            load_model(save(proto, tmp_path))

    @pytest.mark.parametrize("remedy", ["export the model again", "--ignore-annotations"])
    def test_every_refusal_says_what_to_do(self, tmp_path: Path, remedy: str) -> None:
        proto = annotated_model()
        proto.metadata_props[0].value = "{"
        with pytest.raises(ModelError) as caught:
            load_model(save(proto, tmp_path))
        assert remedy in caught.value.remedy

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_a_file_with_flipped_bytes_is_read_or_refused_and_never_crashes(
        self, tmp_path: Path, data: st.DataObject
    ) -> None:
        content = bytearray(annotated_model().SerializeToString())
        start = content.index(MODEL_KEY.encode())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(start, len(content) - 1))] = data.draw(st.integers(0, 255))
        (tmp_path / "model.onnx").write_bytes(content)
        try:
            load_model(tmp_path / "model.onnx").store_all()
        except OgcPlanError:
            return


class TestVerify:
    def test_a_plan_verifies_on_the_file(self, path: Path) -> None:
        made = plan(load_model(path), "70%", strategy="greedy")
        assert verify(made, load_model(path)) == made.timeline

    def test_another_edition_of_the_rules_for_bare_files_changes_nothing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = plan(load_model(path), "70%", strategy="greedy")
        monkeypatch.setattr(pipeline, "RULES_VERSION", 99)
        assert verify(made, load_model(path)) == made.timeline

    def test_a_plan_from_annotations_is_refused_on_the_bare_graph(self, path: Path) -> None:
        made = plan(load_model(path), "70%", strategy="greedy")
        with pytest.raises(PlanMismatchError, match="made with annotations, the model is read without them"):
            verify(made, load_model(path, ignore_annotations=True))

    def test_a_plan_from_the_bare_graph_is_refused_on_annotations(self, path: Path) -> None:
        made = plan(load_model(path, ignore_annotations=True), "70%", strategy="greedy")
        with pytest.raises(PlanMismatchError, match="made without annotations, the model is read with them"):
            verify(made, load_model(path))

    def test_a_plan_is_refused_on_other_work(self, path: Path, tmp_path: Path) -> None:
        made = plan(load_model(path), "70%", strategy="greedy")
        other = residual_network()
        works = (replace(other.works[0], forward_kernels=9), *other.works[1:])
        written = write_annotated(tmp_path / "other.onnx", replace(other, works=works))
        with pytest.raises(PlanMismatchError, match="storages, ops or costs differ"):
            verify(made, load_model(written))
