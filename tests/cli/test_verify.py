"""`ogc-plan verify`, and every command on a file with annotations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.calls import Call
from tests.files.annotated_files import write_annotated
from tests.files.onnx_files import write_perceptron


class TestVerify:
    def test_a_plan_alone(self, run: Call, plan_file: Path) -> None:
        done = run("verify", plan_file)
        assert (done.code, done.out.count("equal")) == (0, 4)

    def test_a_plan_with_its_model_and_the_recorded_options(self, run: Call, plan_file: Path, model: Path) -> None:
        done = run("verify", plan_file, model)
        assert (done.code, "derived afresh from the same file" in done.out) == (0, True)

    def test_all_options_are_recorded(self, run: Call, model: Path, tmp_path: Path) -> None:
        words = ("--input", "x=512x32", "--frozen", "w[01]", "--optimizer", "adamw", "--grad-accumulation")
        made = run(model, *words, "--device", "t4", "--budget", "80%", "-q", "-o", tmp_path / "p.json")
        assert (made.code, run("verify", tmp_path / "p.json", model).code) == (0, 0)

    def test_other_weights_are_the_same_model(self, run: Call, plan_file: Path, model: Path, tmp_path: Path) -> None:
        proto = onnx.load(str(model))
        proto.graph.initializer[0].raw_data = b"\x01" * len(proto.graph.initializer[0].raw_data)
        onnx.save(proto, str(tmp_path / "trained.onnx"))
        done = run("verify", plan_file, tmp_path / "trained.onnx")
        assert (done.code, "weights" in done.out) == (0, True)

    @pytest.mark.parametrize("options", [{"layers": 3}, {"width": 16}, {"op": "Sigmoid"}])
    def test_another_model_is_code_7(self, run: Call, plan_file: Path, tmp_path: Path, options: dict[str, Any]) -> None:
        done = run("verify", plan_file, write_perceptron(tmp_path / "other.onnx", **options))
        assert (done.code, bool(done.error), done.out) == (7, True, "")

    def test_json(self, run: Call, plan_file: Path, model: Path) -> None:
        data = json.loads(run("verify", plan_file, model, "--format", "json").out)
        assert (data["verified"], data["model"]["sha256_equal"]) == (True, True)

    def test_both_from_stdin_is_refused(self, run: Call) -> None:
        assert run("verify", "-", "-").code == 2


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_annotated(tmp_path_factory.mktemp("annotated") / "network.onnx")


class TestAnnotations:
    GREEDY = ("--budget", "70%", "--strategy", "greedy")
    SOURCE = re.compile(r"^annotations +torch 2.13.0 on cpu$", re.MULTILINE)

    @pytest.mark.parametrize("words", [GREEDY, ("compare", "--budget", "70%"), ("show",)])
    def test_every_report_says_where_the_graph_comes_from(self, run: Call, annotated: Path, words: Any) -> None:
        done = run(*words, annotated)
        assert (done.code, bool(self.SOURCE.search(done.out))) == (0, True)

    @pytest.mark.parametrize("words", [GREEDY, ("compare", "--budget", "70%"), ("show",)])
    def test_annotations_can_be_ignored(self, run: Call, annotated: Path, words: Any) -> None:
        done = run(*words, annotated, "--ignore-annotations")
        assert (done.code, "annotations" in done.out) == (0, False)

    def test_nothing_is_claimed_that_only_the_bare_file_tells(self, run: Call, annotated: Path) -> None:
        out = run("show", annotated, "-v").out
        assert [w for w in ("saved by the op", "outputs", "elements", "inference form", " type") if w in out] == []

    def test_verbose_lists_what_keep_and_recompute_match(self, run: Call, annotated: Path) -> None:
        out = run("show", annotated, "-v").out
        assert [name for name in ("product1", "product1.view", "mask1", "statistics") if f"  {name}\n" not in out] == []

    def test_json_names_the_source_and_says_null_where_it_does_not_know(self, run: Call, annotated: Path) -> None:
        data = json.loads(run("show", annotated, "--format", "json", "-v").out)
        unknown = [data[key] for key in ("inputs", "outputs", "dims", "tensors")]
        unknown.append(data["largest_storages"][0]["type"])
        assert (data["annotations"], unknown) == ({"framework": "torch 2.13.0", "device": "cpu"}, [None] * 5)

    @pytest.mark.parametrize("option", [("--dim", "n=4"), ("--batch", "4"), ("--input", "x=4x64"), ("--frozen", "w*")])
    @pytest.mark.parametrize("command", [GREEDY, ("show",), ("compare",)])
    def test_options_that_would_change_the_graph_are_one_error_line(
        self, run: Call, annotated: Path, command: Any, option: tuple[str, str]
    ) -> None:
        done = run(*command, annotated, *option)
        assert (done.code, f"{option[0]} cannot change" in done.error, "--ignore" in done.err) == (2, True, True)

    def test_a_file_changed_after_its_export_is_code_3(self, run: Call, annotated: Path, tmp_path: Path) -> None:
        proto = onnx.load(str(annotated), load_external_data=False)
        proto.graph.node[0].metadata_props[0].value = "ghost\x1b[31m"
        (tmp_path / "edited.onnx").write_bytes(proto.SerializeToString())
        done = run(tmp_path / "edited.onnx", *self.GREEDY)
        assert (done.code, "changed after its export" in done.error, "\x1b" in done.err) == (3, True, False)

    @pytest.mark.parametrize("ignored", [(), ("--ignore-annotations",)])
    def test_verify_reads_the_file_as_the_plan_was_made(
        self, run: Call, annotated: Path, tmp_path: Path, ignored: tuple[str, ...]
    ) -> None:
        run(annotated, *self.GREEDY, *ignored, "-q", "-o", tmp_path / "p.json")
        done = run("verify", tmp_path / "p.json", annotated)
        assert (done.code, "is annotated with" in done.out) == (0, not ignored)

    def test_verify_on_a_file_without_annotations_is_code_7(self, run: Call, annotated: Path, tmp_path: Path) -> None:
        proto = onnx.load(str(annotated), load_external_data=False)
        del proto.metadata_props[:]
        (tmp_path / "bare.onnx").write_bytes(proto.SerializeToString())
        run(annotated, *self.GREEDY, "-q", "-o", tmp_path / "p.json")
        done = run("verify", tmp_path / "p.json", tmp_path / "bare.onnx")
        assert (done.code, "made with annotations" in done.error) == (7, True)

    def test_a_plan_is_shown_with_its_source(self, run: Call, annotated: Path, tmp_path: Path) -> None:
        run(annotated, *self.GREEDY, "-q", "-o", tmp_path / "p.json")
        assert self.SOURCE.search(run("show", tmp_path / "p.json").out)
