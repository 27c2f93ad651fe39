"""What an error tells whoever meets it."""

from __future__ import annotations

import sys
import traceback

import pytest
from ogc_plan.planner.errors import UsageError


def test_one_line_has_the_message_and_the_remedy() -> None:
    assert UsageError("seed -1 is no number", remedy="pass 0").line == "seed -1 is no number; pass 0"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_a_script_that_ends_with_one_shows_the_remedy() -> None:
    shown = traceback.format_exception_only(UsageError("seed -1 is no number", remedy="pass 0"))
    assert shown[-1] == "pass 0\n"
