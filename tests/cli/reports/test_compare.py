"""`ogc-plan compare`: its rows and columns, and what Ctrl-C keeps."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ogc_plan.cli.compare import BUDGETED, FIXED_PLANS
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies import STRATEGIES

from tests.cli.calls import Call

ALL = len(FIXED_PLANS) + len(BUDGETED)


@pytest.fixture
def words(model: Path) -> list[Any]:
    return ["compare", model, "--dim", "batch=1024", "--budget", "70%"]


@pytest.fixture
def rows(run: Call, words: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run(*words, "--format", "json").out)["rows"]
    return rows


def test_every_strategy_has_its_row(rows: list[dict[str, Any]]) -> None:
    assert {row["strategy"].partition(":")[0] for row in rows} == set(STRATEGIES)


def test_optimal_is_no_worse_at_the_same_peak(rows: list[dict[str, Any]]) -> None:
    worse = [r["strategy"] for r in rows if r["optimal_ns"] is not None and r["optimal_ns"] > r["recompute_ns"]]
    assert worse == []


def test_the_table_fits_80_columns(run: Call, words: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(*words).out
    assert (max(map(len, out.splitlines())) <= 80, "…" in out) == (True, False)


def test_no_row_has_the_name_of_a_column(run: Call, words: list[Any]) -> None:
    lines = run(*words).out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("strategy "))
    rows = [line.split()[0] for line in lines[at + 2 :] if line[:1].isalpha()]
    assert (len(rows), set(rows) & set(re.split(r" {2,}", lines[at]))) == (ALL, set())


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C in the search of a row, after so many rows; one search before the first loads compiled code."""

    def after(rows: int) -> None:
        solve, calls = Solver.solve, itertools.count(-1)

        def solved(solver: Solver, *given: Any) -> Any:
            if next(calls) == rows:
                raise KeyboardInterrupt
            return solve(solver, *given)

        monkeypatch.setattr(Solver, "solve", solved)

    return after


@pytest.mark.parametrize(("after", "finished", "compared"), [(2, 2, 0), (ALL + 1, ALL, 1)])
def test_ctrl_c_keeps_what_is_finished(
    run: Call, words: list[Any], interrupt: Callable[[int], None], after: int, finished: int, compared: int
) -> None:
    interrupt(after)
    data = json.loads(run(*words, "--format", "json").out)
    known = [row for row in data["rows"] if row["optimal_ns"]]
    assert (len(data["rows"]), len(known), data["stopped_early"]) == (finished, compared, True)


def test_a_table_that_ctrl_c_ended_says_so(run: Call, words: list[Any], interrupt: Callable[[int], None]) -> None:
    interrupt(2)
    done = run(*words)
    assert (done.code, "stopped      by Ctrl-C" in done.out) == (0, True)


def test_ctrl_c_before_the_first_row_is_code_130(run: Call, words: list[Any], interrupt: Callable[[int], None]) -> None:
    interrupt(0)
    assert run(*words).code == 130
