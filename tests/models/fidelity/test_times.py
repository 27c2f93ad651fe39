"""What the measurement of predicted times compares, on a tiny network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, within_budget
from ogc_plan.planner import read_plan
from ogc_plan.planner.training_graph import OpCost

from models.fidelity.times import Row, fidelity, predicted, report, worst
from models.networks.gpt2 import GPT2Config
from models.training.cases import gpt_case

CASE = gpt_case(2, GPT2Config(vocabulary=64, context=32, layers=2, heads=2, width=32, dropout=0.1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, Row]:
    return {row.way: row for row in fidelity(CASE, "kept", ("70%", "1%"), 1, folder)}


def test_every_way_to_train_has_a_row_with_ratios_to_the_step_that_stores_everything(rows: dict[str, Row]) -> None:
    whole = rows["store-all"]
    assert (list(rows), whole.processor, whole.wall) == (["eager", "store-all", "70%", "1%"], 1.0, 1.0)


def test_a_budget_without_a_plan_says_why(rows: dict[str, Row]) -> None:
    assert (rows["1%"].refused, rows["1%"].judged) == ("proven impossible", False)


def test_the_prediction_is_that_of_the_plan(rows: dict[str, Row], folder: Path) -> None:
    made = read_plan(folder / "gpt-70%.plan.json")
    assert rows["70%"].predicted == pytest.approx(1 + made.time.overhead)


def test_a_second_process_runs_the_same_plans(rows: dict[str, Row], folder: Path) -> None:
    again = {row.way: row for row in fidelity(CASE, "returned", ("70%", "1%"), 1, folder)}
    found = [(again[way].rerun_ops, again[way].refused) for way in ("70%", "1%")]
    assert found == [(rows[way].rerun_ops, rows[way].refused) for way in ("70%", "1%")]


def test_each_run_of_an_op_again_counts() -> None:
    torch.manual_seed(0)
    plan = plan_of(within_budget(CASE.build(), CASE.arguments(0), budget="70%"))
    costs = [OpCost(3, 1)] * len(plan.graph.ops)
    runs = sum(plan.recomputed.values())
    assert predicted(plan, costs) == pytest.approx(1 + 3 * runs / (4 * len(costs)))


@pytest.mark.parametrize(("threads", "difference"), [(1, 0.2), (2, 0.0)])
def test_the_difference_is_of_processor_time_on_one_thread_and_of_the_wall_clock_on_several(
    threads: int, difference: float
) -> None:
    row = Row("gpt", "kept", "60%", threads=threads, predicted=1.25, processor=1.5, wall=1.25)
    assert row.difference == pytest.approx(difference)


def test_the_worst_is_the_furthest_on_either_side() -> None:
    found = [Row("gpt", "kept", way, predicted=1.0, processor=measured) for way, measured in
             (("eager", 9.0), ("80%", 1.1), ("60%", 0.8), ("40%", 1.15))]  # fmt: skip
    assert worst(found) == pytest.approx(-0.2)


def test_the_report_has_a_line_for_every_row(rows: dict[str, Row]) -> None:
    lines = [line for line in report(list(rows.values())).splitlines() if line.startswith("| gpt ")]
    assert len(lines) == len(rows)
