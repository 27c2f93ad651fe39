"""The commands for the first day on a GPU run on whatever card there is, and write what they document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.cuda.day_one.__main__ import STAGES, main

FILE = "found.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("day_one")


@pytest.fixture(scope="module")
def record(folder: Path) -> Any:
    assert main(["-o", str(folder / FILE), "--small", "--minutes", "15", "--together"]) == 0
    return json.loads((folder / FILE).read_text())


def test_every_stage_ran(record: Any) -> None:
    assert {name: stage["outcome"] for name, stage in record["stages"].items()} == dict.fromkeys(STAGES, "done")


def test_every_stage_found_something(record: Any) -> None:
    assert [name for name, stage in record["stages"].items() if not stage["found"]] == []


def test_the_file_has_the_keys_that_the_command_documents(record: Any) -> None:
    assert set(record) == {"command", "commit", "standin", "small", "minutes", "stages"}
    assert {key for stage in record["stages"].values() for key in stage} == {"outcome", "seconds", "error", "found"}


def test_every_network_is_in_every_table(record: Any) -> None:
    tables = {name: stage["found"]["rows"] for name, stage in record["stages"].items() if "rows" in stage["found"]}
    found = {name: {row["network"] for row in rows} for name, rows in tables.items()}
    assert found == {name: {"resnet50", "gpt", "unet"} for name in tables}


def test_the_page_has_a_table_for_each(record: Any, folder: Path) -> None:
    text = (folder / FILE).with_suffix(".md").read_text()
    tables = [name for name, stage in record["stages"].items() if "rows" in stage["found"]]
    assert [name for name in tables if f"## {name}\n" not in text] == []


def test_a_stage_without_time_is_named(tmp_path: Path) -> None:
    assert main(["-o", str(tmp_path / FILE), "--small", "--minutes", "0.01", "--only", "bits"]) == 1
    stages = json.loads((tmp_path / FILE).read_text())["stages"]
    assert stages["bits"]["outcome"] == "no time left"
