"""What makes the peaks of a file too small stands above its figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from ogc_plan.planner.display.html.page import report
from ogc_plan.planner.plan_file.reader import read_plan

from tests.cli.calls import Call
from tests.files.onnx_models import save, with_folded_norm

LINE = "warning      1 batch norm was folded into Conv by the exporter: a training step holds"


@pytest.mark.parametrize("words", ["show", "frontier --budgets min", "fit --memory 1MB --multiple-of 64", "compare"])
def test_every_report_on_a_file_with_folded_norms_warns_once(run: Call, tmp_path: Path, words: str) -> None:
    command, *options = words.split()
    assert run(command, save(with_folded_norm(), tmp_path), *options).out.count(LINE) == 1


def test_so_do_its_plan_and_what_shows_the_plan(run: Call, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    made = run(save(with_folded_norm(), tmp_path), "--budget", "100%", "-o", target).out
    shown = run("show", target).out
    assert [(out.count(LINE), out.count("was folded into")) for out in (made, shown)] == [(1, 1), (1, 1)]
    assert "<dt>warning</dt>" in report(read_plan(target))
