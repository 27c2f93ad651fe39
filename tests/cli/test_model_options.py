"""The options of the command line that say how a model is read and timed, and what its reports owe to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ogc_plan.planner.costs.devices import DEVICES, SPEC_EXAMPLE

from tests.cli.calls import GREEDY, Call
from tests.files.annotated_files import write_annotated
from tests.files.onnx_models import model as onnx_model
from tests.files.onnx_models import node, save, unknown_op


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A file that describes the device `mine`."""
    (tmp_path / "mine.json").write_text(SPEC_EXAMPLE)
    return tmp_path / "mine.json"


@pytest.fixture
def plan_for_spec(run: Call, model: Path, spec: Path, tmp_path: Path) -> Path:
    """A plan timed for the device of `spec`."""
    assert run(model, *GREEDY, "--device-spec", spec, "-q", "-o", tmp_path / "p.json").code == 0
    return tmp_path / "p.json"


def words_of(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


class TestDevices:
    def test_the_list_has_every_device_and_how_to_describe_another(self, run: Call) -> None:
        listed = run("devices")
        assert (listed.code, [name for name in DEVICES if f"\n{name} " not in listed.out]) == (0, [])
        assert SPEC_EXAMPLE in words_of(listed.out)

    def test_verbose_names_the_documents(self, run: Call) -> None:
        out = run("devices", "-v").out
        assert [device.source for device in DEVICES.values() if device.source not in out] == []

    def test_json_has_the_figures(self, run: Call) -> None:
        data = {entry["name"]: entry for entry in json.loads(run("devices", "--format", "json").out)}
        t4 = data["t4"]
        assert (t4["bandwidth_gbps"], t4["memory_nbytes"], data["cpu"]["memory_nbytes"]) == (320.0, 16 * 10**9, None)

    @pytest.mark.parametrize(
        "words",
        [GREEDY, ("show", "--dim", "batch=64"), ("compare", "--dim", "batch=64", "--budget", "90%")],
        ids=["plan", "show", "compare"],
    )
    def test_every_command_takes_a_device_file(
        self, run: Call, model: Path, spec: Path, words: tuple[str, ...]
    ) -> None:
        made = run(*words, model, "--device-spec", spec)
        assert (made.code, "roofline:mine" in made.out) == (0, True)

    def test_a_plan_for_it_verifies_without_the_file(
        self, run: Call, model: Path, spec: Path, plan_for_spec: Path
    ) -> None:
        spec.unlink()
        verified = run("verify", plan_for_spec, model)
        assert verified.code == 0
        assert "those of the plan: the device 'mine' is not built in" in words_of(verified.out)

    def test_verify_says_whether_the_times_were_derived(
        self, run: Call, model: Path, plan_file: Path, plan_for_spec: Path
    ) -> None:
        plans = plan_file, plan_for_spec
        times = [json.loads(run("verify", path, model, "--format", "json").out)["times"] for path in plans]
        assert times == ["derived", "of the plan"]

    def test_an_annotated_file_can_be_timed_for_it(self, run: Call, spec: Path, tmp_path: Path) -> None:
        path, made = write_annotated(tmp_path / "network.onnx"), tmp_path / "p.json"
        asked = ("--budget", "100%", "--strategy", "keep-all", "--device-spec", spec, "-q", "-o", made)
        assert (run(path, *asked).code, run("verify", made, path).code) == (0, 0)

    def test_two_devices_are_refused(self, run: Call, model: Path, spec: Path) -> None:
        refused = run(model, *GREEDY, "--device", "t4", "--device-spec", spec)
        assert (refused.code, "both name a device" in refused.error) == (2, True)

    def test_a_missing_file_is_code_8(self, run: Call, model: Path) -> None:
        refused = run(model, *GREEDY, "--device-spec", "absent.json")
        assert (refused.code, '--device-spec "absent.json" cannot be read' in refused.error) == (8, True)

    def test_it_does_not_apply_to_a_plan(self, run: Call, plan_file: Path, spec: Path) -> None:
        refused = run("show", plan_file, "--device-spec", spec, "--charge-unknown")
        assert refused.code == 2
        assert "--device-spec, --charge-unknown cannot change a plan" in refused.err


class TestReading:
    def test_shape_is_another_spelling_of_input(self, run: Call, model: Path) -> None:
        shown = [run("show", model, option, "x=64x32", "--format", "json") for option in ("--input", "--shape")]
        assert json.loads(shown[0].out) == json.loads(shown[1].out)

    @pytest.mark.parametrize("words", [("--budget", "100%"), ("show",), ("compare", "--budget", "90%")])
    def test_an_unknown_op_is_refused_unless_it_is_to_be_charged(
        self, run: Call, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        path = unknown_op(tmp_path)
        refused = run(*words, path)
        assert (refused.code, "Mystery" in refused.err, "--charge-unknown" in refused.err) == (4, True, True)
        assert run(*words, path, "--charge-unknown").code == 0

    def test_a_plan_with_a_charged_op_verifies_without_the_option(self, run: Call, tmp_path: Path) -> None:
        path = unknown_op(tmp_path)
        run(path, "--budget", "100%", "--charge-unknown", "-q", "-o", tmp_path / "p.json")
        assert run("verify", tmp_path / "p.json", path).code == 0

    @pytest.mark.parametrize("words", [("--budget", "60%"), ("show",), ("compare",)])
    def test_nothing_to_train_is_one_error_for_every_command(
        self, run: Call, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        assert run(*words, save(onnx_model([node("Relu", "x", "y")], {"x": (4, 8)}), tmp_path)).code == 4


class TestReports:
    def test_a_budget_below_the_floor_is_infeasible_in_the_comparison(self, run: Call, model: Path) -> None:
        out = run("compare", model, "--dim", "batch=1024", "--budget", "1%").out
        assert ("infeasible" in out, "no plan found" in out) == (True, False)

    def test_a_glob_is_named_when_it_has_no_effect(self, run: Call, model: Path) -> None:
        kept = ("--dim", "batch=64", "--budget", "100%", "--strategy", "keep-all", "--recompute", "g5")
        assert "--recompute 'g5' has no effect" in words_of(run(model, *kept).out)
        assert "has no effect" not in run(model, *GREEDY, "--recompute", "r1").out
        assert json.loads(run(model, *GREEDY, "--format", "json").out)["without_effect"] == []
