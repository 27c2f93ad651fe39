"""What the committed comparison of real steps says: ours beside every other way to save memory."""

from __future__ import annotations

import json
from typing import Any

from models.readme.__main__ import RESULTS

ROWS: list[dict[str, Any]] = [
    row
    for row in json.loads((RESULTS / "executor_benchmark.json").read_text())["rows"]
    if row["method"] != "eager" and "peak_nbytes" in row["result"]
]


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['case']}, {row['method']}" for row in rows]


def test_ours_holds_no_more_and_takes_no_longer_than_the_method_beside_it() -> None:
    keys = ("peak_nbytes", "time_ratio")
    assert names([row for row in ROWS if any(row["planned"][key] > row["result"][key] for key in keys)]) == []


def test_ours_trained_to_the_bits_of_eager() -> None:
    assert names([row for row in ROWS if any(same is False for same in row["planned"]["equal"].values())]) == []


def test_the_three_networks_are_there() -> None:
    assert {row["case"] for row in ROWS} == {"resnet50", "gpt", "unet"}
