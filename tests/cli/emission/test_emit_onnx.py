"""`ogc-plan emit --to onnx`: the file that is written, what is said of it, and what is refused with which code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
from ogc_plan.adapters.onnx_step.step_file import KEY

from tests.cli.calls import Call
from tests.files.onnx_models import model as made_of
from tests.files.onnx_models import node, save


@pytest.fixture
def step(run: Call, model: Path, plan_file: Path, tmp_path: Path) -> Path:
    assert run("emit", plan_file, model, "--to", "onnx", "-q", "-o", tmp_path / "step.onnx").code == 0
    return tmp_path / "step.onnx"


def test_the_file_names_the_gradient_of_each_parameter(step: Path) -> None:
    written = onnx.load(step)
    about = json.loads(next(entry.value for entry in written.metadata_props if entry.key == KEY))
    outputs = {entry.name for entry in written.graph.output}
    assert about["parameters"]
    assert set(about["parameters"].values()) < outputs


def test_the_file_is_valid_onnx(step: Path) -> None:
    onnx.checker.check_model(onnx.load(step), full_check=True)


def test_the_report_says_how_to_run_it(run: Call, model: Path, plan_file: Path, tmp_path: Path) -> None:
    done = run("emit", plan_file, model, "--to", "onnx", "-o", tmp_path / "step.onnx")
    assert "execution_order=PRIORITY_BASED" in " ".join(done.out.split())


def test_the_report_as_json_has_the_names(run: Call, model: Path, plan_file: Path, tmp_path: Path) -> None:
    done = run("emit", plan_file, model, "--to", "onnx", "--format", "json", "-o", tmp_path / "step.onnx")
    assert {"to", "nodes", "nodes_peak_nbytes", "parameters", "session", "loss"} <= json.loads(done.out).keys()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--to", "onnx", "--loss-output", "z"), "--loss-output 'z' is no output of the model"),
        (("--to", "onnx", "--loss", "cross_entropy", "--class-axis", "5"), "--class-axis 5 is no dimension"),
        (("--to", "onnx", "--class-axis", "1"), "--class-axis has no effect on --loss mse"),
        (("--to", "onnx", "--loss", "gradients", "--class-axis", "1"), "no effect on --loss gradients"),
        (("--to", "onnx", "--loss", "gradients", "--loss-output", "y"), "--loss-output has no effect on"),
        (("--to", "torch-sac", "--loss", "mse"), "--loss is an option of --to onnx"),
        (("--to", "onnx", "--format", "json"), "--format json leaves no standard output for the step"),
    ],
)
def test_options_that_do_not_fit_end_with_code_2(
    words: tuple[str, ...], told: str, run: Call, model: Path, plan_file: Path
) -> None:
    done = run("emit", plan_file, model, *words)
    assert (done.code, told in done.error) == (2, True)


def test_a_step_for_a_terminal_ends_with_code_2(
    run: Call, model: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = run("emit", plan_file, model, "--to", "onnx")
    assert (done.code, "write -o step.onnx" in done.err) == (2, True)


@pytest.mark.parametrize(("words", "code"), [((), 2), (("--loss-output", "z"), 0)], ids=["refused", "remedy"])
def test_a_loss_that_no_parameter_has_a_part_in_ends_with_code_2(
    words: tuple[str, ...], code: int, run: Call, tmp_path: Path
) -> None:
    nodes = [node("Tanh", "x", "y"), node("MatMul", "x w", "z")]
    path = save(made_of(nodes, {"x": (4, 4)}, "y z", weights={"w": (4, 4)}), tmp_path)
    assert run(path, "--budget", "100%", "-q", "-o", tmp_path / "plan.json").code == 0
    done = run("emit", tmp_path / "plan.json", path, "--to", "onnx", *words, "-o", tmp_path / "step.onnx")
    assert (done.code, "no trained parameter has a part in" in done.err) == (code, code == 2)


def test_a_plan_of_another_file_ends_with_code_7(run: Call, plan_file: Path, tmp_path: Path) -> None:
    proto = made_of([node("MatMul", "x w", "y")], {"x": ("batch", 4)}, weights={"w": (4, 4)})
    done = run("emit", plan_file, save(proto, tmp_path), "--to", "onnx", "-o", tmp_path / "step.onnx")
    assert (done.code, (tmp_path / "step.onnx").exists()) == (7, False)


def test_an_op_without_a_gradient_ends_with_code_4_and_is_named(run: Call, tmp_path: Path) -> None:
    proto = made_of([node("MatMul", "x w", "h"), node("Det", "h", "y", node_name="last")], {"x": (4, 4)},
                    weights={"w": (4, 4)})  # fmt: skip
    path = save(proto, tmp_path)
    assert run(path, "--budget", "100%", "-q", "-o", tmp_path / "plan.json").code == 0
    done = run("emit", tmp_path / "plan.json", path, "--to", "onnx", "-o", tmp_path / "step.onnx")
    assert (done.code, 'node "last" (Det)' in done.error) == (4, True)


def test_a_full_disk_ends_with_code_8(run: Call, model: Path, plan_file: Path) -> None:
    done = run("emit", plan_file, model, "--to", "onnx", "-o", "/dev/full")
    assert (done.code, "No space left on device" in done.error) == (8, True)
