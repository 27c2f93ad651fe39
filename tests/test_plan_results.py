"""The committed results of the plan benchmark: the page says what the record says, and the record fits together."""

from __future__ import annotations

import json

from models.plan_cells import retried
from models.plan_extent import EXTENT
from models.plan_page import page
from models.plan_tables import beaten
from models.readme import RESULTS

PATH = RESULTS / "plans.json"
RECORD = json.loads(PATH.read_text(encoding="utf-8"))
NETWORKS = RECORD["networks"]


def test_the_page_is_the_one_made_from_the_record() -> None:
    assert PATH.with_suffix(".md").read_text(encoding="utf-8") == page(RECORD)


def test_the_record_was_made_by_the_benchmark_as_it_is() -> None:
    assert RECORD["extent"] == EXTENT


def test_no_other_strategy_is_better_within_any_budget() -> None:
    assert beaten(NETWORKS).endswith("in: none.")


def test_the_higher_effort_never_has_the_dearer_plan() -> None:
    pairs = [(first.row["overhead"], second.row["overhead"]) for first, second in retried(NETWORKS)]
    assert [pair for pair in pairs if pair[0] is not None and (pair[1] is None or pair[1] > pair[0])] == []
