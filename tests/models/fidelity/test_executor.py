"""The executor on tiny cases: bytes as predicted, bits as eager, and what counts as a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
import torch

from models.fidelity import executor
from models.fidelity.__main__ import main
from models.fidelity.executor import Pair, Peaks, Row, examine, failures_of, run_eager
from models.fidelity.tables import executor_report
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


def examined(name: str, budget: str) -> Row:
    eager = run_eager(SMALL[name], 2, "cpu")
    return examine(SMALL[name], budget, eager, steps=2, rounds=0, device="cpu")


@pytest.fixture(scope="module")
def row() -> Row:
    return examined("gpt", "60%")


def test_a_planned_case_trains_as_eager_does_within_its_budget(row: Row) -> None:
    assert (row.infeasible, row.failures) == (None, ())


def test_a_budget_without_a_plan_is_a_row_that_names_the_floor() -> None:
    found = examined("unet", "1%")
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
    monkeypatch.setattr(executor, "examine", lambda *_, **__: failing)
    code = main(["executor", "--case", "gpt", "--budgets", "60%", "--steps", "1", "--device", "cpu"])
    assert (code, "gradients unequal after step 1" in capsys.readouterr().out) == (1, True)


def test_the_report_has_what_was_measured_and_whether_it_is_equal(row: Row) -> None:
    eager = {"gpt": {"sizes": "", "allocator": {"activation_nbytes": 1}}}
    told = executor_report({"eager": eager, "rows": [asdict(row)]})
    assert "| step 1, step 2, 2 accumulated |" in told
