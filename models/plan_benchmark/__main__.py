"""Plan every graph at seven budgets with `optimal`, and with every other strategy, on one simulator.

    python -m models.plan_benchmark -o models/results/plans.json --jobs 2

Each graph is planned in a process of its own, ``--jobs`` at a time. Then, with nothing else running, each is
timed in a process of its own: solves in parallel would slow each other down. Finished graphs are kept in a folder
that belongs to the present state of the code, so an interrupted run resumes where it stopped. Needs torch with
onnxscript for the four PyTorch exports. The tables go to standard output and, as Markdown, next to the JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ogc_plan.planner.costs.devices import DEVICES
from ogc_plan.planner.strategies.optimal.effort import EFFORTS

from models.plan_benchmark.extent import BASE, EXTENT
from models.plan_benchmark.measure import SOLVED
from models.plan_benchmark.page import page
from models.plan_benchmark.sources import SOURCES, Source
from models.plan_benchmark.times import TIMED, warm
from models.reporting.command_line import add_output, command_parser
from models.reporting.kept import ROOT, folder_of, keep, kept
from models.reporting.option_values import count, folder
from models.reporting.result_record import processor, save

CODE = ("planner/**/*.py", "models/descriptions.py", "models/graphs/*.py", "models/plan_benchmark/*.py")


def _kept(source: Source, parts: Path, suffix: str, module: str, device: str, effort: str) -> dict[str, Any]:
    """What ``module`` prints about one graph: from ``parts`` where it is, else from a process now, and put there."""
    part = parts / f"{source.name}{suffix}"
    earlier = kept(part)
    if earlier is not None:
        return earlier
    started = time.perf_counter()
    command = [sys.executable, "-m", module, str(source.file(parts)), "--device", device, "--effort", effort]
    command += ["--batch", str(source.batch)] if source.batch is not None else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    spent = round(time.perf_counter() - started, 1)
    found = {"benchmark_s": spent, **json.loads(done.stdout)}
    keep(part, found)
    print(f"{module} {source.name}: {spent:.0f} s", file=sys.stderr, flush=True)
    return found


def planned(source: Source, parts: Path, device: str, effort: str) -> dict[str, Any]:
    """The plans of one graph."""
    return {"origin": source.origin, **_kept(source, parts, ".json", "models.plan_benchmark.measure", device, effort)}


def timed(source: Source, parts: Path, device: str, effort: str) -> dict[str, Any]:
    """The times of one graph; nothing else may run meanwhile."""
    return _kept(source, parts, ".times.json", "models.plan_benchmark.times", device, effort)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.plan_benchmark", __doc__)
    add_output(parser)
    parser.add_argument(
        "--device", choices=DEVICES, default="h200", metavar="DEVICE", help="whose roofline gives times"
    )
    parser.add_argument("--effort", choices=EFFORTS, default=BASE, help="of the planner (default %(default)s)")
    parser.add_argument("--only", nargs="*", choices=[*SOURCES], metavar="NAME", help="graphs, e.g. light-vgg19 gpt96")
    parser.add_argument("--jobs", type=count, default=1, help="graphs planned at a time; they are timed one by one")
    parser.add_argument("--times", action=argparse.BooleanOptionalAction, default=True, help="time plans, too")
    parser.add_argument("--parts", type=folder, help="folder of what is done (default: one for this code, in /tmp)")
    parser.add_argument("--list", action="store_true", help="list the graphs")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the whole benchmark, or a part of it."""
    options = _parser().parse_args(arguments)
    if options.list:
        for source in SOURCES.values():
            print(f"{source.name:22} {source.origin}")
        return
    how = (options.device, options.effort)
    parts = options.parts or folder_of("", how, CODE)
    parts.mkdir(parents=True, exist_ok=True)
    chosen = [source for name, source in SOURCES.items() if not options.only or name in options.only]
    warm()  # kernels are compiled here, once, and not by every job
    with ThreadPoolExecutor(options.jobs) as pool:
        largest_first = reversed(chosen)  # as the graphs are listed: no long one is left for the end
        jobs = {source.name: pool.submit(planned, source, parts, *how) for source in largest_first}
        results = {source.name: jobs[source.name].result() for source in chosen}
    if options.times:
        results = {source.name: results[source.name] | {"times": timed(source, parts, *how)} for source in chosen}
    only = f" --only {' '.join(options.only)}" if options.only else ""
    times = "" if options.times else " --no-times"
    command = f"python -m models.plan_benchmark --device {options.device} --effort {options.effort}"
    record = {
        "command": f"{command} --jobs {options.jobs}{times}{only}",
        "versions": {name: version(name) for name in ("ogc-plan", "ortools", "numba", "onnx")},
        "machine": processor(),
        "jobs": options.jobs,
        "extent": EXTENT,
        "measured": {"rows": SOLVED} | ({"times": TIMED} if options.times else {}),
        "networks": results,
    }
    text = page(record)
    print(text, end="")
    if options.output:
        save(options.output, record, text)


if __name__ == "__main__":
    main()
