"""`ogc-plan verify --run`: a step by the plan is trained beside a plain one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import beside_plain, export
from ogc_plan.adapters.pytorch.binding import plan_of_file
from ogc_plan.adapters.pytorch.execution.executor import Executor
from ogc_plan.planner.errors import UsageError
from torch import nn

from tests.cli.calls import Call, Run

BUILDS = """
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 3, 8, 8), torch.arange(64) % 5


def net():
    block = lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh(), nn.Dropout(0.2))
    return nn.Sequential(nn.Conv2d(3, 8, 3), *[block() for _ in range(4)], nn.Flatten(), nn.Linear(288, 5))


def build():
    return net(), x


def with_loss():
    return net(), (x,), {}, lambda output: nn.functional.cross_entropy(output, y)


def two_losses():
    return net(), (x,), lambda output: output.sum(), lambda output: output.sum()


def evaluated():
    return net().eval(), (x,)


def wide():
    return net(), (torch.randn(2, 3, 9, 9),)


def unfinished():
    raise KeyError("weights.pt")


def not_a_loss():
    return net(), (x,), lambda output: output.loss
"""
HERE = "builds_of_a_test"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with functions that build, the file of their module and a plan of it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / f"{HERE}.py").write_text(BUILDS)
    made: dict[str, Any] = {}
    exec(BUILDS, made)
    export(made["net"](), (made["x"],), folder / "net.onnx")
    from ogc_plan.cli.main import main

    assert main([str(folder / "net.onnx"), "--budget", "60%", "-q", "-o", str(folder / "plan.json")]) == 0
    return folder


@pytest.fixture
def verify(run: Call, files: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Verify the plan in its folder with further words."""
    monkeypatch.chdir(files)
    monkeypatch.syspath_prepend(files)

    def call(*words: Any) -> Run:
        return run("verify", "plan.json", "net.onnx", *words)

    return call


def test_gradients_buffers_and_the_random_stream_are_told_to_be_equal(verify: Call) -> None:
    done = verify("--run", f"{HERE}:with_loss")
    told = [line.split()[0] for line in done.out.splitlines() if line.rstrip().endswith("equal to the bit")]
    assert (done.code, told) == (0, ["outputs", "gradients", "buffers", "random"])
    assert "a step of Sequential on cpu, with the plan and without it" in done.out


def test_the_measured_peak_is_the_predicted_one(verify: Call) -> None:
    found = json.loads(verify("--run", f"{HERE}:build", "--format", "json").out)["trained"]
    number_and_its_gradient = 8
    assert found["planned"]["peak_nbytes"] == found["predicted_peak_nbytes"] + number_and_its_gradient


def test_plain_training_holds_more(verify: Call) -> None:
    found = json.loads(verify("--run", f"{HERE}:build", "--format", "json").out)["trained"]
    assert found["plain"]["peak_nbytes"] > found["planned"]["peak_nbytes"]


def _wrong_gradient(*arguments: Any, forward: Any = Executor.__call__, **named: Any) -> Any:
    output = forward(*arguments, **named)
    output.register_hook(lambda gradient: gradient * 1.5)
    return output


def test_a_wrong_gradient_is_code_7_after_the_report(verify: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "__call__", _wrong_gradient)
    done = verify("--run", f"{HERE}:build")
    assert (done.code, "differ by at most" in done.out, "other gradients than plain" in done.error) == (7, True, True)


def test_plain_steps_that_differ_from_each_other_are_no_fault_of_the_plan(
    verify: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Executor, "__call__", _wrong_gradient)
    monkeypatch.setattr(torch, "manual_seed", lambda _: torch.seed())
    done = verify("--run", f"{HERE}:build")
    assert (done.code, "does not give the same gradients each time" in done.out) == (0, True)


def test_where_plain_training_runs_out_of_memory_the_planned_step_is_still_told(
    verify: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = beside_plain._Steps.recorded

    def too_large(steps: Any, module: nn.Module, refusal: Any) -> Any:
        if refusal is UsageError:
            raise torch.OutOfMemoryError
        return recorded(steps, module, refusal)

    monkeypatch.setattr(beside_plain._Steps, "recorded", too_large)
    done = verify("--run", f"{HERE}:build")
    assert (done.code, "out of memory" in done.out, "equal to the bit" in done.out) == (0, True, False)


def test_a_step_leaves_buffers_and_generators_as_they_are(files: Path) -> None:
    made: dict[str, Any] = {}
    exec(BUILDS, made)
    module, x = made["build"]()
    before = [*(buffer.clone() for buffer in module.buffers()), torch.get_rng_state()]
    from ogc_plan.planner.plan_file.reader import read_plan

    beside_plain.train_beside_plain(read_plan(files / "plan.json"), module, (x,), {}, None)
    assert all(map(torch.equal, before, [*module.buffers(), torch.get_rng_state()]))


def test_a_bare_file_trains_by_its_own_plan(run: Call, model: Path, plan_file: Path) -> None:
    found = json.loads(run("verify", plan_file, model, "--run", "onnx", "--format", "json").out)["trained"]
    assert (found["planned_anew"], found["equal"]) == (False, True)


def test_a_plan_of_a_bare_file_that_does_not_fit_in_pytorch_is_made_anew(
    run: Call, model: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_of_file, "into_budget", lambda *_: None)
    found = json.loads(run("verify", plan_file, model, "--run", "onnx", "--format", "json").out)["trained"]
    assert (found["planned_anew"], found["equal"]) == (True, True)


def test_frozen_parameters_of_a_bare_file_get_no_gradient(run: Call, model: Path, tmp_path: Path) -> None:
    words = ("--batch", "64", "--budget", "90%", "--frozen", "w[01]", "-q", "-o", tmp_path / "p.json")
    assert run(model, *words).code == 0
    found = json.loads(run("verify", tmp_path / "p.json", model, "--run", "onnx", "--format", "json").out)["trained"]
    assert found["differences"]["gradients"]["tensors"] == 4


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--run", "builds"), 2, "neither pkg.mod:build nor onnx"),
        (("--run", "no_such_file:build"), 2, "there is no module 'no_such_file'"),
        (("--run", f"{HERE}:nothing"), 2, "raised AttributeError: module 'builds_of_a_test' has no attribute"),
        (("--run", f"{HERE}:unfinished"), 2, "raised KeyError: 'weights.pt'"),
        (("--run", f"{HERE}:net"), 2, "returned (Sequential)"),
        (("--run", f"{HERE}:two_losses"), 2, "returned (Sequential, tuple, function, function)"),
        (("--run", f"{HERE}:evaluated"), 2, "in evaluation mode"),
        (("--run", f"{HERE}:wide"), 4, "must have same reduction dim"),
        (("--run", f"{HERE}:not_a_loss"), 2, "a step of Sequential without a plan fails: "),
        (("--run", "onnx"), 2, "which the file does not hold"),
        (("--snapshot", "step.pickle"), 2, "--snapshot is of a step that --run trains"),
        (("--run", f"{HERE}:build", "--snapshot", "step.pickle"), 2, "Sequential is on cpu"),
        (("--run", f"{HERE}:build", "--snapshot", "plan.json"), 2, "--snapshot 'plan.json' would overwrite"),
    ],
)
def test_what_cannot_be_trained_is_one_line(verify: Call, words: tuple[str, ...], code: int, told: str) -> None:
    done = verify(*words)
    assert (done.code, told in done.error, done.out) == (code, True, ""), done.err


def test_a_run_needs_the_model(run: Call, plan_file: Path) -> None:
    assert "--run trains a model, and none is given" in run("verify", plan_file, "--run", "onnx").error
