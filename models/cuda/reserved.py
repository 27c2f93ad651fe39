"""What plans reserve of a CUDA device: predicted, by PyTorch's allocator, and beside the least that an arena needs.

    python -m tests.cuda_standin --module models.cuda.reserved -o models/results/cuda_reserved.json

Each network is planned within five budgets, shares of the bytes that eager training reserves of the device, with both
kinds of segments, each kind in a process of its own. Two steps run; then the statistics of the allocator stand beside
the prediction. An arena is a static placement of the step's activations (planner/arena). On the stand-in for CUDA bytes
are PyTorch's own and times mean nothing. The exit code is 1 where a step reserved more than its budget, or other bytes
than were predicted.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from ogc_plan.adapters.pytorch import plan_of, predict, within_budget
from ogc_plan.planner.arena.step_arena import step_arena
from ogc_plan.planner.errors import InfeasibleBudgetError

from models.cuda import card
from models.cuda.networks import NETWORKS, SMALL
from models.cuda.peaks import trained
from models.cuda.reserved_table import report
from models.cuda.settings import ALLOCATOR, EXPANDABLE
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.process import answer_of
from models.reporting.result_record import publish

SHARES = (90, 80, 70, 60, 50)
"""Budgets in percent of what eager training reserves."""
CHOSEN = [name for name in NETWORKS if name not in ("t5", "llama")]
KINDS = {"default": "expandable_segments:False", "expandable": EXPANDABLE}
KNOWN = {**NETWORKS, **SMALL}
TIME_LIMIT_S = 1200


def rows_of(name: str) -> dict[str, Any]:
    """The rows of one network, with the segments that this process uses."""
    case = KNOWN[name].case
    torch.manual_seed(0)
    module, arguments = case.build().to("cuda"), case.arguments(0, "cuda")
    gc.collect()
    eager = trained(module, arguments, 2)
    assert eager is not None
    rows = []
    for share in SHARES:
        budget = eager.reserved_nbytes * share // 100
        row: dict[str, Any] = {"share": share, "budget_nbytes": budget}
        rows.append(row)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bound = within_budget(module, arguments, budget=budget, effort="fast")
        except InfeasibleBudgetError as error:
            row["why"] = str(error)
            continue
        gc.collect()
        torch.cuda.empty_cache()
        expected = predict(bound).card
        assert expected is not None
        found = trained(bound, arguments, 2)
        assert found is not None
        arena = step_arena(plan_of(bound))
        row |= {
            "predicted": [expected.requested_nbytes, expected.allocated_nbytes, expected.reserved_nbytes],
            "measured": [found.requested_nbytes, found.allocated_nbytes, found.reserved_nbytes],
            "overhead": plan_of(bound).time.overhead,
            "arena": {"nbytes": arena.placement.nbytes, "alive_nbytes": arena.peak_nbytes},
        }
        del bound
        gc.collect()
    return {"sizes": case.sizes, "eager": [eager.requested_nbytes, eager.reserved_nbytes], "rows": rows}


def outcome(name: str, kind: str) -> dict[str, Any]:
    """The rows of one network and kind of segments, found in a process of its own."""
    environment = card.environment_with(torch.cuda.get_device_properties(0).total_memory) | {ALLOCATOR: KINDS[kind]}
    found = answer_of("models.cuda.reserved", "--here", name, limit_s=TIME_LIMIT_S, environment=environment)
    return {"name": name, "segments": kind} | found


def good(row: dict[str, Any]) -> bool:
    """Whether a step kept its budget, and its prediction."""
    return "why" in row or (row["measured"][2] <= row["budget_nbytes"] and row["measured"] == row["predicted"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan the networks asked for, all by default, and print the report."""
    parser = command_parser("models.cuda.reserved", __doc__)
    add_names(parser, KNOWN, CHOSEN)
    add_output(parser)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        card.prepare()
        (name,) = options.names
        print(json.dumps(rows_of(name)))
        return 0
    found = []
    for name in options.names or CHOSEN:
        for kind in KINDS:
            found.append(outcome(name, kind))
            print(f"{name} {kind}: {found[-1].get('error', 'done')}", file=sys.stderr, flush=True)
    on = card.described()
    publish(
        report(found, on["card"]),
        options.output,
        script="models.cuda.reserved",
        arguments=arguments,
        device="cuda",
        quantity="bytes of a card that planned steps took, and their prediction",
        on=on,
        rows=found,
    )
    return int(any("error" in each or not all(map(good, each["rows"])) for each in found))


if __name__ == "__main__":
    sys.exit(main())
