"""What the committed comparison of real steps says: ours beside every other way to save memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results"
ROWS: list[dict[str, Any]] = [
    row
    for row in json.loads((RESULTS / "executor_benchmark.json").read_text())["rows"]
    if row["method"] != "eager" and "peak_nbytes" in row["result"]
]
NAMES = [f"{row['case']}, {row['method']}" for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_ours_holds_no_more_than_the_method_beside_it(row: dict[str, Any]) -> None:
    assert row["planned"]["peak_nbytes"] <= row["result"]["peak_nbytes"]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_ours_took_no_longer_than_the_method_beside_it(row: dict[str, Any]) -> None:
    assert row["planned"]["time_ratio"] <= row["result"]["time_ratio"]


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_ours_trained_to_the_bits_of_eager(row: dict[str, Any]) -> None:
    assert all(value for value in row["planned"]["equal"].values() if isinstance(value, bool))


def test_the_three_networks_are_there() -> None:
    assert {row["case"] for row in ROWS} == {"resnet50", "gpt", "unet"}
