"""The first ten minutes on a GPU: does everything that was found without one hold there?

    python -m models.cuda.day_one -o models/results/cuda_day_one.json [--small] [--minutes 9] [--wheels FOLDER]
                                  [--together] [--logs FOLDER]

Nothing is installed beside the checkout and no network is used; packages that the machine lacks come as wheels. Every
stage is a process of its own with its own time limit, the most telling first; where it dies, another one goes on with
the networks that are left. With ``--together`` stages whose results do not depend on what else runs on the card run at
the same time. The file and its page are written after each, whatever fails, so that a run that is cut off still tells.
The exit code is 1 where a stage did not end well.

The file has ``command``, ``commit``, ``standin`` (whether the card is the stand-in of tests/cuda_standin, whose values
and times mean nothing), ``small``, ``minutes`` and ``stages``: by name ``outcome`` (done, failed, cut off, no time
left), ``seconds``, ``error`` (the last lines of a stage that is not done) and ``found``, what the stage's module
describes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from models.cuda.day_one.page import report
from models.cuda.day_one.stage import NETWORKS
from models.cuda.settings import ALLOCATOR, EXPANDABLE, STANDIN
from models.reporting.command_line import add_output, command_parser, one_of
from models.reporting.kept import ROOT, kept
from models.reporting.option_values import folder, rate
from models.reporting.result_record import save

SHORTEST_S = 10.0
"""Less time than this is not enough for a stage."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A module of this folder, the seconds that it may take, and variables that it runs with.

    A stage that is not ``alone`` may share the card with others; then one ``by_network`` takes a process for each
    network.
    """

    module: str
    limit_s: float
    variables: tuple[tuple[str, str], ...] = ()
    alone: bool = True
    by_network: bool = False


GROWING = ((ALLOCATOR, EXPANDABLE),)
VARIABLES = {"KINETO_LOG_LEVEL": "99", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
REPEATABLE = (("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),)
STAGES: dict[str, Stage] = {
    "environment": Stage("environment", 150),
    "bits": Stage("bits", 100, REPEATABLE, alone=False, by_network=True),
    "memory": Stage("memory", 110, alone=False, by_network=True),
    "cap": Stage("cap", 60, alone=False, by_network=True),
    "cap_expandable": Stage("cap", 60, GROWING, alone=False, by_network=True),
    "times": Stage("times", 110, by_network=True),
    "capture": Stage("capture", 40, by_network=True),
    "card_tests": Stage("card_tests", 150, alone=False),
    "adapter_tests": Stage("adapter_tests", 150, REPEATABLE, alone=False),
    "compiled": Stage("compiled", 150, by_network=True),
    "memory_expandable": Stage("memory", 110, GROWING, alone=False, by_network=True),
}
"""The most telling first; later ones take what time is left."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a stage ended, and what it found."""

    outcome: str
    seconds: float = 0.0
    error: str = ""
    found: Any = None


def groups(stages: Sequence[str], together: bool) -> list[list[str]]:
    """The stages in their order, those that may run at the same time in one group, if they are to; the first alone."""
    if not together:
        return [[stage] for stage in stages]
    first, *rest = stages
    shared = [stage for stage in rest if not STAGES[stage].alone]
    return [[first], *([shared] if shared else []), *([stage] for stage in rest if STAGES[stage].alone)]


