"""The committed results of the plan benchmark: the page says what the record says, and the record fits together."""

from __future__ import annotations

import json

from models.plan_benchmark.cells import cells, retried
from models.plan_benchmark.extent import EXTENT
from models.plan_benchmark.page import page
from models.plan_benchmark.sources import SOURCES
from models.plan_benchmark.tables import beaten
from models.plan_benchmark.targets import INFEASIBLE
from models.readme.__main__ import RESULTS

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


def test_a_first_plan_that_is_timed_is_the_one_that_a_solve_from_nothing_made() -> None:
    fresh = {(cell.graph, cell.label): cell.row["overhead"] for cell in cells(NETWORKS)}
    timed = {
        (name, plan["label"]): plan["overhead"]
        for name, entry in NETWORKS.items()
        for plan in entry["times"]["plans"]
        if plan["first"]
    }
    assert {cell: fresh[cell] for cell in timed} == timed


def test_every_budget_that_is_not_proven_impossible_is_timed() -> None:
    feasible = {(cell.graph, cell.label) for cell in cells(NETWORKS) if cell.row["status"] != INFEASIBLE}
    timed = {(name, plan["label"]) for name, entry in NETWORKS.items() for plan in entry["times"]["plans"]}
    assert timed == feasible


def test_every_graph_is_in_the_record() -> None:
    assert list(NETWORKS) == list(SOURCES)
