"""The table of layers that exporters write as formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.fidelity.formulas import GOAL_PERCENT, IMAGES, PAIRS, TOKENS, Row, compare, report

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results" / "formulas.json"
ROWS: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rows"]


def rows() -> list[Row]:
    return [Row(row["layer"], row["measured_nbytes"], tuple(row["planned"])) for row in ROWS]


def test_the_committed_table_has_every_layer_in_every_pair() -> None:
    assert {row.layer: len(row.planned) for row in rows()} == dict.fromkeys([*TOKENS, *IMAGES], len(PAIRS))


def test_every_committed_file_is_within_the_goal() -> None:
    found = [difference for row in rows() for difference in row.differences() if difference is not None]
    assert max(map(abs, found)) <= GOAL_PERCENT


def test_the_committed_page_is_that_of_the_committed_rows() -> None:
    assert report(rows()) in RESULTS.with_suffix(".md").read_text()


@pytest.mark.filterwarnings("ignore")
def test_a_layer_is_compared_as_the_committed_table_says(tmp_path: Path) -> None:
    assert compare("CELU", tmp_path) == next(row for row in rows() if row.layer == "CELU")


def test_the_page_names_the_files_beyond_the_goal() -> None:
    assert "beyond it: ReLU TorchScript 11 (+10.0%)." in report([Row("ReLU", 100, (110, 100, 100, 100, 100, 100))])
