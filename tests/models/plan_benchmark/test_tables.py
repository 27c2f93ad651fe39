"""The tables of the plan benchmark count right, and the page holds what its record says."""

from __future__ import annotations

from typing import Any

import pytest

from models.plan_benchmark.cells import cells, retried
from models.plan_benchmark.page import page
from models.plan_benchmark.tables import beaten, best_other, counts, harder, overheads, targets, wide
from models.plan_benchmark.time_tables import differences, graphs, sizes, totals


def row(strategy: str, share: float | None, overhead: float | None, bound: float | None = None, **more: Any) -> Any:
    """A row of results; the budget is the share of 1000 bytes, and so is the peak unless told."""
    budget = None if share is None else int(1000 * share)
    made = {"strategy": strategy, "share": share, "budget_nbytes": budget, "status": "feasible", "cpu_s": 2.0}
    peak = None if overhead is None else budget
    return {**made, "peak_nbytes": peak, "overhead": overhead, "bound": bound, "smallest_nbytes": 300, **more}


def entry(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"ops": 12, "floor_nbytes": 250, "store_all_nbytes": 1000, "rows": list(rows), **more}


RESULTS = {
    "one": entry(
        row("optimal", 0.8, 0.0205, 0.02),
        row("optimal", 0.6, 0.10, 0.08),
        row("optimal", 0.2, None, 0.0, status="proven infeasible"),
        row("optimal", None, 0.3, 0.295, minimum=True, peak_nbytes=260),
        row("greedy", 0.8, 0.03),
        row("greedy", 0.6, 0.09),
        row("ogc", None, 0.025, peak_nbytes=700),
        row("speed", None, 0.0, peak_nbytes=900),
    ),
    "two": entry(
        row("optimal", 0.8, 0.05, 0.0485),
        row("optimal", 0.3, None, 0.0, status="unknown"),
        row("optimal", None, 0.3, 0.3, minimum=True, peak_nbytes=310),
    ),
}
AGAIN = {
    "one": entry(*RESULTS["one"]["rows"], row("optimal", 0.6, 0.081, 0.0805, effort="high", cpu_s=30.0)),
    "two": entry(*RESULTS["two"]["rows"], row("optimal", 0.3, 0.4, 0.38, effort="high", cpu_s=31.0)),
}


