"""Plans rounded to save-lists: the peak is predicted again, fits the budget, and what cannot be named is refused."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from ogc_plan.adapters.save_list.jax_policy import save_names, saved_storages
from ogc_plan.adapters.save_list.rounding import rounded
from ogc_plan.planner.errors import InfeasibleBudgetError
from ogc_plan.planner.model import load_model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.strategies.evaluation.labels import Label, decisions_of

from tests.adapters.save_list.networks import command, emitted, write_layers


def planned(path: Path, budget: str = "60%") -> Plan:
    return plan(load_model(path), budget, strategy="greedy")


def peak_and_time(made: Plan, kept: set[int]) -> tuple[int, int]:
    """By the readable definition of labels and the simulator alone."""
    problem = build_problem(made.graph, made.costs, Scope.ACTIVATIONS)
    labels = [
        Label.KEEP if s in kept or s in made.graph.outputs else Label.DROP for s in range(len(made.graph.storages))
    ]
    sequence = decisions_of(problem, labels)
    from ogc_plan.planner.schedule import lower
    from ogc_plan.planner.simulate import simulate

    timeline = simulate(made.graph, made.costs, lower(made.graph, sequence))
    return timeline.peak_activation_nbytes, timeline.recompute_ns


def test_the_peak_that_is_predicted_is_that_of_the_list(tmp_path: Path) -> None:
    made = planned(write_layers(tmp_path / "m.onnx"))
    found = save_names(made)
    kept = {storage for number in found.saved for storage in found.groups[number]}
    assert (found.peak_nbytes, found.made.recompute_ns) == peak_and_time(made, kept)


@pytest.mark.parametrize("budget", ["90%", "75%"])
@pytest.mark.parametrize("named", [False, True])
def test_no_list_of_the_same_names_is_quicker(tmp_path: Path, named: bool, budget: str) -> None:
    made = planned(write_layers(tmp_path / "m.onnx", named=named, layers=3), budget)
    found = save_names(made)
    lists = ({s for group, kept in zip(found.groups, bits, strict=True) if kept for s in group}
             for bits in product((False, True), repeat=len(found.groups)))  # fmt: skip
    within = (time for peak, time in (peak_and_time(made, kept) for kept in lists) if peak <= made.budget.nbytes)
    assert found.made.recompute_ns == min(within)


def test_where_names_are_given_only_named_tensors_are_saved(tmp_path: Path) -> None:
    made = planned(write_layers(tmp_path / "m.onnx", named=True))
    found = save_names(made)
    names = {made.graph.storages[storage].name for group in found.groups for storage in group}
    assert (names, bool(found.saved)) == ({f"t{i}" for i in range(3)}, True)


def test_the_output_which_the_loss_reads_is_named_too(tmp_path: Path) -> None:
    made = planned(write_layers(tmp_path / "m.onnx"))
    assert "t3" in {made.graph.storages[storage].name for storage in saved_storages(save_names(made))}


def test_a_budget_that_no_list_keeps_names_the_smallest_peak(tmp_path: Path) -> None:
    made = planned(write_layers(tmp_path / "m.onnx"), "min")
    with pytest.raises(InfeasibleBudgetError) as caught:
        rounded(made, [], runtime="JAX")
    assert caught.value.smallest_known_nbytes == peak_and_time(made, set())[0]


def test_the_report_for_programs_has_the_peak_predicted_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_layers(tmp_path / "m.onnx")
    emitted(model, "jax", "60%")
    words = ("--to", "jax", "-q", "--format", "json", "-o", tmp_path / "again.py")
    assert command("emit", tmp_path / "plan.json", model, *words)[0] == 0
    told = json.loads(capsys.readouterr().out)
    found = save_names(planned(model))
    assert (told["peak"]["activation_nbytes"], told["to"]) == (found.peak_nbytes, "jax")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("keras", {}, "names no layers"),
    ("torchtitan", {}, "does not show the calls PyTorch makes"),
]


@pytest.mark.parametrize(("target", "how", "says"), REFUSED)
def test_a_file_without_the_names_of_the_runtime_exits_with_7(
    tmp_path: Path, target: str, how: dict[str, Any], says: str
) -> None:
    model = write_layers(tmp_path / "m.onnx", **how)
    command(model, "--budget", "100%", "--strategy", "keep-all", "-q", "-o", tmp_path / "plan.json")
    code, told = command("emit", tmp_path / "plan.json", model, "--to", target)
    assert (code, says in told.splitlines()[0]) == (7, True)


@pytest.mark.parametrize("target", ["jax", "keras", "torchtitan"])
def test_a_plan_of_another_file_exits_with_7(tmp_path: Path, target: str) -> None:
    model, other = write_layers(tmp_path / "m.onnx"), write_layers(tmp_path / "o.onnx", layers=2)
    command(model, "--budget", "100%", "--strategy", "keep-all", "-q", "-o", tmp_path / "plan.json")
    code, told = command("emit", tmp_path / "plan.json", other, "--to", target)
    assert (code, "made for graph" in told.splitlines()[0]) == (7, True)


def test_a_list_of_layers_that_cannot_keep_the_budget_exits_with_5(tmp_path: Path) -> None:
    model = write_layers(tmp_path / "m.onnx", keras=True)
    command(model, "--budget", "min", "-q", "-o", tmp_path / "plan.json")
    code, told = command("emit", tmp_path / "plan.json", model, "--to", "keras")
    assert (code, "no set of layers" in told, "keras.RematScope reached" in told) == (5, True, True)
