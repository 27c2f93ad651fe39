"""The tests of tests/cuda that need no log of the stand-in."""

from __future__ import annotations

import re
import subprocess
import sys

from models.cuda.day_one.cases import Save
from models.reporting.kept import ROOT

LEFT_OUT = ("tests/cuda/test_day_one.py", "tests/cuda/test_tight_card.py")
"""Tests of commands that take a card for themselves."""


def run(small: bool, save: Save) -> None:
    """Counts by outcome, and the lines of those that failed; with ``small`` of one file."""
    tests = ["tests/cuda/test_measuring.py"] if small else ["tests/cuda", *(f"--ignore={path}" for path in LEFT_OUT)]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", lines[-1] if lines else "")}
    failed = [line[:300] for line in lines if line.startswith(("FAILED", "ERROR"))]
    save({
        "exit_code": done.returncode,
        "counts": {kind: n for kind, n in counts.items() if kind in ("passed", "failed", "skipped", "errors", "error")},
        "failed": failed,
        "message": "" if counts else (done.stdout + done.stderr)[-500:],
    })  # fmt: skip
