"""The tests of tests/cuda that need no log of the stand-in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

from models.cuda.day_one.cases import Save
from models.reporting.kept import ROOT

LEFT_OUT = ("tests/cuda/test_day_one.py", "tests/cuda/test_tight_card.py")
"""Tests of commands that take a card for themselves."""
_OUTCOME = re.compile(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|SKIPPED|ERROR) (tests/\S+::.*?) *$")


def run(small: bool, save: Save) -> None:
    """Counts by outcome, the names of the tests that failed, and the last lines; with ``small`` of one file."""
    run_tests(
        ["tests/cuda/test_measuring.py"] if small else ["tests/cuda", *(f"--ignore={path}" for path in LEFT_OUT)], save
    )


def run_tests(tests: list[str], save: Save, **variables: str) -> None:
    """Run tests in a third of the machine's cores, with these variables; the process ends with pytest's exit code."""
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "models.cuda.day_one.failures", *tests]
    command += ["-n", str(max(1, (os.cpu_count() or 1) // 3))]
    counts: Counter[str] = Counter()
    failed: list[str] = []
    lines: list[str] = []
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip()[:300])
        named = _OUTCOME.search(line)
        if named is not None:
            counts[named[1].lower()] += 1
            failed += [named[2]] if named[1] in ("FAILED", "ERROR") else []
            save({"exit_code": None, "counts": counts, "failed": failed, "last": []})
    code = process.wait()
    save({"exit_code": code, "counts": counts, "failed": failed, "last": lines[-40:] if code else lines[-1:]})
    if code:
        sys.exit(code)
