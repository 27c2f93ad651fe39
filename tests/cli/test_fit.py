"""`ogc-plan fit`: its table, its JSON, the command it ends with, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ogc_plan.cli.main import main
from ogc_plan.planner.trade_offs import largest_input

from tests.cli.calls import Call
from tests.files.annotated_files import write_annotated


@pytest.fixture
def words(model: Path) -> list[object]:
    return ["fit", model, "--memory", "20MB", "--multiple-of", "8192"]


def test_the_table_has_three_sizes(run: Call, words: list[object]) -> None:
    lines = run(*words).out.splitlines()
    names = ("without recomputation", "the fastest", "the largest")
    assert [name for name in names for line in lines if line.startswith(name)] == list(names)


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_fits_the_terminal(
    run: Call, words: list[object], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, run(*words).out.partition("plan it")[0].splitlines())) <= columns


def test_the_command_to_plan_it_is_one_line(run: Call, words: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert run(*words).out.splitlines()[-1].endswith("-o plan.json")


def test_the_sizes_grow_and_the_next_is_beyond(run: Call, words: list[object]) -> None:
    found = json.loads(run(*words, "--format", "json").out)
    without, largest = found["without_recomputation"], found["largest"]
    assert without["size"] < largest["size"] == found["beyond"]["size"] - 8192


def test_the_last_line_plans_the_largest_size(run: Call, words: list[object], tmp_path: Path) -> None:
    told = " ".join(run(*words, "--optimizer", "sgd").out.split("plan it")[1].split())
    command = told.removeprefix("ogc-plan ").replace("plan.json", str(tmp_path / "plan.json")).split()
    assert (run(*command, "-q").code, (tmp_path / "plan.json").exists()) == (0, True)


def test_a_symbolic_dimension_varies_by_its_name(run: Call, model: Path) -> None:
    assert json.loads(
        run("fit", model, "--memory", "20MB", "--dim", "batch", "--multiple-of", 8192, "--format", "json").out
    )


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        ((), "no memory is given", 2),
        (("--memory", "80%"), "memory '80%' is not a size", 2),
        (("--memory", "1GB", "--batch", "8"), "--batch gives a size to what varies", 2),
        (("--memory", "1GB", "--dim", "n", "--dim", "n=8"), "--dim n gives a size to what varies", 2),
        (("--memory", "1GB", "--dim", "n", "--dim", "m"), "--dim n and --dim m both name what varies", 2),
        (("--memory", "1GB", "--multiple-of", "0"), "--multiple-of '0' is not a whole number of 1 or more", 2),
        (("--memory", "1kB"), "not even batch 1 fits 1kB, it is proven not to fit", 5),
    ],
)
def test_a_question_without_an_answer_is_refused(
    run: Call, model: Path, given: tuple[str, ...], message: str, code: int
) -> None:
    made = run("fit", model, *given)
    assert (made.code, message in made.error) == (code, True)


def test_a_file_of_one_size_is_refused_with_what_fits_its_module(run: Call, tmp_path: Path) -> None:
    done = run("fit", write_annotated(tmp_path / "module.onnx"), "--memory", "1GB")
    assert (done.code, "holds for its own sizes alone" in done.error, "call fit of" in done.err) == (2, True, True)


def test_the_memory_that_a_refusal_names_is_enough(run: Call, model: Path) -> None:
    remedy = run("fit", model, "--memory", "1kB").err.splitlines()[1]
    memory = next(word for word in remedy.split() if word.endswith("B"))
    assert run("fit", model, "--memory", memory).code == 0


def test_ctrl_c_keeps_what_is_found(run: Call, words: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    search = largest_input._Search
    monkeypatch.setattr(search, "_stopped", lambda self: len(self._plans) > 0)
    assert "the search was stopped; larger sizes may fit" in run(*words).out


def test_help_names_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--help"])
    assert "--memory SIZE" in capsys.readouterr().out
