"""The line that says what is being done: its words, its clock, and that it stays one line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from ogc_plan.planner import frontier, load_model
from ogc_plan.planner.display import terminal
from ogc_plan.planner.display.progress_line import Cell, Spinner, activity_line
from ogc_plan.planner.limits import NO_LIMITS, Limits

from models.light import light_path
from tests.cli.terminals import on_terminal

COMPILING = """
import time
from ogc_plan.planner.display.progress_line import activity_line
from ogc_plan.planner.strategies.kernels import jit

told = []
from numba.core import event
with event.install_listener("numba:compile", type("L", (event.Listener,), {
    "on_start": lambda *_: told.append(activity_line("planning", time.monotonic())), "on_end": lambda *_: None})()):
    jit.numba.njit(lambda x: x + 1)(1)
print(told, activity_line("planning", time.monotonic()))
"""
SOME_MINUTES = """
import sys, time
from ogc_plan.planner import frontier, load_model
from ogc_plan.planner.display import terminal
with terminal.activity(quiet=False) as line:
    line.limits(1000, "optimal at 93.71 MB: ", lambda: False).say("raising the bound", 50, 30)
    line._spinner._began -= 125
    time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("figures", "stop", "expected"),
    [
        ((50, 30), None, "improving the plan, best +5.00%, gap 2.00%"),
        ((50, 30), lambda: False, "improving the plan, best +5.00%, gap 2.00%; Ctrl-C keeps the plan"),
        ((50, 0), lambda: False, "improving the plan, best +5.00%; Ctrl-C keeps the plan"),
        ((None, 30), lambda: False, "improving the plan"),
        ((50, 30), lambda: True, "stopping, Ctrl-C again to give up: improving the plan, best +5.00%, gap 2.00%"),
        ((None, 0), lambda: True, "stopping, Ctrl-C again to give up: improving the plan"),
    ],
)
def test_it_shows_the_best_plan_its_gap_and_what_ctrl_c_does(
    figures: tuple[int | None, int], stop: Callable[[], bool] | None, expected: str
) -> None:
    lines: list[str] = []
    spinner = SimpleNamespace(update=lambda *, text: lines.append(text), interrupt=Spinner.interrupt)
    terminal.Activity(spinner).limits(1000, stop=stop).say("improving the plan", *figures)
    assert lines == [expected]


def test_a_search_over_sizes_says_what_ctrl_c_keeps_and_no_share() -> None:
    lines: list[str] = []
    spinner = SimpleNamespace(update=lambda *, text: lines.append(text), interrupt=Spinner.interrupt)
    terminal.Activity(spinner).limits(None, stop=lambda: False, keeps="what is found").say("batch 8: planning", 50, 30)
    assert lines == ["batch 8: planning; Ctrl-C keeps what is found"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.5, "planning"), (12.9, "12 s planning"), (59.9, "59 s planning"), (125, "2:05 planning")],
)
def test_it_says_how_long_it_has_run(seconds: float, expected: str) -> None:
    assert activity_line("planning", time.monotonic() - seconds) == expected


def test_while_kernels_are_compiled_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogc_plan.planner.display.progress_line.BEING_COMPILED", [object()])
    assert activity_line("planning", time.monotonic()).startswith("compiling the search, once on this machine")


def test_a_compilation_is_noticed_while_it_goes_on() -> None:
    shown = on_terminal("-c", COMPILING)
    assert (shown.startswith("['compiling the search, once"), shown.split()[-1]) == (True, "planning")


@pytest.mark.parametrize("columns", [80, 50])
def test_it_is_cut_at_the_width_and_stays_one_line(columns: int) -> None:
    whole = "2:05 optimal at 93.71 MB: raising the bound, best +5.00%, gap 2.00%; Ctrl-C keeps the plan"
    shown = re.split(r"[\r\n]|\x1b\[[0-9;?]*[a-zA-Z]", on_terminal("-c", SOME_MINUTES, COLUMNS=str(columns)))
    assert {line[2:] for line in shown if "2:05" in line} == {whole[: columns - 3] + "…"}


def test_the_spinner_turns() -> None:
    spinner = Spinner()
    turns = []
    for seconds in (0.0, 0.1):
        spinner._began = time.monotonic() - seconds
        turns.append(spinner.__rich__().plain[0])
    assert turns[0] != turns[1]


def test_a_cell_of_a_notebook_says_how_long_it_has_run() -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    cell = Cell(lambda data, **_: handle)
    cell.start()
    cell._began -= 61
    cell.update(text="planning")
    cell.stop()
    assert shown == ["1:01 planning", ""]


def test_in_a_notebook_the_stop_button_keeps_the_plan() -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    cell = Cell(lambda data, **_: handle)
    cell.start()
    terminal.Activity(cell, cell).limits(1000, stop=lambda: False).say("raising the bound", 50, 30)
    assert shown == ["raising the bound, best +5.00%, gap 2.00%; the stop button keeps the plan"]


def test_a_frontier_names_the_budget_that_it_plans() -> None:
    told: set[str] = set()
    limits = Limits(progress=lambda doing, *_: told.add(doing.partition(": ")[0]))
    frontier(load_model(light_path("squeezenet"), batch=8), ("90%", "70%"), effort="fast", limits=limits)
    assert told == {"90%", "70%"}


def test_limits_without_progress_stay_without() -> None:
    assert NO_LIMITS.named("90%") is NO_LIMITS
