"""`ogc-plan emit`: from an exported file and its plan to modules and policies that PyTorch runs as they are."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from ogc_plan.adapters.pytorch import export
from ogc_plan.cli.main import main
from torch import nn

from tests.files.onnx_files import write_perceptron
from tests.modules.checkpoint_modules import Arguments, Perceptron, built, called, stepped, wrap

GREEDY = ("--strategy", "greedy")


@dataclass(frozen=True)
class Run:
    """How a call of the command line ended and what it printed."""

    code: int
    out: str
    err: str


def run(*words: Any) -> Run:
    """One call of the command line."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
        out.flush()
    return Run(code, out.buffer.getvalue().decode(), err.getvalue())  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Exported:
    """A module, its exported file and a plan of it."""

    module: nn.Module
    args: Arguments
    model: Path
    plan: Path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    module, args = built("transformer")
    folder = tmp_path_factory.mktemp("emit")
    model, plan = folder / "model.onnx", folder / "plan.json"
    export(module, args, model)
    assert run(model, "--budget", "80%", *GREEDY, "-q", "-o", plan).code == 0
    return Exported(module, args, model, plan)


@pytest.fixture(scope="module")
def modules(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules") / "modules.json"
    assert run("emit", exported.plan, exported.model, "--to", "torch-modules", "-q", "-o", path).code == 0
    return path


@pytest.fixture(scope="module")
def policy(exported: Exported) -> str:
    return run("emit", exported.plan, exported.model, "--to", "torch-sac", "-q").out


class TestModules:
    def test_it_names_modules_of_the_model(self, exported: Exported, modules: Path) -> None:
        assert called(exported.module).issuperset(json.loads(modules.read_text())["modules"])

    def test_its_peak_is_within_the_budget_of_the_plan(self, exported: Exported, modules: Path) -> None:
        budget = json.loads(exported.plan.read_text())["budget"]["nbytes"]
        assert json.loads(modules.read_text())["peak"]["activation_nbytes"] <= budget

    def test_its_three_lines_train_the_model_to_the_same_bits(
        self, exported: Exported, modules: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(modules.parent)
        wrapped = wrap(exported.module, ())
        lines = json.loads(modules.read_text())["use"]
        exec("\n".join(lines), {"model": wrapped})
        assert stepped(wrapped, exported.args).equals(stepped(exported.module, exported.args))

    def test_the_real_step_peaks_no_higher_than_predicted(self, exported: Exported, modules: Path) -> None:
        data = json.loads(modules.read_text())
        real = stepped(wrap(exported.module, data["modules"]), exported.args)
        assert real.peak_nbytes <= data["peak"]["activation_nbytes"]

    def test_a_bare_file_of_the_exporter_will_do(self, exported: Exported, tmp_path: Path) -> None:
        model, plan = tmp_path / "bare.onnx", tmp_path / "plan.json"
        bare = onnx.load(exported.model)
        del bare.metadata_props[:]
        for node in bare.graph.node:
            for entry in [entry for entry in node.metadata_props if entry.key.startswith("ogc_plan")]:
                node.metadata_props.remove(entry)
        onnx.save(bare, model)
        run(model, "--budget", "80%", *GREEDY, "-q", "-o", plan)
        data = json.loads(run("emit", plan, model, "--to", "torch-modules", "-q").out)
        assert set() < set(data["modules"]) <= called(exported.module)


class TestPolicy:
    def test_it_trains_the_model_to_the_same_bits(self, exported: Exported, policy: str) -> None:
        space: dict[str, Any] = {}
        exec(compile(policy, "policy.py", "exec"), space)
        wrapped = space["apply"](wrap(exported.module, ()))
        assert stepped(wrapped, exported.args).equals(stepped(exported.module, exported.args))

    def test_a_plan_of_a_bare_file_is_refused(self, tmp_path: Path) -> None:
        model, plan = write_perceptron(tmp_path / "model.onnx", layers=4), tmp_path / "plan.json"
        run(model, "--batch", "64", "--budget", "100%", "--strategy", "keep-all", "-q", "-o", plan)
        refused = run("emit", plan, model, "--to", "torch-sac")
        assert (refused.code, "does not show the calls PyTorch makes" in refused.err) == (7, True)


class TestReport:
    def test_for_programs_it_is_json(self, exported: Exported, tmp_path: Path) -> None:
        words = ("--to", "torch-sac", "-q", "--format", "json", "-o", tmp_path / "policy.py")
        assert json.loads(run("emit", exported.plan, exported.model, *words).out)["to"] == "torch-sac"

    def test_nothing_but_the_file_is_on_standard_output(self, exported: Exported) -> None:
        done = run("emit", exported.plan, exported.model, "--to", "torch-modules")
        assert json.loads(done.out)["format"] == "ogc-plan-torch-modules"


def first_line(done: Run) -> str:
    return done.err.splitlines()[0]


class TestRefusals:
    def test_a_budget_that_no_set_of_modules_keeps_exits_with_5(self, tmp_path: Path) -> None:
        module, args = Perceptron(3), (torch.randn(8, 32),)
        model, plan = tmp_path / "model.onnx", tmp_path / "plan.json"
        export(module, args, model)
        run(model, "--budget", "min", *GREEDY, "-q", "-o", plan)
        refused = run("emit", plan, model, "--to", "torch-modules")
        assert (refused.code, "the smallest that torch's checkpoint reached" in first_line(refused)) == (5, True)

    def test_another_model_is_refused(self, exported: Exported, tmp_path: Path) -> None:
        other = write_perceptron(tmp_path / "other.onnx", layers=4)
        assert run("emit", exported.plan, other, "--to", "torch-modules").code == 7

    def test_what_is_no_plan_is_refused(self, exported: Exported) -> None:
        refused = run("emit", exported.model, exported.model, "--to", "torch-modules")
        assert (refused.code, first_line(refused).endswith("is not a plan")) == (7, True)

    def test_what_is_no_model_is_refused(self, exported: Exported, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"\x08\x0a garbage")
        assert run("emit", exported.plan, tmp_path / "model.onnx", "--to", "torch-modules").code == 3

    def test_a_plan_in_place_of_the_model_is_refused(self, exported: Exported) -> None:
        assert run("emit", exported.plan, exported.plan, "--to", "torch-modules").code == 2

    def test_an_unknown_runtime_is_refused(self, exported: Exported) -> None:
        assert run("emit", exported.plan, exported.model, "--to", "tensorrt").code == 2

    @pytest.mark.parametrize("which", ["plan", "model"])
    def test_the_sources_are_never_overwritten(self, exported: Exported, which: str, tmp_path: Path) -> None:
        plan = Path(shutil.copy(exported.plan, tmp_path))
        model = Path(shutil.copy(exported.model, tmp_path))
        target = {"plan": plan, "model": model}[which]
        refused = run("emit", plan, model, "--to", "torch-modules", "-o", target)
        assert (refused.code, f"would overwrite the {which}" in refused.err) == (2, True)

    def test_a_folder_that_does_not_exist_is_made(self, exported: Exported, tmp_path: Path) -> None:
        assert run("emit", exported.plan, exported.model, "--to", "torch-sac", "-o", tmp_path / "no" / "p.py").code == 0
        assert (tmp_path / "no" / "p.py").exists()
