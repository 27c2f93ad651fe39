"""`ogc-plan arena`: a file as its schema says, whose lives share no byte, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ogc_plan.planner.arena import step_arena
from ogc_plan.planner.plan_file.reader import read_plan

from tests.cli.calls import Call

SCHEMA = json.loads(Path(step_arena.__file__).with_name("arena.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def written(run: Call, plan_file: Path, tmp_path: Path) -> dict[str, Any]:
    assert run("arena", plan_file, "-o", tmp_path / "arena.json").code == 0
    data: dict[str, Any] = json.loads((tmp_path / "arena.json").read_text(encoding="utf-8"))
    return data


def test_the_schema_is_valid_and_describes_the_file(written: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(written)] == []


def test_lives_that_overlap_in_time_share_no_byte(written: dict[str, Any]) -> None:
    lives = written["lives"]
    for number, one in enumerate(lives):
        assert one["offset"] + one["nbytes"] <= written["arena_nbytes"]
        assert one["offset"] % written["alignment"] == 0
        for other in lives[:number]:
            if one["begin"] < other["end"] and other["begin"] < one["end"]:
                apart = one["offset"] - other["offset"]
                assert apart >= other["nbytes"] or -apart >= one["nbytes"]


def test_the_peak_of_lives_is_the_plans_and_the_ratio_follows(written: dict[str, Any], plan_file: Path) -> None:
    plan = read_plan(plan_file)
    assert written["peak_nbytes"] == plan.peak.total_nbytes - plan.graph.stationary.total_nbytes
    assert written["ratio"] == pytest.approx(written["arena_nbytes"] / written["peak_nbytes"])
    assert written["steps"] == len(plan.schedule)


def test_each_life_spans_steps_of_the_schedule_that_make_and_use_it(written: dict[str, Any], plan_file: Path) -> None:
    plan = read_plan(plan_file)
    names = {storage.name: index for index, storage in enumerate(plan.graph.storages)}
    for life in written["lives"]:
        assert life["first_step"] <= life["last_step"] < len(plan.schedule)
        if life["kind"] == "storage":
            maker = plan.graph.ops[plan.schedule.steps[life["first_step"]].index]
            assert names[life["names"][0]] in maker.writes


def test_what_escapes_can_be_left_out(run: Call, plan_file: Path, written: dict[str, Any]) -> None:
    done = run("arena", plan_file, "--no-escaping")
    inside = json.loads(done.out)
    assert inside["lives"]
    assert not any(life["escapes"] for life in inside["lives"])
    assert len(inside["lives"]) == sum(not life["escapes"] for life in written["lives"])
    assert any(life["escapes"] for life in written["lives"])
    assert "outputs, and gradients that are alive after the step" in " ".join(done.err.split())


def test_the_report_can_be_had_as_json(run: Call, plan_file: Path, tmp_path: Path, written: dict[str, Any]) -> None:
    done = run("arena", plan_file, "--format", "json", "-o", tmp_path / "again.json", "-q")
    assert json.loads(done.out) == {**written, "lives": len(written["lives"])}
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "arena.json").read_bytes()


def test_the_alignment_is_kept(run: Call, plan_file: Path) -> None:
    data = json.loads(run("arena", plan_file, "--alignment", "4096", "-q").out)
    assert data["alignment"] == 4096
    assert [life["offset"] % 4096 for life in data["lives"]] == [0] * len(data["lives"])


@pytest.mark.parametrize("text", ["0", "-1", "512B", "1e3", "٣", "9" * 30])
def test_what_is_no_alignment(run: Call, plan_file: Path, text: str) -> None:
    done = run("arena", plan_file, f"--alignment={text}")
    assert done.code == 2
    assert "is no number of bytes" in done.error


def test_a_model_is_no_plan(run: Call, model: Path) -> None:
    done = run("arena", model)
    assert done.code == 7
    assert "is not a plan" in done.error


def test_a_changed_plan_is_refused(run: Call, plan_file: Path) -> None:
    text = plan_file.read_text(encoding="utf-8")
    data = json.loads(text)
    data["peak"]["activation_nbytes"] -= 1
    plan_file.write_text(json.dumps(data), encoding="utf-8")
    assert run("arena", plan_file).code == 7


def test_the_plan_is_not_overwritten(run: Call, plan_file: Path) -> None:
    done = run("arena", plan_file, "-o", plan_file)
    assert done.code == 2
    assert "would overwrite the plan" in done.error


def test_a_folder_that_is_missing_is_made(run: Call, plan_file: Path, tmp_path: Path) -> None:
    assert run("arena", plan_file, "-o", tmp_path / "nowhere" / "arena.json").code == 0
    assert (tmp_path / "nowhere" / "arena.json").exists()
