"""Damaged models and plans are planned or refused in one line; fuzz.py has more cases of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ogc_plan.planner.errors import UsageError

from tests.cli.calls import raising
from tests.planner import fuzz


@pytest.mark.parametrize(("kind", "count"), [("models", 250), ("nodes", 500), ("plans", 1_750)])
def test_a_damaged_file_is_planned_or_refused(kind: str, count: int) -> None:
    found, defects = fuzz.counted(kind, count, first=10**6)
    assert (defects, found.keys() - {"planned", "refused"}, found.total()) == ([], set(), count)


def spin(*_: object) -> None:
    while True:
        pass


DEFECTS = {
    "traceback: ValueError: wrong": raising(ValueError("wrong")),
    "not one line and a remedy": raising(UsageError("two\nlines", remedy="a remedy")),
    "hang": spin,
}


@pytest.mark.parametrize("what", DEFECTS)
def test_a_defect_is_told(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "CASE_S", 0.05)
    monkeypatch.setitem(fuzz.CASES, "models", DEFECTS[what])
    assert fuzz.outcome("models", 0, tmp_path).startswith(what)
