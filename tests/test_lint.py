"""The whole tree passes the linter, the formatter and the type checker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("tool", ["ruff check --no-cache", "ruff format --check --no-cache", "mypy"])
def test_the_tree_is_clean(tool: str) -> None:
    name, *options = tool.split()
    arguments = [*options, "."] if name == "ruff" else options
    done = subprocess.run([sys.executable, "-m", name, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
