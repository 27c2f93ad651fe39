"""The plan benchmark: what it runs, that it can be cut short and taken up again, and that its tables count right."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ogc_plan.planner import load_model
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.strategies import STRATEGIES, greedy

from models import plan_benchmark, plan_measure
from models.plan_extent import SHARES, Extent
from models.plan_graphs import SOURCES, Source
from models.plan_tables import beaten, best_other, cells, counts, overheads, report, wide
from tests.onnx_files import write_perceptron

BATCH = 4096


def row(strategy: str, share: float | None, overhead: float | None, bound: float | None = None, **more: Any) -> Any:
    """A row of results; the budget is the share of 1000 bytes, and so is the peak unless told."""
    budget = None if share is None else int(1000 * share)
    made = {"strategy": strategy, "share": share, "budget_nbytes": budget, "status": "feasible", "seconds": 1.0}
    peak = None if overhead is None else budget
    return {**made, "peak_nbytes": peak, "overhead": overhead, "bound": bound, "smallest_nbytes": 300, **more}


def entry(*rows: Any) -> dict[str, Any]:
    return {
        "ops": 12, "floor_nbytes": 250, "store_all_nbytes": 1000, "read_s": 0.1, "replan_s": 0.5, "peak_rss_mb": 99.0,
        "rows": list(rows),
    }  # fmt: skip


RESULTS = {
    "one": entry(
        row("optimal", 0.8, 0.0205, 0.02),
        row("optimal", 0.6, 0.10, 0.08),
        row("optimal", 0.2, None, 0.0, status="proven infeasible"),
        row("optimal", None, 0.3, 0.295, minimum=True, peak_nbytes=260),
        row("optimal", None, 0.5, 0.1, replanned=True, budget_nbytes=450),
        row("greedy", 0.8, 0.03),
        row("greedy", 0.6, 0.09),
        row("ogc", None, 0.025, peak_nbytes=700),
        row("speed", None, 0.0, peak_nbytes=900),
    ),
    "two": entry(row("optimal", 0.8, 0.05, 0.0485), row("optimal", 0.3, None, 0.0, status="unknown")),
}


class TestTables:
    def test_cells_are_the_budgets_that_were_asked_for_and_no_others(self) -> None:
        labels = [(cell.graph, cell.label) for cell in cells(RESULTS)]
        assert labels == [
            ("one", "80%"),
            ("one", "60%"),
            ("one", "20%"),
            ("one", "min"),
            ("two", "80%"),
            ("two", "30%"),
        ]

    def test_cells_are_counted_by_their_gap(self) -> None:
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in counts(RESULTS).splitlines()[2:]]
        assert [line for line in lines if line[1] != "0"] == [
            ["80%", "2", "1", "2", "2", "0", "0"],
            ["60%", "1", "0", "0", "0", "1", "0"],
            ["30%", "1", "0", "0", "0", "0", "1"],
            ["min", "1", "0", "1", "1", "0", "0"],
            ["all", "5", "1", "3", "3", "1", "1"],
        ]

    def test_wide_gaps_and_open_cells_are_named(self) -> None:
        assert wide(RESULTS).splitlines() == [
            "Gaps above 1% of a step: one at 60% (2.00).",
            "Gaps above 0.5% and up to 1% of a step: none.",
            "Above the floor with no plan found: two at 30%.",
        ]

    @pytest.mark.parametrize(("position", "best"), [(0, ("ogc", 0.025)), (1, ("greedy", 0.09)), (3, None)])
    def test_the_best_other_strategy_fits_the_budget(self, position: int, best: Any) -> None:
        assert best_other(RESULTS["one"], list(cells(RESULTS))[position]) == best

    def test_a_better_other_strategy_is_told(self) -> None:
        assert "Of 2 cells where another strategy has a plan, it has a better one in: one at 60% (greedy)." in beaten(
            RESULTS
        )

    @pytest.mark.parametrize("text", ["2.05 (0.05)", "infeasible", "26.0%: 30.00 (0.50)", "open"])
    def test_the_table_of_overheads_has_a_text_for_every_outcome(self, text: str) -> None:
        assert text in overheads(RESULTS)


class TestExtent:
    def test_small_graphs_get_everything(self) -> None:
        assert Extent.of(100) == Extent(SHARES, SHARES, SHARES, True)

    def test_larger_graphs_never_get_more(self) -> None:
        extents = [Extent.of(ops) for ops in (100, 401, 751, 1501, 4001)]
        sizes = [(len(e.own), len(e.quick), len(e.slow), e.matched) for e in extents]
        assert all(a >= b for few in zip(*sizes, strict=True) for a, b in pairwise(few))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_perceptron(tmp_path_factory.mktemp("benchmark") / "perceptron.onnx", layers=3)


@pytest.fixture(scope="module")
def measured(path: Path) -> dict[str, Any]:
    return plan_measure.measure(str(path), BATCH, "h200", "fast")


@pytest.fixture
def problem(path: Path) -> Problem:
    return load_model(path, batch=BATCH).problem(Scope.ACTIVATIONS)


class TestMeasure:
    def test_every_strategy_has_a_row(self, measured: dict[str, Any]) -> None:
        assert {r["strategy"].partition(":")[0] for r in measured["rows"]} == set(STRATEGIES)

    def test_optimal_has_every_budget(self, measured: dict[str, Any]) -> None:
        assert [cell.label for cell in cells({"it": measured})] == [f"{share}%" for share in SHARES] + ["min"]

    def test_no_other_strategy_is_better(self, measured: dict[str, Any]) -> None:
        assert beaten({"it": measured}).endswith("in: none.")

    def test_the_report_takes_it(self, measured: dict[str, Any]) -> None:
        assert "## Seconds" in report({"it": measured})

    def test_a_strategy_that_takes_too_long_is_ended(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan_measure, "LIMIT_S", 0.2)
        monkeypatch.setattr(greedy, "solve", lambda *_, **__: time.sleep(600))
        assert plan_measure.limited(problem, "greedy", 10**9)["status"] == "ended"

    def test_a_strategy_that_fails_is_not_passed_over(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(greedy, "solve", lambda *_, **__: 1 / 0)
        with pytest.raises(SystemExit, match="greedy failed"):
            plan_measure.limited(problem, "greedy", 10**9)


def test_what_was_planned_is_not_planned_again(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(json.dumps({"ops": 3}))
    assert plan_benchmark.planned(Source("kept", ""), tmp_path, "h200", "default") == {"ops": 3}


def test_other_options_have_results_of_their_own() -> None:
    assert plan_benchmark.state("h200", "fast") != plan_benchmark.state("h200", "default")


def test_every_graph_of_the_catalogue_has_one_name_and_an_origin() -> None:
    assert [name for name, source in SOURCES.items() if name != source.name or not source.origin] == []
