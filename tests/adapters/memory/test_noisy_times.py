"""Times that differ from run to run are told: a plan that they decide may compute the wrong ops again."""

from __future__ import annotations

import warnings

import pytest
import torch
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.adapters.pytorch.memory import call_time as timing
from ogc_plan.adapters.pytorch.memory import workspace_meter
from ogc_plan.adapters.pytorch.memory.call_time import CallTime, call_time
from torch import nn

MS = 1_000_000


@pytest.mark.parametrize(
    ("first", "runs", "expected"),
    [
        (30 * MS, [20 * MS, 26 * MS, 25 * MS], CallTime(20 * MS, 5 * MS)),
        (None, [20 * MS, 20 * MS, 26 * MS], CallTime(20 * MS, 0)),
        (200 * MS, [], CallTime(200 * MS, None)),
    ],
)
def test_a_call_has_the_time_of_its_best_run_and_the_distance_of_the_next(
    monkeypatch: pytest.MonkeyPatch, first: int | None, runs: list[int], expected: CallTime
) -> None:
    monkeypatch.setattr(timing, "_cpu_time", lambda call: runs.pop(0))
    assert call_time(lambda: None, torch.device("cpu"), first) == expected


def warned(monkeypatch: pytest.MonkeyPatch, took: CallTime, **options: str) -> list[str]:
    """What planning a network warns of whose calls all take so long."""
    monkeypatch.setattr(workspace_meter, "call_time", lambda *_: took)
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        within_budget(module, (torch.randn(4, 8),), budget="100%", **options)  # type: ignore[arg-type]
    return [str(each.message) for each in told]


def test_noisy_times_are_told_once_with_the_figure_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = warned(monkeypatch, CallTime(20 * MS, 5 * MS))
    assert "two runs of a call differ by 25%" in message
    assert "while the machine is quiet, or by profile=profile(model, args) or device=..." in message


@pytest.mark.parametrize(
    "took",
    [CallTime(20 * MS, 3 * MS), CallTime(MS // 10, MS), CallTime(200 * MS)],
    ids=["quiet", "too short to tell", "run once"],
)
def test_others_are_not(monkeypatch: pytest.MonkeyPatch, took: CallTime) -> None:
    assert warned(monkeypatch, took) == []


def test_the_remedy_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned(monkeypatch, CallTime(20 * MS, 5 * MS), device="cpu") == []
