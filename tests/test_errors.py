"""What an error tells whoever meets it."""

from __future__ import annotations

from ogc_plan.planner.errors import UsageError


def test_the_text_of_an_error_is_its_message_and_its_remedy() -> None:
    assert str(UsageError("seed -1 is no number", remedy="pass 0")) == "seed -1 is no number; pass 0"
