"""The first day's command copes with what a new machine may lack, and with what dies on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from models.cuda.day_one import __main__ as day_one
from models.cuda.day_one.__main__ import Result
from models.cuda.day_one.page import report
from models.reporting.kept import ROOT

FILE = "found.json"


def run(folder: Path, *options: str) -> dict[str, Any]:
    """The record of a run of one stage."""
    day_one.main(["-o", str(folder / FILE), "--only", "bits", *options])
    record: dict[str, Any] = json.loads((folder / FILE).read_text())
    return record


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The networks of each process; one that comes to gpt dies of it."""
    seen: list[Sequence[str]] = []

    def dies(*given: Any) -> Result:
        networks = given[-1]
        seen.append(networks)
        met = networks[: networks.index("gpt")] if "gpt" in networks else networks
        return Result("failed" if "gpt" in networks else "done", found={"rows": [{"network": name} for name in met]})

    monkeypatch.setattr(day_one, "run_stage", dies)
    return seen


def test_the_command_needs_none_of_the_packages_that_stages_need() -> None:
    told = "import sys, models.cuda.day_one.__main__; print({'torch', 'numpy', 'ogc_plan'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_where_a_process_dies_another_one_goes_on(ran: list[Sequence[str]], tmp_path: Path) -> None:
    rows = run(tmp_path)["stages"]["bits"]["found"]["rows"]
    assert [row["network"] for row in rows] == ["resnet50", "unet"]


def test_a_network_that_found_nothing_is_tried_once_more(ran: list[Sequence[str]], tmp_path: Path) -> None:
    run(tmp_path)
    assert ran == [("resnet50", "gpt", "unet"), ["gpt", "unet"], ["unet"]]


def test_a_stage_of_which_a_process_died_has_failed(ran: list[Sequence[str]], tmp_path: Path) -> None:
    assert run(tmp_path)["stages"]["bits"]["outcome"] == "failed"


def test_results_that_no_page_can_be_made_of_are_kept(ran: list[Sequence[str]], tmp_path: Path) -> None:
    run(tmp_path)
    assert "No page could be made of the results" in (tmp_path / FILE).with_suffix(".md").read_text()


def test_the_page_of_single_stages_says_nothing_of_the_card() -> None:
    told = report({"command": "day_one", "commit": "0a1b", "standin": False, "stages": {}})
    assert told.startswith("`day_one` on a card that no stage described, commit 0a1b\n")


def test_a_stage_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(day_one, "run_stage", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in run(tmp_path)["stages"]["bits"]["error"]


def test_a_wheel_that_is_no_archive_stops_nothing(ran: list[Sequence[str]], tmp_path: Path) -> None:
    (tmp_path / "broken.whl").write_text("")
    assert run(tmp_path, "--wheels", str(tmp_path))["stages"].keys() == {"bits"}
