"""What an error tells whoever meets it."""

from __future__ import annotations

from ogc_plan.planner.errors import UsageError


def test_one_line_has_the_message_and_the_remedy() -> None:
    assert UsageError("seed -1 is no number", remedy="pass 0").line == "seed -1 is no number; pass 0"