def paths(wheels: Path | None, site: Path) -> str:
    """The import path of the stages: this checkout, and the wheels, which are unpacked into ``site``.

    One that is not for this Python is found out by the stage that imports it; one that is no archive is told and left.
    """
    found = [str(ROOT / ".src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else ():
        _unpack(wheel, site)
    return os.pathsep.join([*found, str(site)])


def _unpack(wheel: Path, site: Path) -> None:
    try:
        shutil.unpack_archive(wheel, site, "zip")
    except (OSError, shutil.ReadError) as error:
        print(f"{wheel}: {error}", file=sys.stderr, flush=True)


def merged(parts: Sequence[Result]) -> Result:
    """The result of a stage from those of its networks: the rows of all, and the outcome of the first that failed."""
    found: dict[str, Any] = {}
    for part in parts:
        for key, value in (part.found or {}).items():
            if isinstance(value, list):
                found.setdefault(key, []).extend(value)
            elif isinstance(value, dict):
                found.setdefault(key, {}).update(value)
            else:
                found[key] = value
    worst = next((part for part in parts if part.outcome != "done"), parts[0])
    return Result(worst.outcome, max(part.seconds for part in parts), worst.error, found or None)


def run_networks(
    stage: Stage, limit_s: float, environment: dict[str, str], log: Path, small: bool, networks: Sequence[str]
) -> Result:
    """Run a stage for some networks; where its process dies, another one goes on with those that it did not come to.

    A network that a process died of before it found anything is tried once more.
    """
    ends, parts = time.monotonic() + limit_s, list[Result]()
    while True:
        part = run_stage(stage, ends - time.monotonic(), environment, log, small, networks)
        parts.append(part)
        found = part.found if isinstance(part.found, dict) else {}
        met = {row["network"] for row in found.get("rows", ())}
        networks = [name for name in networks if name not in met][0 if met else 1 :]
        if part.outcome != "failed" or not networks or ends - time.monotonic() < SHORTEST_S:
            return replace(merged(parts), seconds=round(sum(part.seconds for part in parts), 1))
        log = log.with_stem(f"{log.stem}_again")


def run_stage(
    stage: Stage, limit_s: float, environment: dict[str, str], log: Path, small: bool, networks: Sequence[str]
) -> Result:
    """Run a stage for some networks until it ends or its time is up; its process group ends with it."""
    file = log.with_suffix(".json")
    command = [sys.executable, "-m", "models.cuda.day_one.stage", stage.module, str(file)]
    command += [word for name in networks for word in ("--network", name)]
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
                with suppress(subprocess.TimeoutExpired):  # a process that waits for a card that hangs stays
                    process.wait(SHORTEST_S)
    told = "" if outcome == "done" else log.read_text(errors="replace")[-1500:]
    found = kept(file)
    file.unlink(missing_ok=True)
    return Result(outcome, round(time.monotonic() - started, 1), told, found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages that the time is enough for."""
    parser = command_parser("models.cuda.day_one", __doc__)
    add_output(parser, required=True)
    parser.add_argument("--small", action="store_true", help="tiny networks: whether every stage runs at all")
    parser.add_argument("--minutes", type=rate, default=9.0, help="for everything (default %(default)g)")
    parser.add_argument("--logs", type=folder, metavar="FOLDER", help="where to leave what the stages print")
    parser.add_argument("--together", action="store_true", help="run stages at the same time where that is right")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels of packages that the machine lacks")
    parser.add_argument(
        "--only", type=one_of(STAGES, "stage"), action="append", metavar="STAGE", help=argparse.SUPPRESS
    )
    options = parser.parse_args(arguments)
    results: dict[str, Result] = {}
    one_at_a_time = Lock()
    with tempfile.TemporaryDirectory() as name:
        logs = options.logs or Path(name)
        logs.mkdir(parents=True, exist_ok=True)
        ends = time.monotonic() + 60 * options.minutes
        environment = {**os.environ, **VARIABLES, "PYTHONPATH": paths(options.wheels, Path(name) / "site")}

        def run(stage: str) -> None:
            left, what = ends - time.monotonic(), STAGES[stage]
            limit_s = min(left, what.limit_s * (4 if options.small else 1))  # a busy machine without a GPU

            def part(networks: Sequence[str]) -> Result:
                log = logs / f"{'_'.join((stage, *networks))}.log"
                try:
                    return run_networks(what, limit_s, environment, log, options.small, networks)
                except Exception:
                    return Result("failed", error=traceback.format_exc())

            result = Result("no time left")
            if left >= SHORTEST_S:
                parts: list[Sequence[str]] = [NETWORKS if what.by_network else ()]
                if options.together and what.by_network and not what.alone:
                    parts = [(name,) for name in NETWORKS]
                with ThreadPoolExecutor(len(parts)) as threads:
                    result = merged(list(threads.map(part, parts)))
            with one_at_a_time:
                results[stage] = result
                print(f"{stage}: {result.outcome}, {result.seconds:.0f} s", file=sys.stderr, flush=True)
                _write(options, arguments, {each: results[each] for each in STAGES if each in results})

        for stages in groups(options.only or list(STAGES), options.together):
            with ThreadPoolExecutor(len(stages)) as threads:
                list(threads.map(run, stages))
    return int(any(result.outcome != "done" for result in results.values()))


def commit() -> str:
    """The commit of the checkout; empty where git does not tell."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def _write(options: argparse.Namespace, arguments: Sequence[str] | None, results: dict[str, Result]) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    record = {
        "command": " ".join(["python -m models.cuda.day_one", *words]),
        "commit": commit(),
        "standin": STANDIN,
        "small": options.small,
        "minutes": options.minutes,
        "stages": {stage: asdict(result) for stage, result in results.items()},
    }
    try:
        page = report(record)
    except Exception:  # rows that the page was not made for
        page = f"No page could be made of the results:\n\n```text\n{traceback.format_exc()}```"
    save(options.output, record, f"{page}\n")


if __name__ == "__main__":
    sys.exit(main())
