"""The figures of training on sentences of many lengths."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ogc_plan.adapters.pytorch.binding.plans import LIMIT

from models.reporting.kept import ROOT
from models.training.varying_lengths import WAYS, lengths_of, report

ROWS: list[dict[str, Any]] = json.loads((ROOT / "models/results/varying_lengths.json").read_text())["rows"]


def test_every_way_is_published() -> None:
    assert [row["way"] for row in ROWS] == list(WAYS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["way"])
def test_more_lengths_than_plans_are_kept_train_to_the_bits_of_eager_training_within_the_budget(
    row: dict[str, Any],
) -> None:
    assert (len(row["lengths"]) > LIMIT, row["unequal"], row["above_budget"]) == (True, [], 0)


def test_no_length_comes_twice() -> None:
    assert len(set(lengths_of(200))) == 200


def test_what_does_not_hold_is_named() -> None:
    row = ROWS[0] | {"unequal": ["gradients"], "above_budget": 3}
    assert [cell.strip() for cell in report([row]).splitlines()[-1].split("|")[-3:-1]] == ["gradients", "3"]
