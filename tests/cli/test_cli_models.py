"""The options of the command line that say how a model is read and timed, and what its reports owe to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ogc_plan.cli.main import main
from ogc_plan.planner.costs.devices import DEVICES, SPEC_EXAMPLE

from tests.files.annotated_files import write_annotated
from tests.files.onnx_files import write_perceptron
from tests.files.onnx_models import model, node, save
from tests.planner.autodiff.test_assumptions import unknown

GREEDY = ("--dim", "batch=4096", "--budget", "70%", "--strategy", "greedy")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_perceptron(tmp_path_factory.mktemp("models") / "perceptron.onnx")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "mine.json").write_text(SPEC_EXAMPLE)
    return tmp_path / "mine.json"


class TestDevices:
    def test_the_list_has_every_device(self, run: Run) -> None:
        code, out, _ = run("devices")
        assert (code, [name for name in DEVICES if f"\n{name} " not in out]) == (0, [])

    def test_verbose_names_the_documents(self, run: Run) -> None:
        out = run("devices", "-v")[1]
        assert [device.source for device in DEVICES.values() if device.source not in out] == []

    def test_json_has_the_figures(self, run: Run) -> None:
        data = {entry["name"]: entry for entry in json.loads(run("devices", "--format", "json")[1])}
        assert (data["t4"]["bandwidth_gbps"], data["t4"]["memory_nbytes"], data["cpu"]["memory_nbytes"]) == (
            320.0,
            16 * 10**9,
            None,
        )

    def test_the_list_shows_a_file_for_a_device_of_ones_own(self, run: Run) -> None:
        assert SPEC_EXAMPLE in " ".join(run("devices")[1].split())

    @pytest.mark.parametrize("words", [GREEDY, ("show", "--dim", "batch=64"), ("compare", "--dim", "batch=64")])
    def test_every_command_takes_a_device_of_ones_own(
        self, run: Run, perceptron: Path, spec: Path, words: tuple[str, ...]
    ) -> None:
        code, out, _ = run(
            *words, perceptron, "--device-spec", spec, *(("--budget", "90%") if "compare" in words else ())
        )
        assert (code, "roofline:mine" in out) == (0, True)

    def test_a_plan_for_it_verifies_without_the_file(
        self, run: Run, perceptron: Path, spec: Path, tmp_path: Path
    ) -> None:
        run(perceptron, *GREEDY, "--device-spec", spec, "-q", "-o", tmp_path / "p.json")
        spec.unlink()
        code, out, _ = run("verify", tmp_path / "p.json", perceptron)
        assert (code, "those of the plan: the device 'mine' is not built in" in " ".join(out.split())) == (0, True)

    def test_verify_says_whether_the_times_were_derived(
        self, run: Run, perceptron: Path, spec: Path, tmp_path: Path
    ) -> None:
        told = []
        for device in (("--device", "t4"), ("--device-spec", spec)):
            run(perceptron, *GREEDY, *device, "-q", "-o", tmp_path / "p.json")
            told.append(json.loads(run("verify", tmp_path / "p.json", perceptron, "--format", "json")[1])["times"])
        assert told == ["derived", "of the plan"]

    def test_verify_still_derives_the_bytes_of_such_a_plan(
        self, run: Run, perceptron: Path, spec: Path, tmp_path: Path
    ) -> None:
        run(perceptron, *GREEDY, "--device-spec", spec, "-q", "-o", tmp_path / "p.json")
        other = write_perceptron(tmp_path / "other.onnx", width=16)
        assert run("verify", tmp_path / "p.json", other)[0] == 7

    def test_two_devices_are_refused(self, run: Run, perceptron: Path, spec: Path) -> None:
        code, _, err = run(perceptron, *GREEDY, "--device", "t4", "--device-spec", spec)
        assert (code, "both name a device" in err) == (2, True)

    def test_a_missing_file_is_code_8(self, run: Run, perceptron: Path) -> None:
        code, _, err = run(perceptron, *GREEDY, "--device-spec", "absent.json")
        assert (code, 'error: --device-spec "absent.json" cannot be read' in err) == (8, True)

    def test_it_does_not_apply_to_a_plan(self, run: Run, perceptron: Path, spec: Path, tmp_path: Path) -> None:
        run(perceptron, *GREEDY, "-q", "-o", tmp_path / "p.json")
        code, _, err = run("show", tmp_path / "p.json", "--device-spec", spec, "--charge-unknown")
        assert (code, "--device-spec, --charge-unknown cannot change a plan" in err) == (2, True)

    def test_an_annotated_file_can_be_timed_for_a_device_of_ones_own(
        self, run: Run, spec: Path, tmp_path: Path
    ) -> None:
        path = write_annotated(tmp_path / "network.onnx")
        made = run(
            path, "--budget", "100%", "--strategy", "keep-all", "--device-spec", spec, "-q", "-o", tmp_path / "p.json"
        )
        assert (made[0], run("verify", tmp_path / "p.json", path)[0]) == (0, 0)


class TestReading:
    def test_shape_is_another_spelling_of_input(self, run: Run, perceptron: Path) -> None:
        data = [
            json.loads(run("show", perceptron, option, "x=64x32", "--format", "json")[1])
            for option in ("--input", "--shape")
        ]
        assert data[0] == data[1]

    def test_the_value_of_shape_is_no_file(self, run: Run, perceptron: Path) -> None:
        assert run("--shape", "x=64x32", "show", perceptron)[0] == 0

    @pytest.mark.parametrize("words", [("--budget", "100%"), ("show",), ("compare", "--budget", "90%")])
    def test_an_unknown_op_is_refused_unless_it_is_to_be_charged(
        self, run: Run, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        path = unknown(tmp_path)
        refused, charged = run(*words, path), run(*words, path, "--charge-unknown")
        assert (refused[0], "Mystery" in refused[2], "--charge-unknown" in refused[2], charged[0]) == (4, True, True, 0)

    def test_a_plan_with_a_charged_op_verifies_without_the_option(self, run: Run, tmp_path: Path) -> None:
        path = unknown(tmp_path)
        run(path, "--budget", "100%", "--charge-unknown", "-q", "-o", tmp_path / "p.json")
        assert run("verify", tmp_path / "p.json", path)[0] == 0

    def test_nothing_to_train_is_one_error_for_every_command(self, run: Run, tmp_path: Path) -> None:
        path = save(model([node("Relu", "x", "y")], {"x": (4, 8)}), tmp_path)
        codes = [run(*words, path)[0] for words in (("--budget", "60%"), ("show",), ("compare",))]
        assert codes == [3, 3, 3]


class TestReports:
    def test_a_budget_below_the_floor_is_infeasible_in_the_comparison(self, run: Run, perceptron: Path) -> None:
        out = run("compare", perceptron, "--dim", "batch=1024", "--budget", "1%")[1]
        assert ("infeasible" in out, "no plan found" in out) == (True, False)

    def test_a_strategy_that_misses_a_feasible_budget_has_no_plan_found(self, run: Run, perceptron: Path) -> None:
        rows = json.loads(run("compare", perceptron, "--dim", "batch=1024", "--budget", "70%", "--format", "json")[1])[
            "rows"
        ]
        assert [row["strategy"] for row in rows if row["infeasible"]] == []

    def test_a_glob_without_effect_is_named(self, run: Run, perceptron: Path) -> None:
        budget = ("--dim", "batch=64", "--budget", "100%", "--strategy", "keep-all")
        out = " ".join(run(perceptron, *budget, "--recompute", "g5")[1].split())
        assert "--recompute 'g5' has no effect" in out

    def test_a_glob_with_effect_is_not(self, run: Run, perceptron: Path) -> None:
        assert "has no effect" not in run(perceptron, *GREEDY, "--recompute", "r1")[1]

    def test_json_lists_the_globs_without_effect(self, run: Run, perceptron: Path) -> None:
        data = json.loads(run(perceptron, *GREEDY, "--format", "json")[1])
        assert data["without_effect"] == []


class TestWhatReportsSay:
    def test_a_plan_of_another_model_is_told_before_an_op_that_cannot_be_read(
        self, run: Run, perceptron: Path, tmp_path: Path
    ) -> None:
        run(perceptron, *GREEDY, "-q", "-o", tmp_path / "p.json")
        nodes = [node("Greater", "x zero", "c"), node("NonZero", "c", "i"), node("Cast", "i", "y", to=1)]
        other = save(model(nodes, {"x": ["batch", 4]}, constants={"zero": np.float32(0)}), tmp_path)
        code, _, err = run("verify", tmp_path / "p.json", other)
        assert (code, "help: verify with the model the plan was made for" in err) == (7, True)

    def test_a_long_path_stays_on_its_line(self, run: Run, tmp_path: Path) -> None:
        folder = tmp_path / ("deep_" * 20)
        folder.mkdir()
        out = run("show", "--dim", "batch=64", write_perceptron(folder / "the_one_with_a_name.onnx"))[1]
        first = out.splitlines()[0]
        assert first.endswith("the_one_with_a_name.onnx,")

    def test_one_parameter_is_not_many(self, run: Run, tmp_path: Path) -> None:
        path = save(model([node("MatMul", "x w", "y")], {"x": [2, 4]}, weights={"w": (4, 4)}), tmp_path)
        assert "1 parameter with 16 elements" in run("show", path)[1]

    def test_ops_that_only_view_memory_are_told_from_planned_ones(self, run: Run, tmp_path: Path) -> None:
        nodes = [node("MatMul", "x w", "m"), node("Transpose", "m", "y", perm=[1, 0])]
        path = save(model(nodes, {"x": [2, 4]}, weights={"w": (4, 4)}), tmp_path)
        told = " ".join(run("show", path)[1].split())
        assert "ops 2 (1 planned, the others only view memory or are constant): MatMul 1, Transpose 1" in told

    def test_a_batch_that_is_too_large_is_told_the_limit(self, run: Run, perceptron: Path) -> None:
        code, _, err = run("show", perceptron, "--batch", "99999999999999")
        assert (code, "give a whole number from 1 to 1099511627775" in err) == (2, True)
