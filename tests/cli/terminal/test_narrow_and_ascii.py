"""Reports on narrow terminals and in encodings without lines and bars."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.calls import GREEDY, Call, process
from tests.cli.terminals import on_terminal

ASCII = {**os.environ, "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize("columns", [50, 60, 80, 100])
def test_the_report_keeps_its_labels_and_its_width(
    run: Call, plan_file: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = run("show", plan_file).out
    words = ("activation", "total", "parameter", "gradients", "optimizer", "inputs", "step time", "store-all", "plan")
    assert ([word for word in words if word not in out], max(map(len, out.splitlines())) <= columns) == ([], True)


def test_a_narrow_table_loses_no_figure(run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("show", model, "--dim", "batch=64")
    wide = run(*words).out
    monkeypatch.setenv("COLUMNS", "50")
    figures = {word for word in wide.split() if word[:1].isdigit()}
    assert figures <= set(run(*words).out.split())


@pytest.mark.parametrize("columns", [40, 50])
def test_a_narrow_table_breaks_no_word_and_names_what_it_leaves_out(
    run: Call, model: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run("compare", model, "--dim", "batch=1024", "--budget", "70%").out.splitlines()
    (left_out,) = (line.removeprefix("too narrow for: ").split(", ") for line in lines if line.startswith("too narrow"))
    first = {line.split()[0] for line in lines if line[:1].isalpha()}
    shown = " ".join(lines[:12]).split()
    assert ({"segments:2", "checkmate", "optimal"} <= first, "secs" in left_out, "secs" in shown) == (True, True, False)


@pytest.mark.parametrize(
    "words", ["show PLAN", "show MODEL --dim batch=64", "frontier MODEL --dim batch=64 --budgets 80%"]
)
def test_where_the_encoding_is_ascii_so_is_the_report(words: str, model: Path, plan_file: Path) -> None:
    named = {"MODEL": model, "PLAN": plan_file}
    done = process(*(named.get(word, word) for word in words.split()), env=ASCII)
    assert (done.returncode, done.stdout.isascii(), "\\u" in done.stdout, "----" in done.stdout) == (
        0, True, False, True,
    )  # fmt: skip


def test_ascii_bars_take_as_many_columns(run: Call, plan_file: Path) -> None:
    drawn, ascii_only = run("show", plan_file).out, process("show", plan_file, env={**ASCII, "COLUMNS": "100"}).stdout
    assert [len(line) for line in drawn.splitlines()] == [len(line) for line in ascii_only.splitlines()]


def test_the_progress_on_an_ascii_terminal_is_ascii(model: Path) -> None:
    shown = on_terminal("-m", "ogc_plan.cli.main", model, *GREEDY, PYTHONIOENCODING="ascii")
    assert (shown.isascii(), "\\u" in shown, "| " in shown) == (True, False, True)
