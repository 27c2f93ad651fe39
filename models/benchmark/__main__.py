"""Plan and run the networks that OGC was published with, against its published figures and its strategy run here.

    python -m models.benchmark --arch resnet101 --device cuda:0
    python -m models.benchmark --arch all -o models/results/benchmark.json --jobs 2

On a GPU memory and seconds are measured. Without one (``--device fake``) the programs that would run there are
run on tensors without memory, at the published batches, and metered; a roofline predicts times. Each network has
a process of its own. Finished networks are kept, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ogc_plan.planner.costs.devices import DEVICES
from ogc_plan.planner.strategies.optimal.effort import EFFORTS

from models.benchmark.measure import Settings
from models.benchmark.network import Place, device
from models.benchmark.picture import tradeoffs
from models.benchmark.published import PUBLISHED
from models.benchmark.table import failures, page
from models.reporting.command_line import INTERRUPTED, add_output, command_parser
from models.reporting.kept import ROOT, folder_of, keep, kept
from models.reporting.option_values import count, count_or_none, folder
from models.reporting.result_record import write
from models.zoo import ZOO

CODE = ("planner/**/*.py", "adapters/pytorch/**/*.py", "models/descriptions.py",
        *(f"models/{folder}/*.py" for folder in ("networks", "meters", "benchmark")))  # fmt: skip
"""The code that results depend on."""
Results = dict[str, dict[str, Any]]


def measured(name: str, parts: Path, settings: Settings) -> dict[str, Any]:
    """The result of one network: from ``parts`` where it is, else from a process now, and put there.

    A network that fails has the reason for a result, under ``error``, and is not put there.
    """
    part = parts / f"{name}.json"
    earlier = kept(part)
    if earlier is not None:
        return earlier
    command = [sys.executable, "-m", "models.benchmark.measure", name, json.dumps(asdict(settings))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        return {"error": f"its process ended with code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout)
    if "error" not in found:
        keep(part, found)
    return found


def run(names: Sequence[str], parts: Path, settings: Settings, jobs: int) -> Results:
    """Every network, ``jobs`` at a time; an interrupt starts no other."""
    parts.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            started = {name: pool.submit(measured, name, parts, settings) for name in names}
            return {name: job.result() for name, job in started.items()}
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
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
    default = Settings()
    parser.add_argument(
        "--device",
        type=device,
        default=default.device,
        help="cuda:0, cpu, or fake (default): the real programs on tensors without memory",
    )
    parser.add_argument(
        "--roofline",
        choices=DEVICES,
        metavar="DEVICE",
        help="device whose datasheet gives times; on fake tensors rtx2080ti unless given, else measured",
    )
    parser.add_argument("--small", action="store_true", help="the zoo's small sizes, which fit a CPU")
    parser.add_argument("--effort", choices=EFFORTS, default=default.effort, help="default %(default)s")
    parser.add_argument("--solves", type=count_or_none, default=default.solves, help="plans to find a time")
    parser.add_argument("--steps", type=count, default=default.steps, help="steps timed (default %(default)s)")
    parser.add_argument("--warm-up", type=count_or_none, default=default.warm_up, help="of them left out")
    parser.add_argument("--jobs", type=count, default=1, help="networks at a time; 1 where times are measured")
    parser.add_argument("--parts", type=folder, help="folder of what is done (default: one for this code, in /tmp)")
    add_output(parser, "a .md and a picture")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Benchmark what the command line asks for, print the tables and write the results.

    1 where a network failed, 2 for a command line that cannot be followed, 130 where it was interrupted.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.steps <= options.warm_up:
        parser.error(
            f"--steps {options.steps} leaves none to time after --warm-up {options.warm_up}; "
            f"write --steps {options.warm_up + 1} or more, or a smaller --warm-up"
        )
    names = list(PUBLISHED) if "all" in options.arch else list(dict.fromkeys(options.arch))
    settings = Settings(**{field.name: getattr(options, field.name) for field in fields(Settings)})
    parts = options.parts or folder_of("networks-", (json.dumps(asdict(settings)),), CODE)
    try:
        results = run(names, parts, settings, options.jobs)
    except KeyboardInterrupt:
        print("models.benchmark: interrupted; the same command goes on with what is not done", file=sys.stderr)
        return INTERRUPTED
    text = page(results, settings.place)
    print(text)
    if options.output:
        write_all(options.output, results, text, arguments, settings.place)
    return int(bool(failures(results)))


def write_all(output: Path, results: Results, text: str, arguments: Sequence[str] | None, place: Place) -> None:
    """The JSON and Markdown record, and a picture."""
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
    output.with_name(f"{output.stem}_memory_time.svg").write_text(tradeoffs(results))


if __name__ == "__main__":
    sys.exit(main())
