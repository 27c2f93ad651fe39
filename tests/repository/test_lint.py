"""The whole tree passes the linter, the formatter and the type checker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


FOLDERS = ("planner", "adapters", "cli")  # installed as ogc_plan.planner, ...


def run(*arguments: str, **environment: str) -> str:
    """What a tool prints on the tree; nothing but its success line where all is well."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment})
    return "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize("mode", ["check", "format --check"])
def test_the_linter_and_the_formatter_accept_the_tree(mode: str) -> None:
    assert run("ruff", *mode.split(), "--no-cache", ".") == ""


def test_the_type_checker_accepts_every_module(tmp_path: Path) -> None:
    modules = [f"ogc_plan.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}" for path in sources()]
    arguments = [word for module in ("ogc_plan.__main__", *modules) for word in ("-m", module)]
    assert run("mypy", "--cache-dir", str(tmp_path), *arguments, MYPYPATH=str(ROOT / ".src")) == ""


def sources() -> list[Path]:
    """Every module of the package; a folder's __init__ stands for the folder."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")
