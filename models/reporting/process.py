"""What a module prints about one thing, in a process of its own, so that no crash or endless run ends everything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from models.reporting.kept import ROOT


def answer_of(
    module: str, *arguments: str, limit_s: float | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON that ``python -m module`` prints, or ``error`` alone: why it printed none.

    ``environment`` has the variables of the process; without it they are those of this one.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"no outcome within {limit_s:g} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"exit status {done.returncode}: {last}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found
