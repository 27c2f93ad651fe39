"""The comparison with what PyTorch users do today, at a size that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.alternatives.methods import plain
from models.networks.gpt2 import GPT2Config
from models.training import executor_benchmark
from models.training.cases import Case, gpt_case
from models.training.executor_benchmark import SMALL, benchmark, methods, report

TINY = GPT2Config(vocabulary=64, context=64, layers=3, heads=2, width=32, dropout=0.1)


@pytest.fixture(scope="module")
def case() -> Case:
    return gpt_case(1, TINY)


@pytest.fixture(scope="module")
def rows(case: Case) -> list[dict[str, Any]]:
    return benchmark(case, methods(case, budgets=(0.3,), counts=(2,)), 1, "cpu")


def test_every_plan_stays_within_the_peak_of_the_method_beside_it(rows: list[dict[str, Any]]) -> None:
    above = [row["method"] for row in rows if row["planned"]["peak_nbytes"] > row["result"]["peak_nbytes"]]
    assert above == []


def test_every_plan_trains_to_the_bits_of_eager(rows: list[dict[str, Any]]) -> None:
    assert [row["method"] for row in rows if any(same is False for same in row["planned"]["equal"].values())] == []


def test_wrong_gradients_of_another_method_are_seen(rows: list[dict[str, Any]]) -> None:
    unequal = [row["method"] for row in rows if not row["result"]["equal"]["gradients"]]
    assert unequal == ["compile budget 0.3 (aot_eager)"]


def test_the_report_has_a_line_for_each_method(rows: list[dict[str, Any]]) -> None:
    told = report(rows)
    assert [row["method"] for row in rows if f" {row['method']} |" not in told] == []


def test_a_method_that_fails_is_a_finding_of_the_report(case: Case) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such method")

    (_, row) = benchmark(case, {"broken": broken}, 1, "cpu")  # type: ignore[dict-item]
    assert "fails: ValueError: no such method" in report([row])


def test_a_run_at_the_small_size_writes_its_results(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SMALL, "gpt", case)
    monkeypatch.setattr(executor_benchmark, "methods", lambda *given, **options: {"by block": plain})
    given = ["--small", "--case", "gpt", "--rounds", "1", "--device", "cpu", "-o", str(tmp_path / "small.json")]
    code = executor_benchmark.main(given)
    written = json.loads((tmp_path / "small.json").read_text())
    assert (code, [row["method"] for row in written["rows"]]) == (0, ["eager", "by block"])
