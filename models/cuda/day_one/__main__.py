"""The first ten minutes on a GPU: does everything that was found without one hold there?

    python -m models.cuda.day_one -o models/results [--small] [--minutes 9] [--wheels FOLDER]

Nothing is installed beside the checkout and no network is used; packages that the machine lacks come as wheels. Every
stage is a process of its own with its own time limit, the most telling first. cuda_day_one.json and its page are
written to the folder after each, so that a run that is cut off still tells. The exit code is 1 where a stage did not
end well.

The file has ``command``, ``standin`` (whether the card is the stand-in of tests/cuda_standin, whose values and times
mean nothing), ``small``, ``minutes`` and ``stages``: by name ``outcome`` (done, failed, cut off, no time left),
``seconds``, ``error`` (the last lines of a stage that is not done) and ``found``, what the stage's module describes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.cuda import card
from models.cuda.day_one.page import report
from models.reporting.command_line import command_parser, one_of
from models.reporting.kept import ROOT, kept
from models.reporting.option_values import folder, rate
from models.reporting.result_record import save

FILE = "cuda_day_one.json"
SHORTEST_S = 10.0
"""Less time than this is not enough for a stage."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A module of this folder, the seconds that it may take, and variables that it runs with."""

    module: str
    limit_s: float
    variables: tuple[tuple[str, str], ...] = ()


EXPANDABLE = ((card.ALLOCATOR, card.EXPANDABLE),)
STAGES: dict[str, Stage] = {
    "environment": Stage("environment", 150),
    "bits": Stage("bits", 100, (("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),)),
    "memory": Stage("memory", 110),
    "cap": Stage("cap", 60),
    "cap_expandable": Stage("cap", 60, EXPANDABLE),
    "times": Stage("times", 110),
    "capture": Stage("capture", 40),
    "card_tests": Stage("card_tests", 90),
    "compiled": Stage("compiled", 150),
    "memory_expandable": Stage("memory", 110, EXPANDABLE),
}
"""The most telling first; later ones take what time is left."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a stage ended, and what it found."""

    outcome: str
    seconds: float = 0.0
    error: str = ""
    found: Any = None


def paths(wheels: Path | None, site: Path) -> str:
    """The import path of the stages: this checkout, and the wheels, which are unpacked into ``site``."""
    found = [str(ROOT / ".src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    if wheels is not None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
        subprocess.run([*command, *map(str, sorted(wheels.resolve().glob("*.whl")))], check=True)
        found.append(str(site))
    return os.pathsep.join(found)


def run_stage(stage: Stage, limit_s: float, environment: dict[str, str], folder: Path, small: bool) -> Result:
    """Run a stage until it ends or its time is up; its whole process group ends with it."""
    file, log = folder / "found.json", folder / "log.txt"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "models.cuda.day_one.stage", stage.module, str(file)]
    started, outcome = time.monotonic(), "done"
    with log.open("w") as output:
        process = subprocess.Popen(
            command + ["--small"] * small,
            cwd=ROOT,
            env={**environment, **dict(stage.variables)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            outcome = "failed" if process.wait(limit_s) else "done"
        except subprocess.TimeoutExpired:
            outcome = "cut off"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    told = "" if outcome == "done" else log.read_text(errors="replace")[-1500:]
    return Result(outcome, round(time.monotonic() - started, 1), told, kept(file))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages that the time is enough for."""
    parser = command_parser("models.cuda.day_one", __doc__)
    parser.add_argument("-o", "--output", type=folder, required=True, help="folder of the results")
    parser.add_argument("--small", action="store_true", help="tiny networks: whether every stage runs at all")
    parser.add_argument("--minutes", type=rate, default=9.0, help="for everything (default %(default)g)")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels of packages that the machine lacks")
    parser.add_argument(
        "--only", type=one_of(STAGES, "stage"), action="append", metavar="STAGE", help=argparse.SUPPRESS
    )
    options = parser.parse_args(arguments)
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as name:
        ends = time.monotonic() + 60 * options.minutes
        environment = {**os.environ, "PYTHONPATH": paths(options.wheels, Path(name) / "site"), "KINETO_LOG_LEVEL": "99"}
        for stage in options.only or STAGES:
            left = ends - time.monotonic()
            if left < SHORTEST_S:
                results[stage] = Result("no time left")
            else:
                limit_s = min(left, STAGES[stage].limit_s)
                results[stage] = run_stage(STAGES[stage], limit_s, environment, Path(name), options.small)
            print(f"{stage}: {results[stage].outcome}, {results[stage].seconds:.0f} s", file=sys.stderr, flush=True)
            _write(options, arguments, results)
    return int(any(result.outcome != "done" for result in results.values()))


def _write(options: argparse.Namespace, arguments: Sequence[str] | None, results: dict[str, Result]) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    record = {
        "command": " ".join(["python -m models.cuda.day_one", *words]),
        "standin": card.STANDIN,
        "small": options.small,
        "minutes": options.minutes,
        "stages": {stage: asdict(result) for stage, result in results.items()},
    }
    save(options.output / FILE, record, f"{report(record)}\n")


if __name__ == "__main__":
    sys.exit(main())
