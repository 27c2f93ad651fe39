"""Plan and run the networks that OGC was published with, against its published figures and its strategy run here.

    python -m models.benchmark --arch resnet101 --device cuda:0
    python -m models.benchmark --arch all -o models/results/benchmark.json --jobs 2

On a GPU memory and seconds are measured. Without one (``--device fake``) the programs that would run there are
run on tensors without memory, at the published batches, and metered; a roofline predicts times. Each network has
a process of its own. Finished networks are kept, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from models.benchmark.measure import add_options, parsed, place_of
from models.benchmark.network import Place
from models.benchmark.picture import timelines, tradeoffs
from models.benchmark.published import PUBLISHED
from models.benchmark.table import csv_rows, failure, failures, page
from models.reporting.command_line import INTERRUPTED, add_output, command_parser
from models.reporting.kept import ROOT, folder_of, keep, kept
from models.reporting.option_values import count, folder
from models.reporting.result_record import write
from models.zoo import ZOO

CODE = ("planner/**/*.py", "adapters/pytorch/**/*.py", "models/descriptions.py",
        *(f"models/{folder}/*.py" for folder in ("networks", "alternatives", "meters", "benchmark")))  # fmt: skip
"""The code that results depend on."""
Results = dict[str, dict[str, Any]]
Tell = Callable[[str], None]


def handed_on(options: argparse.Namespace) -> list[str]:
    """The options of one network's process."""
    given = ["--device", options.device, "--effort", options.effort, "--backend", options.backend]
    given += [
        "--compile-budgets",
        ",".join(f"{share:g}" for share in options.compile_budgets),
        "--solves",
        str(options.solves),
    ]
    given += ["--steps", str(options.steps), "--warm-up", str(options.warm_up)]
    given += ["--roofline", options.roofline] if options.roofline else []
    given += ["--small"] if options.small else []
    return [*given, "--no-alternatives"] if options.no_alternatives else given


def command(name: str, given: Sequence[str]) -> list[str]:
    """What measures one network."""
    return [sys.executable, "-m", "models.benchmark.measure", name, *given]


class Processes:
    """The networks' processes that run, which can be ended together, from another thread than theirs."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False
        self._lock = threading.Lock()

    def start(self, arguments: Sequence[str], words: IO[str]) -> subprocess.Popen[str]:
        """A new one, its errors in ``words``. Raises InterruptedError after `end`."""
        with self._lock:
            if self._ended:
                raise InterruptedError
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=words, text=True, cwd=ROOT)
            self._running.add(process)
            return process

    def end(self) -> None:
        """End those that run, and start none."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.terminate()  # does nothing where it ended by itself


def measured(name: str, parts: Path, given: Sequence[str], tell: Tell, processes: Processes) -> dict[str, Any]:
    """The result of one network: from ``parts`` where it is, else from a process now, and put there.

    A network whose process fails has its last words for a result, under ``error``. Nothing is put there of one that
    failed.
    """
    part = parts / f"{name}.json"
    earlier = kept(part)
    if earlier is not None:
        return earlier
    found: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as words:
        process = processes.start(command(name, given), words)
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            found = told.get("result", found)
            tell(told.get("next", "done"))
        if process.wait() or not found:
            words.seek(0)
            last = words.read().strip().splitlines() or [f"exit code {process.returncode}"]
            return {"error": last[-1][:300]}
    if failure(name, found) is not None:
        return found
    keep(part, found)
    return found


def run(names: Sequence[str], parts: Path, given: Sequence[str], jobs: int) -> Results:
    """Every network, ``jobs`` at a time, with a line of progress for each that runs.

    An interrupt ends those that run and starts no other.
    """
    processes = Processes()
    parts.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(jobs) as pool:
        overall = progress.add_task("networks", total=len(names))

        def one(name: str) -> dict[str, Any]:
            line = progress.add_task(name, total=None)
            found = measured(
                name, parts, given, lambda what: progress.update(line, description=f"{name}: {what}"), processes
            )
            progress.remove_task(line)
            progress.advance(overall)
            return found

        try:
            started = {name: pool.submit(one, name) for name in names}
            return {name: started[name].result() for name in names}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end()
            raise


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.benchmark", __doc__)
    parser.add_argument(
        "--arch",
        nargs="+",
        choices=[*ZOO, "all"],
        default=["all"],
        metavar="NAME",
        help=f"networks, or all for the {len(PUBLISHED)} published ones (default): {', '.join(ZOO)}",
    )
    add_options(parser)
    parser.add_argument("--jobs", type=count, default=1, help="networks at a time; 1 where times are measured")
    parser.add_argument("--parts", type=folder, help="folder of what is done (default: one for this code, in /tmp)")
    add_output(parser, ".md, .csv and pictures")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Benchmark what the command line asks for, print the tables and write the results.

    1 where a network failed, 2 for a command line that cannot be followed, 130 where it was interrupted.
    """
    options = parsed(_parser(), arguments)
    names = list(PUBLISHED) if "all" in options.arch else list(dict.fromkeys(options.arch))
    place, given = place_of(options), handed_on(options)
    parts = options.parts or folder_of("networks-", given, CODE)
    try:
        results = run(names, parts, given, options.jobs)
    except KeyboardInterrupt:
        print("models.benchmark: interrupted; the same command goes on with what is not done", file=sys.stderr)
        return INTERRUPTED
    text = page(results, place)
    print(text)
    if options.output:
        write_all(options.output, results, text, arguments, place)
    return int(bool(failures(results)))


def write_all(output: Path, results: Results, text: str, arguments: Sequence[str] | None, place: Place) -> None:
    """The JSON and Markdown record, a CSV with one line per network and method, and two pictures."""
    write(
        output,
        text,
        script="models.benchmark",
        arguments=arguments,
        device=place.device.type,
        quantity="bytes and seconds of one training step; overhead as a share of a plain step",
        where=place.described(),
        networks=results,
    )
    with output.with_suffix(".csv").open("w", newline="") as file:
        lines = csv_rows(results)
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    finished = {name: found for name, found in results.items() if name not in failures(results)}
    output.with_name(f"{output.stem}_memory_time.svg").write_text(tradeoffs(finished))
    output.with_name(f"{output.stem}_timelines.svg").write_text(timelines(finished))


if __name__ == "__main__":
    sys.exit(main())
