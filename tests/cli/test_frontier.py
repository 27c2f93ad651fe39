"""`ogc-plan frontier`: its table, its JSON and its files; and what the reports say of a proof."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ogc_plan.cli.frontier import Frontier, split_budgets
from ogc_plan.cli.main import main
from ogc_plan.planner import frontier, load_model, verify
from ogc_plan.planner.display.plan_report import proof_lines
from ogc_plan.planner.display.terminal import console
from ogc_plan.planner.errors import BudgetSyntaxError, UsageError
from ogc_plan.planner.model import Model
from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.plan_file.record import EFFORT_NOTE, Plan
from ogc_plan.planner.strategies.relaxation.order_free_bound import ANY_ORDER

from models.light import light_path


@pytest.fixture(scope="module")
def squeezenet() -> Model:
    return load_model(light_path("squeezenet"), batch=8)


@pytest.fixture(scope="module")
def plans(squeezenet: Model) -> dict[str, Plan]:
    answers = zip(("90%", "60%"), frontier(squeezenet, ("90%", "60%"), effort="fast"), strict=True)
    return {text: made for text, made in answers if isinstance(made, Plan)}


class TestCommand:
    @pytest.fixture
    def words(self, model: Path) -> list[str]:
        return ["frontier", str(model), "--dim", "batch=4096", "--effort", "fast", "--budgets"]

    def test_the_table_has_a_line_for_every_budget(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        main([*words, "90%,70%,1%,min"])
        lines = capsys.readouterr().out.splitlines()
        first = [line.split()[0] for line in lines if line[:1].isdigit() or line.startswith("min")]
        assert first == ["90%", "70%", "1%", "min"]

    @pytest.mark.parametrize("columns", [80, 100])
    def test_the_table_fits_the_terminal(
        self, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        main([*words, "90%,min"])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= columns

    def test_json_has_a_point_for_every_budget(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        main([*words, "90%,1%", "--format", "json"])
        loose, tight = json.loads(capsys.readouterr().out)["points"]
        assert (loose["overhead"] >= loose["bound"] >= 0, tight["proven_infeasible"]) == (True, True)

    def test_the_plans_are_written_one_by_one(self, words: list[str], tmp_path: Path) -> None:
        main([*words, "90%,1%,min", "-q", "-o", str(tmp_path)])
        assert [bool(verify(read_plan(path))) for path in tmp_path.glob("plan-*.json")] == [True, True]

    def test_a_missing_folder_is_made(self, words: list[str], tmp_path: Path) -> None:
        assert main([*words, "90%", "-q", "-o", str(tmp_path / "none")]) == 0
        assert (tmp_path / "none" / "plan-90%.json").exists()

    def test_standard_output_is_no_folder(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert (main([*words, "90%", "-o", "-"]), "-o - is no folder" in capsys.readouterr().err) == (2, True)

    def test_where_no_budget_has_a_plan_the_exit_code_says_so(self, words: list[str]) -> None:
        assert main([*words, "1%,2%"]) == 5

    def test_budgets_are_taken_once_each_and_spaces_do_not_matter(self) -> None:
        assert split_budgets(" 80%, 60% ,80%,min") == ("80%", "60%", "min")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "names no budget"),
            ("60%,,40%", "entry 2 of 3 of budgets '60%,,40%' is empty"),
            ("60%, ", "entry 2 of 2 of budgets '60%, ' is empty"),
            ("60%,3XB", "budget '3XB' has the unknown unit"),
            ("60%,40", "budget '40' has no unit; write 40% for a share"),
        ],
    )
    def test_what_is_no_list_of_budgets(self, text: str, says: str) -> None:
        with pytest.raises((BudgetSyntaxError, UsageError), match=says):
            split_budgets(text)


OTHER = "the backward order of this plan; any forward order"


def proven_for(plan: Plan, bound_class: str) -> Plan:
    return replace(plan, certificate=replace(plan.certificate, bound_class=bound_class))


def test_rows_with_a_bound_of_another_order_are_marked(
    squeezenet: Model, plans: dict[str, Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = (plans["90%"], proven_for(plans["60%"], OTHER))
    Frontier(squeezenet, ("90%", "60%"), answers).print(console(sys.stdout))
    shown = capsys.readouterr().out
    marked = [line.split()[0] for line in shown.splitlines() if "%*" in line]
    assert (marked, "those with * hold for the backward order of the plan in that row" in shown) == (["60%"], True)


def test_a_proof_for_all_orders_is_printed_without_one(plans: dict[str, Plan]) -> None:
    proven = proven_for(plans["60%"], ANY_ORDER)
    share = 100 * proven.certificate.bound_ns / proven.time.store_all_ns
    first, rest = proof_lines(proven)
    assert (first.startswith(f"at least +{share:.2f}%, "), rest) == (True, f"(holds for {ANY_ORDER})")


def test_a_proof_for_one_order_is_printed_with_it(plans: dict[str, Plan]) -> None:
    proven = proven_for(plans["60%"], OTHER)
    share = 100 * proven.certificate.bound_ns / proven.time.store_all_ns
    first, rest = proof_lines(proven)
    assert (first.startswith(f"at least +{share:.2f}% in the backward order of this plan, "), rest) == (
        True,
        "(any forward order)",
    )


def advised(plan: Plan, gap: float, **certificate: object) -> str:
    """The effort that the proof of a plan with such a gap advises, nothing for none."""
    bound = plan.time.recompute_ns - int(gap * plan.time.store_all_ns)
    proven = proven_for(plan, OTHER)
    proof = replace(proven.certificate, bound_ns=bound, **certificate)  # type: ignore[arg-type]
    time = replace(proven.time, recompute_ns=max(1, proven.time.recompute_ns))
    first = proof_lines(replace(proven, certificate=proof, time=time))[0]
    return first.partition("--effort ")[2].partition(" ")[0]


@pytest.mark.parametrize(("gap", "expected"), [(0.004, ""), (0.006, "high")])
def test_where_the_gap_is_wide_more_effort_is_advised(gap: float, expected: str, plans: dict[str, Plan]) -> None:
    assert advised(plans["60%"], gap, notes=()) == expected


def test_after_the_least_effort_it_is_the_default_one(plans: dict[str, Plan]) -> None:
    assert advised(plans["60%"], 0.1, notes=(f"{EFFORT_NOTE}fast",)) == "default"


@pytest.mark.parametrize(
    "certificate", [{"notes": (f"{EFFORT_NOTE}high",)}, {"stopped_early": True}, {"strategy": "greedy"}]
)
def test_more_effort_is_not_advised_where_it_would_change_nothing(
    certificate: dict[str, object], plans: dict[str, Plan]
) -> None:
    assert advised(plans["60%"], 0.1, **{"notes": (), **certificate}) == ""
