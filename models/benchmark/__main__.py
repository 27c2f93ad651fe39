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
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from models.benchmark.measure import Settings
from models.benchmark.network import FAKE, Place
from models.benchmark.picture import tradeoffs
from models.benchmark.published import PUBLISHED
from models.benchmark.table import failures, page
from models.reporting.command_line import INTERRUPTED, add_output, command_parser
from models.reporting.kept import folder_of, keep, kept
from models.reporting.option_values import count, folder
from models.reporting.process import answer_of
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
    found = answer_of("models.benchmark.measure", name, json.dumps(asdict(settings)))
    print(f"{name}: {found.get('error', 'done')}", file=sys.stderr, flush=True)
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
    parser.add_argument(
        "--device",
        choices=(FAKE, "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))),
        default=FAKE,
        help="default %(default)s: the real programs on tensors without memory",
    )
    parser.add_argument("--small", action="store_true", help="the zoo's small sizes, which fit a CPU")
    parser.add_argument("--jobs", type=count, default=1, help="networks at a time; 1 where times are measured")
    parser.add_argument("--parts", type=folder, help="folder of what is done (default: one for this code, in /tmp)")
    add_output(parser, "a .md and a picture")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Benchmark what the command line asks for, print the tables and write the results.

    1 where a network failed, 2 for a command line that cannot be followed, 130 where it was interrupted.
    """
    options = _parser().parse_args(arguments)
    names = list(PUBLISHED) if "all" in options.arch else list(dict.fromkeys(options.arch))
    settings = Settings(options.device, options.small)
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
