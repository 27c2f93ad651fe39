"""What a plan says of itself: two lines, a report, and what its budget covers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from ogc_plan.cli.main import main
from ogc_plan.planner import Plan, load_model, plan, write_plan
from ogc_plan.planner.annotations import Source
from ogc_plan.planner.errors import PlanMismatchError, UsageError

from tests.files.onnx_files import write_perceptron

HELD = "parameters, gradients, buffers, arguments, activations, workspace"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_perceptron(tmp_path_factory.mktemp("model") / "perceptron.onnx")


def planned(path: Path, budget: str = "60%", optimizer: str | None = None, strategy: str = "greedy") -> Plan:
    return plan(load_model(path, dims={"batch": 4096}, optimizer=optimizer), budget, strategy=strategy)


def test_two_lines_say_what_a_plan_costs_and_keeps(path: Path) -> None:
    made = planned(path)
    assert repr(made).split("\n") == [f"Plan({made.outcome}", f"     {made.choices})"]


def test_the_first_line_has_the_budget_the_peak_store_all_the_overhead_and_the_gap(path: Path) -> None:
    figures = r"activation peak 4\.\d\d MB, store-all 8\.13 MB, overhead \d+\.\d\d%, gap \d+\.\d\d%"
    assert re.fullmatch(f"budget 60%: {figures}", planned(path, strategy="optimal").outcome)


def test_a_plan_of_which_nothing_is_proven_has_no_gap(path: Path) -> None:
    assert planned(path).outcome.endswith("no bound")


@pytest.mark.parametrize(
    ("budget", "optimizer", "covers"),
    [
        ("60%", "adamw", "activations and workspace"),
        ("8MB", None, HELD),
        ("8MB", "none", HELD),
        ("8MB", "adamw", f"{HELD}, states of adamw (49.15 KB)"),
        ("8MB", "Lion:10KB", f"{HELD}, states of Lion (10.00 KB)"),
    ],
)
def test_one_line_says_what_a_budget_covers(path: Path, budget: str, optimizer: str | None, covers: str) -> None:
    assert planned(path, budget, optimizer).covers == covers


def test_a_budget_for_a_card_covers_what_its_allocator_reserves(path: Path) -> None:
    made = planned(path, "8MB")
    made = replace(made, model=replace(made.model, sha256="", annotations=Source("torch 2", "cuda, H100")))
    assert made.covers == f"{HELD}, the CUDA context, what cuBLAS keeps and what the allocator reserves"


@pytest.mark.parametrize("optimizer", ["Lion:10KB", "Lion:10000"])
def test_the_states_of_any_optimizer_may_be_given_in_bytes(path: Path, optimizer: str) -> None:
    assert planned(path, optimizer=optimizer).graph.stationary.optimizer_nbytes == 10_000


@pytest.mark.parametrize("optimizer", ["lion", ":10KB", "Lion:10%", "Lion:-1", "Lion:4EiB"])
def test_an_unknown_optimizer_is_refused_with_what_can_be_written(path: Path, optimizer: str) -> None:
    with pytest.raises(UsageError, match="write its name and the size of its states, such as Lion:340MB"):
        planned(path, optimizer=optimizer)


def test_the_summary_is_the_report_of_the_command_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(path)
    write_plan(made, path.with_name("plan.json"))
    main(["show", str(path.with_name("plan.json"))])
    shown = capsys.readouterr().out.replace("--optimizer", "optimizer").replace("--device NAME", 'device="NAME"')
    assert made.summary() == shown


def test_the_summary_lists_what_is_kept_if_asked(path: Path) -> None:
    assert "\nkept         " in planned(path).summary(verbose=True)


def test_a_plan_that_does_not_keep_its_promises_has_no_summary(path: Path) -> None:
    made = planned(path)
    with pytest.raises(PlanMismatchError, match="promises a total peak of 1"):
        replace(made, peak=replace(made.peak, total_nbytes=1)).summary()
