"""The times of planning: committed for every network, budget and size, before and after; and one small one measured."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from models import pytorch_planning_time
from models.pytorch_planning_time import BUDGETS, NETWORKS, SMALL, STAGES, StageClock, main, medians, report

RESULTS = Path(pytorch_planning_time.__file__).with_name("results")
RECORDS = {
    name: json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    for name in ("pytorch_planning_time_before", "pytorch_planning_time")
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_committed_plans_are_those_of_every_network_budget_and_size(name: str) -> None:
    assert [(row["name"], row["budget"], row["plan"]) for row in RECORDS[name]] == [
        (network, budget, plan)
        for network in NETWORKS
        if network not in SMALL
        for budget in BUDGETS
        for plan in ("first", *NETWORKS[network].others)
    ]


@pytest.mark.parametrize("name", RECORDS)
def test_the_stages_of_a_committed_plan_are_known(name: str) -> None:
    assert {stage for row in RECORDS[name] for stage in row["taken"]} <= set(STAGES)


def test_other_sizes_are_planned_without_measuring_times() -> None:
    others = [row for row in RECORDS["pytorch_planning_time"] if row["plan"] != "first"]
    assert [row["plan"] for row in others if "times" in row["taken"]] == []


def test_a_stage_inside_another_one_is_not_part_of_it() -> None:
    clock = StageClock()
    inner = clock.timed(lambda: time.sleep(0.05), "inner")
    clock.timed(lambda: (time.sleep(0.01), inner()), "outer")()
    assert clock.taken["outer"][0] < 0.05 <= clock.taken["inner"][0]


def test_the_medians_are_those_of_the_rounds() -> None:
    rounds = [[{"plan": "first", "taken": {"trace": [wall, 1.0]}}] for wall in (1.0, 5.0, 2.0)]
    (row,) = medians(rounds)
    assert (row["taken"]["trace"], row["total"]) == ([2.0, 1.0], [2.0, 1.0])


def test_a_stage_that_a_plan_has_not_is_a_dash() -> None:
    row = {"name": "gpt", "budget": "60%", "plan": "first", "taken": {"trace": [1.0, 1.0]}, "total": [1.0, 1.0]}
    assert report([row]).splitlines()[-1].count(" - ") == len(STAGES) - 1


def test_a_network_is_timed_and_written(tmp_path: Path) -> None:
    main([*SMALL, "--rounds", "1", "-o", str(tmp_path / "time.json")])
    rows = json.loads((tmp_path / "time.json").read_text())["rows"]
    assert [row["plan"] for row in rows] == ["first", "batch 3"] * len(BUDGETS)


def test_the_page_says_how_far_apart_runs_of_the_same_calls_were() -> None:
    every = (row for record in RECORDS.values() for row in record)
    rows = [row for row in every if (row["name"], row["plan"]) == ("resnet50", "batch 1")]
    seconds = sorted(row["taken"]["workspace"][0] for row in rows)
    page = Path(pytorch_planning_time.__file__).with_name("README.md").read_text()
    assert f"took between {seconds[0]:.1f} and {seconds[-1]:.1f} s to run the same calls of ResNet-50" in page
