"""The executor on tiny cases: bytes as predicted, bits as eager, and what counts as a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.fidelity import executor
from models.fidelity.__main__ import main
from models.fidelity.executor import Pair, Peaks, PlanFiles, Row, examine_both, failures_of, run_eager
from models.fidelity.tables import details
from models.networks.gpt2 import GPT2Config
from models.training.cases import gpt_case, unet_case
from models.training.outcome import Equality

KIB = 1024
SMALL = {
    "gpt": gpt_case(2, GPT2Config(vocabulary=64, context=32, layers=2, heads=2, width=32, dropout=0.1)),
    "unet": unet_case(1, 64, (4, 8, 16)),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors here are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def examined(name: str, budget: str, folder: Path) -> list[Row]:
    case = SMALL[name]
    eager = run_eager(case, 2, "cpu")
    return examine_both(case, budget, eager, PlanFiles(folder), steps=2, rounds=0, device="cpu")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The GPT planned in memory and through files."""
    return examined("gpt", "60%", tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def row(rows: list[Row]) -> Row:
    return rows[0]


def test_a_case_planned_in_memory_and_through_files_trains_as_eager_does_within_its_budget(rows: list[Row]) -> None:
    assert [(row.via, row.infeasible, row.failures) for row in rows] == [("memory", None, ()), ("file", None, ())]


def test_a_budget_without_a_plan_is_a_row_that_names_the_floor(tmp_path: Path) -> None:
    (found,) = examined("unet", "1%", tmp_path)
    assert found.infeasible is not None
    assert (found.infeasible.proven, found.infeasible.floor_nbytes > 0, found.failures) == (True, True, ())


def test_a_peak_further_from_its_prediction_than_the_tolerance_is_a_failure(row: Row) -> None:
    assert row.measured is not None
    off = replace(row.measured, storages=Peaks(Pair(10**6, 10**6 + 64 * KIB + 1)))
    assert list(failures_of(replace(row, measured=off))) == ["total +65537 B off by the storage meter"]


def test_a_peak_above_the_budget_is_a_failure(row: Row) -> None:
    assert row.measured is not None
    assert row.measured.allocator.activations is not None
    low = row.measured.allocator.activations.measured_nbytes - 1
    found = list(failures_of(replace(row, budget_nbytes=low)))
    assert "activations 1 B above the budget by the allocator" in found


def test_a_difference_from_eager_is_a_failure(row: Row) -> None:
    equal = {"step 1": Equality(True, True, False, True, True, True)}
    assert list(failures_of(replace(row, equal=equal))) == ["gradients unequal after step 1"]


def test_the_command_ends_with_1_where_a_row_has_a_failure(
    row: Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = replace(row, failures=("gradients unequal after step 1",))
    monkeypatch.setattr(executor, "CASES", SMALL)
    monkeypatch.setattr(executor, "examine_both", lambda *_, **__: [failing])
    code = main(["executor", "--case", "gpt", "--budgets", "60%", "--steps", "1", "--device", "cpu"])
    assert (code, "gradients unequal after step 1" in capsys.readouterr().out) == (1, True)


def test_the_report_has_what_was_measured_and_whether_it_is_equal(row: Row) -> None:
    (line,) = [line for line in details({"gpt": examined_gpt(row)}).splitlines() if line.startswith("| gpt")]
    assert ("step 1, step 2, 2 accumulated" in line, line.rstrip(" |").endswith("ok")) == (True, True)


def examined_gpt(row: Row) -> dict[str, Any]:
    peak = {"activation_nbytes": 1}
    return {"sizes": "", "storages": peak, "allocator": peak, "rows": [asdict(row)]}
