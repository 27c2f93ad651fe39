"""--report writes the report as one page, and nothing else over it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ogc_plan.planner import read_plan, report

from tests.cli.calls import GREEDY, Call

FRONTIER = ("frontier", "MODEL", "--dim", "batch=4096", "--budgets", "90%,70%,1%")


def words_for(words: tuple[str, ...], model: Path, plan_file: Path) -> list[Path | str]:
    return [{"MODEL": model, "PLAN": plan_file}.get(word, word) for word in words]


@pytest.mark.parametrize("words", [("MODEL", *GREEDY), ("verify", "PLAN"), ("verify", "PLAN", "MODEL")])
def test_the_page_is_the_report_on_the_plan(
    run: Call, model: Path, plan_file: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert run(*words_for(words, model, plan_file), "--report", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == report(read_plan(plan_file))


def test_a_frontier_shows_each_plan_that_was_found(run: Call, model: Path, plan_file: Path, tmp_path: Path) -> None:
    assert run(*words_for(FRONTIER, model, plan_file), "--report", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count('class="dot') == 3  # store-all and two plans


@pytest.mark.parametrize("words", [("MODEL", *GREEDY), ("verify", "PLAN"), FRONTIER])
def test_a_page_is_written_for_quiet_and_for_programs_too(
    run: Call, model: Path, plan_file: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run(*words_for(words, model, plan_file), "--report", tmp_path / "page.html", "-q", "--format", "json")
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize("words", [("MODEL", *GREEDY), ("verify", "PLAN"), FRONTIER])
@pytest.mark.parametrize("target", ["-", ".", "made.json/page.html"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    run: Call, model: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], target: str
) -> None:
    monkeypatch.chdir(plan_file.parent)
    answer = run(*words_for(words, model, plan_file), "--report", target)
    assert (answer.code in (2, 8), answer.out) == (True, "")
    assert "report" in answer.err or "is not a folder" in answer.err


def test_the_folder_of_a_page_is_made(run: Call, plan_file: Path, tmp_path: Path) -> None:
    assert run("verify", plan_file, "--report", tmp_path / "a" / "b" / "page.html").code == 0
    assert (tmp_path / "a" / "b" / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "over"),
    [(("MODEL", *GREEDY), "MODEL"), (("MODEL", *GREEDY, "-o", "PLAN"), "PLAN"), (("verify", "PLAN"), "PLAN")],
)
def test_a_page_never_replaces_what_it_was_made_from(
    run: Call, model: Path, plan_file: Path, words: tuple[str, ...], over: str
) -> None:
    (target,) = words_for((over,), model, plan_file)
    before = os.stat(target)
    answer = run(*words_for(words, model, plan_file), "--report", target)
    assert (answer.code, "would overwrite" in answer.error) == (2, True)
    assert os.stat(target) == before


def test_a_budget_without_a_plan_leaves_no_page(run: Call, model: Path, tmp_path: Path) -> None:
    assert run(model, "--budget", "1%", "--dim", "batch=64", "--report", tmp_path / "page.html").code == 5
    assert not (tmp_path / "page.html").exists()


def test_a_frontier_is_drawn(run: Call, model: Path, plan_file: Path, tmp_path: Path) -> None:
    assert run(*words_for(FRONTIER, model, plan_file), "--plot", tmp_path / "new" / "out.svg").code == 0
    assert (tmp_path / "new" / "out.svg").read_text(encoding="utf-8").count('r="4"') == 2


@pytest.mark.parametrize("target", ["out.jpg", "png", "-", "made.json", "page.svg"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(
    run: Call, model: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(plan_file.parent)
    answer = run(*words_for(FRONTIER, model, plan_file), "--plot", target, "--report", "page.svg")
    assert (answer.code, answer.out, "write --plot frontier.svg" in answer.err) == (2, "", True)
