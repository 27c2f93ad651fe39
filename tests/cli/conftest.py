"""A small model, a plan of it, and the command line with little effort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ogc_plan.cli.main import main
from ogc_plan.planner.onnx_import import child_process
from ogc_plan.planner.strategies.optimal.effort import EFFORTS

from tests.cli.calls import GREEDY, Call, Run
from tests.files.onnx_files import write_perceptron


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call `main`; its default effort is that of fast, and it reads models in this process, which is large to copy."""
    monkeypatch.setattr(child_process, "get_all_start_methods", list)
    monkeypatch.setitem(EFFORTS, "default", replace(EFFORTS["fast"], name="default"))
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: Any) -> Run:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A perceptron of six layers with a symbolic batch."""
    return write_perceptron(tmp_path_factory.mktemp("cli") / "perceptron.onnx")


@pytest.fixture
def plan_file(run: Call, model: Path, tmp_path: Path) -> Path:
    """A plan of the model."""
    path = tmp_path / "made.json"
    assert run(model, *GREEDY, "-o", path, "-q").code == 0
    return path
