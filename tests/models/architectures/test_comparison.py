"""The comparison of foreign architectures with real steps: every network ends in a row, with figures or a reason."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.architectures.__main__ import Row, examine, table
from models.architectures.case import Case
from models.architectures.cases import COMPARED
from models.architectures.notes import BEYOND_TEN_PERCENT, NOTES

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


RESULTS = Path(__file__).resolve().parents[3] / "models" / "results"


def recorded() -> list[dict[str, Any]]:
    """The rows of the committed results that have a measured step."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / "architectures.json").read_text())["rows"]
    return [row for row in rows if not COMPARED[row["name"]].full_size]


def distance(row: dict[str, Any]) -> float:
    """How far the simulated peak is from the measured one in percent; infinite where there is none."""
    difference = row["difference_percent"]
    return float("inf") if difference is None else abs(difference)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.SiLU())))

    def forward(self, rows: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layers(rows))


def refused(library: Any) -> nn.Module:
    raise RuntimeError(f"{library.__name__} cannot\nbuild this")


def row(build: Any = lambda _: Perceptron(), *, full_size: bool = False) -> Row:
    inputs = lambda: {"rows": torch.zeros(64, 32)}  # noqa: E731
    return examine(Case("small", "perceptron", "torch", build, inputs, True, "64x32", "logits", full_size=full_size))


@pytest.fixture(scope="module")
def examined() -> Row:
    return row()


def test_a_network_is_compared_with_its_real_step_and_planned_at_each_budget(examined: Row) -> None:
    assert examined.storages is not None
    close = abs(examined.storages.difference_percent) < 0.1
    assert (close, [outcome.budget for outcome in examined.outcomes]) == (True, ["60%", "40%"])


def test_the_table_has_a_line_for_a_network(examined: Row) -> None:
    assert table([examined]).splitlines()[2].startswith("| small")


def test_the_table_tells_why_a_network_failed() -> None:
    assert "- small: RuntimeError: torch cannot build this" in table([row(refused)])


def test_a_full_size_network_is_planned_without_weights() -> None:
    assert row(full_size=True).outcomes


def test_every_note_is_about_a_network_and_every_listed_network_has_one() -> None:
    assert BEYOND_TEN_PERCENT <= NOTES.keys() <= COMPARED.keys()


class TestCommittedResults:
    @pytest.mark.parametrize(("library", "least"), [("transformers", 10), ("diffusers", 2)])
    def test_enough_networks_of_each_library_are_within_ten_percent(self, library: str, least: int) -> None:
        close = [row for row in recorded() if row["library"] == library and distance(row) < 10]
        assert len(close) >= least

    def test_every_network_beyond_ten_percent_is_listed(self) -> None:
        beyond = {row["name"] for row in recorded() if distance(row) >= 10}
        assert beyond - BEYOND_TEN_PERCENT == set()

    def test_every_network_is_planned_or_proven_infeasible_at_both_budgets(self) -> None:
        open_ends = [
            (row["name"], outcome["budget"])
            for row in recorded()
            for outcome in row["outcomes"]
            if outcome["overhead"] is None and outcome["status"] != "proven infeasible"
        ]
        assert (open_ends, [row["name"] for row in recorded() if len(row["outcomes"]) != 2]) == ([], [])


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed (the models extra)")
@pytest.mark.parametrize("name", ["vit"])
def test_a_model_of_transformers_is_within_ten_percent(name: str) -> None:
    pair = examine(COMPARED[name]).storages
    assert pair is not None
    assert abs(pair.difference_percent) < 10
