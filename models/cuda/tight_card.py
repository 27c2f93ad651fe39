"""Whether a network is planned, bound and trained on a card that holds its budget and 5% more, but not an eager step.

    python -m models.cuda.tight_card -o models/results/cuda_tight_card.json

Each network runs in a process of its own: it is bound and trained for two steps of SGD by the plan, then one eager step
is tried. On NVIDIA's cards the process may reserve as many bytes; the stand-in's card has no more. The allocator has
expandable segments, unless PYTORCH_CUDA_ALLOC_CONF says otherwise. The exit code is 1 where a network was not bound, or
its planned steps did not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from ogc_plan.adapters.pytorch import binding_peak, plan_of, within_budget
from ogc_plan.planner.errors import OgcPlanError

from models.cuda import card
from models.cuda.networks import NETWORKS, SMALL, Tight
from models.cuda.peaks import Peaks, trained
from models.cuda.settings import ALLOCATOR
from models.cuda.tight_table import report
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.process import answer_of
from models.reporting.result_record import publish

CARD = 1.05
"""The bytes of the card as a multiple of the budget."""
TIME_LIMIT_S = 600
STEPS = 2
OUT_OF_MEMORY = "out of memory"
KNOWN = {**NETWORKS, **SMALL}


def tried(tight: Tight) -> dict[str, Any]:
    """Bind and train one network on the card as it is: a row of the results."""
    torch.manual_seed(0)
    module, arguments = tight.case.build().to("cuda"), tight.case.arguments(0, "cuda")
    row: dict[str, Any] = {"sizes": tight.case.sizes, "budget_nbytes": tight.budget_nbytes}
    Peaks.reset()
    try:
        bound = within_budget(module, arguments, budget=tight.budget_nbytes)
    except OgcPlanError as error:
        return row | {"result": "not bound", "why": str(error)}
    told, found = binding_peak(bound), Peaks.read()
    assert told is not None
    plan = plan_of(bound)
    row |= {
        "binding": {"told_nbytes": told.requested_nbytes, "requested_nbytes": found.requested_nbytes},
        "predicted_nbytes": plan.peak.total_nbytes,
        "store_all_nbytes": plan.peak.store_all_total_nbytes,
        "overhead": plan.time.overhead,
    }
    row["binding"]["reserved_nbytes"] = found.reserved_nbytes
    steps = trained(bound, arguments, STEPS)
    if steps is not None:
        row["step"] = {"requested_nbytes": steps.requested_nbytes, "reserved_nbytes": steps.reserved_nbytes}
    del bound
    eager = trained(module, arguments, 1)
    row["eager"] = OUT_OF_MEMORY if eager is None else eager.reserved_nbytes
    return row | {"result": OUT_OF_MEMORY if steps is None else "trained"}


def outcome(name: str) -> dict[str, Any]:
    """The row of a network, found in a process of its own."""
    nbytes = int(CARD * KNOWN[name].budget_nbytes)
    found = answer_of(
        "models.cuda.tight_card", "--here", name, limit_s=TIME_LIMIT_S, environment=card.environment_with(nbytes)
    )
    if "error" in found:
        found = {"budget_nbytes": KNOWN[name].budget_nbytes, "result": "failed", "why": found["error"]}
    return {"name": name, "card_nbytes": nbytes} | found


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the networks asked for, all by default, and print the report."""
    parser = command_parser("models.cuda.tight_card", __doc__)
    add_names(parser, KNOWN, NETWORKS)
    add_output(parser)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        (name,) = options.names
        card.prepare()
        card.limit(int(CARD * KNOWN[name].budget_nbytes))
        print(json.dumps(tried(KNOWN[name])))
        return 0
    rows = []
    for name in options.names or NETWORKS:
        rows.append(outcome(name))
        print(f"{name}: {rows[-1]['result']} {rows[-1].get('why', '')}", file=sys.stderr, flush=True)
    on = card.described() | {"allocator": card.environment_with(0)[ALLOCATOR]}
    publish(
        report(rows, on["card"]),
        options.output,
        script="models.cuda.tight_card",
        arguments=arguments,
        device="cuda",
        quantity="bytes of a card that binding and training took",
        on=on,
        rows=rows,
    )
    return int(any(row["result"] != "trained" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