def lines_of(table: str) -> list[list[str]]:
    """The texts of a table's rows."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


class TestCells:
    def test_cells_are_the_budgets_that_were_asked_for_and_no_others(self) -> None:
        labels = [(cell.graph, cell.label) for cell in cells(RESULTS)]
        assert labels == [
            ("one", "80%"),
            ("one", "60%"),
            ("one", "20%"),
            ("one", "min"),
            ("two", "80%"),
            ("two", "30%"),
            ("two", "min"),
        ]

    def test_plans_of_the_higher_effort_or_within_the_peak_of_another_strategy_add_no_cells(self) -> None:
        matched = entry(*AGAIN["two"]["rows"], row("optimal", None, 0.1, 0.1, matches="speed", budget_nbytes=900))
        assert list(cells({**AGAIN, "two": matched})) == list(cells(RESULTS))

    def test_plans_of_the_higher_effort_stand_in_the_place_of_the_others(self) -> None:
        assert [cell.row["overhead"] for cell in cells(AGAIN, harder=True)] == [
            0.0205, 0.081, None, 0.3, 0.05, 0.4, 0.3
        ]  # fmt: skip

    def test_cells_that_were_planned_twice_come_in_pairs(self) -> None:
        assert [(a.row["overhead"], b.row["overhead"]) for a, b in retried(AGAIN)] == [(0.10, 0.081), (None, 0.4)]

    def test_a_target_is_missed_by_a_wide_gap_and_by_a_plan_that_was_not_found(self) -> None:
        missed = [(cell.graph, cell.label) for cell in cells(RESULTS) if cell.missed]
        assert missed == [("one", "60%"), ("two", "30%")]


class TestTables:
    def test_cells_are_counted_by_their_gap(self) -> None:
        assert [line for line in lines_of(counts(RESULTS)) if line[1] != "0"] == [
            ["80%", "2", "1", "2", "2", "0", "0"],
            ["60%", "1", "0", "0", "0", "1", "0"],
            ["30%", "1", "0", "0", "0", "0", "1"],
            ["min", "2", "1", "2", "2", "0", "0"],
            ["all", "6", "2", "4", "4", "1", "1"],
        ]

    def test_with_the_higher_effort_its_gaps_are_counted(self) -> None:
        assert lines_of(counts(AGAIN, harder=True))[-1] == ["all", "6", "3", "5", "5", "1", "0"]

    def test_the_cells_within_the_target_and_with_next_to_no_gap_are_counted_for_both_efforts(self) -> None:
        met = "Met in 2 of 4 cells, in 3 with `--effort high` where it is missed."
        close = "At 80%, 60%, 50%, 40% the gap is at most 0.1% in 1 (2) of 3 cells."
        assert targets(AGAIN).endswith(f" {met} {close}")

    def test_wide_gaps_and_open_cells_are_named(self) -> None:
        told = "one at 60% (2.00).", "none.", "two at 30%."
        assert all(line.endswith(f": {said}") for line, said in zip(wide(RESULTS).splitlines(), told, strict=True))

    @pytest.mark.parametrize(("position", "best"), [(0, ("ogc", 0.025)), (1, ("greedy", 0.09)), (3, None)])
    def test_the_best_other_strategy_fits_the_budget(self, position: int, best: Any) -> None:
        assert best_other(RESULTS["one"], list(cells(RESULTS))[position]) == best

    def test_a_better_other_strategy_is_told(self) -> None:
        assert "Of 2 cells where another strategy has a plan, it has a better one in: one at 60% (greedy)." in beaten(
            RESULTS
        )

    @pytest.mark.parametrize(
        "text", ["2.05 (0.05) ", "infeasible", "26.0%: 30.00 (0.50)", "open ", "8.10 (0.05)* ", "40.00 (2.00)* "]
    )
    def test_the_table_of_overheads_has_a_text_for_every_outcome(self, text: str) -> None:
        assert text in overheads(RESULTS) + overheads(AGAIN)

    def test_what_the_higher_effort_changed_is_shown_side_by_side(self) -> None:
        assert lines_of(harder(AGAIN)) == [
            ["one", "60%", "10.00 (2.00)", "8.10 (0.05)", "2", "30"],
            ["two", "30%", "open", "40.00 (2.00)", "2", "31"],
        ]


def plan(label: str, seconds: float, overhead: float | None, *, first: bool = False) -> dict[str, Any]:
    return {"label": label, "first": first, "overhead": overhead, "seconds": seconds, "cpu_s": 0.75 * seconds}


ONE = [
    plan("60%", 2.0, 0.10, first=True),
    plan("80%", 0.75, 0.02, first=True),
    plan("80%", 0.5, 0.0215),
    plan("min", 1.0, 0.5, first=True),
]
TWO = [plan("80%", 4.0, 0.05, first=True), plan("30%", 1.5, 0.4, first=True), plan("30%", 1.0, 0.4)]
TIMED = {
    "one": {**AGAIN["one"], "times": {"read_s": 0.25, "peak_rss_mb": 300.4, "plans": ONE}},
    "two": {**AGAIN["two"], "times": {"read_s": 0.25, "peak_rss_mb": 299.0, "plans": TWO}},
}


class TestTimes:
    def test_seconds_are_held_to_the_target_of_the_size(self) -> None:
        assert lines_of(sizes(TIMED)) == [
            ["up to 700 ops", "2", "3", "1.50", "4.00", "4 of 5 (80%)", "0.75", "0.75", "1.00", "1 of 2 (50%)", "300"]
        ]

    def test_every_graph_has_its_seconds(self) -> None:
        assert lines_of(graphs(TIMED)) == [
            ["one", "12", "0.25", "0.75 (0.50)", "2.00", "", "", "", "", "1.00", "300"],
            ["two", "12", "0.25", "4.00", "", "", "", "1.50 (1.00)", "", "", "299"],
        ]

    def test_wall_and_processor_time_are_told_side_by_side(self) -> None:
        assert totals(TIMED) == "These 7 plans took 11 s of wall time and 8 s of processor time in all."

    def test_plans_that_differ_from_those_of_a_solve_from_nothing_are_told(self) -> None:
        text = "Of 1 re-plans 0 are cheaper than the plan of a solve from nothing, by up to 0.00% of a step, and 1 "
        text += "dearer, by up to 0.10%. 1 have a plan where such a solve has none, 0 the reverse."
        assert differences(TIMED).endswith(text)


def record(networks: dict[str, Any], **measured: str) -> dict[str, Any]:
    said = {"command": "python -m it", "machine": "this one", "jobs": 2, "extent": "All of it."}
    return {**said, "measured": {"rows": "", **measured}, "networks": networks}


class TestPage:
    @pytest.mark.parametrize("text", ["`python -m it` on this one\n", "All of it.", "By a clock.", "up to 2 graphs"])
    def test_it_says_what_was_run_and_how_it_was_measured(self, text: str) -> None:
        assert text in page(record(TIMED, times="By a clock."))
