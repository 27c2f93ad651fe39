"""Processor time of a training step: what eager training and plans take to launch it.

    python -m tests.cuda_standin --module models.cuda.host_time -o models/results/cuda_host_time.json

On the stand-in for CUDA kernels take no time, so a step takes what its launches cost. The ways take turns; the time is
that of all threads of the process, which other processes lengthen little. The figures are the median of the steps, and
of each planned step divided by the eager one beside it.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Sequence
from operator import truediv
from typing import Any

from models.cuda import card
from models.cuda.day_one.cases import PRECISIONS, STORE_ALL, Subject, full_size, tiny
from models.meters.step_meters import clear_gradients
from models.reporting.command_line import add_output, command_parser
from models.reporting.result_record import publish
from models.reporting.result_table import table

PLANS = (STORE_ALL, "60%")
STEPS, WARM_UPS = 200, 5


def row_of(name: str, precision: str, *, small: bool) -> dict[str, Any]:
    """Milliseconds of processor time of a step of one network, by way."""
    subject = Subject.of((tiny() if small else full_size(False))[name], precision)
    ways = {"eager": subject.module} | {budget: subject.planned(budget) for budget in PLANS}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    gc.collect()
    for number in range(WARM_UPS + STEPS):
        for way, forward in ways.items():
            clear_gradients(subject.module, subject.arguments)
            step, started = subject.step(forward), time.process_time()
            step()
            if number >= WARM_UPS:
                taken[way].append(time.process_time() - started)
    return {
        "network": name,
        "precision": precision,
        "ms": {way: statistics.median(found) * 1e3 for way, found in taken.items()},
        "of_eager": {way: statistics.median(map(truediv, taken[way], taken["eager"])) for way in PLANS},
    }


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        [row["network"], row["precision"], f"{row['ms']['eager']:.2f}"]
        + [f"{row['ms'][way]:.2f} ({row['of_eager'][way]:.3f})" for way in PLANS]
        for row in rows
    ]
    header = ["network", "precision", "eager, ms", *(f"{way}, ms (eager = 1)" for way in PLANS)]
    return table(header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the report."""
    parser = command_parser("models.cuda.host_time", __doc__)
    add_output(parser)
    parser.add_argument("--small", action="store_true", help="tiny networks")
    options = parser.parse_args(arguments)
    card.prepare()
    rows = []
    for name in full_size(False):
        for precision in PRECISIONS:
            rows.append(row_of(name, precision, small=options.small))
            print(f"{name} {precision}: done", file=sys.stderr, flush=True)
    on = card.described()
    publish(
        report(rows),
        options.output,
        script="models.cuda.host_time",
        arguments=arguments,
        device="cuda",
        quantity="processor time of a step, kernels excluded on the stand-in",
        on=on,
        rows=rows,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
