"""Training on sentences of many lengths: what each new length costs, and whether bits and budget hold.

    python -m models.training.varying_lengths -o models/results/varying_lengths.json

A GPT of 4 layers meets each length twice, in one random order: without buckets and with them, within a share and within
bytes. A new length costs the processor seconds of its first step less those of its second. There is one thread.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from ogc_plan.adapters.pytorch import plans_of, within_budget
from ogc_plan.planner import pipeline
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels
from torch import Tensor, nn

from models.meters.step_meters import by_storages, clear_gradients
from models.networks.gpt2 import GPT2Config
from models.reporting.command_line import add_output, command_parser
from models.reporting.option_values import count
from models.reporting.result_record import publish
from models.reporting.result_table import table
from models.training.cases import gpt_case
from models.training.outcome import compare, outcome

BATCH, MULTIPLE = 4, 64
SIZES = GPT2Config(vocabulary=512, context=256, layers=4, heads=2, width=64, dropout=0.1)
SHARE, BYTES = "60%", 16_000_000
WAYS: dict[str, dict[str, Any]] = {
    f"within {SHARE} of each length": {"budget": SHARE},
    f"within {SHARE} of each bucket of {MULTIPLE}": {"budget": SHARE, "bucket": {1: MULTIPLE}},
    f"within {BYTES / 1e6:g} MB": {"budget": BYTES, "optimizer": "none"},
    f"within {BYTES / 1e6:g} MB, buckets of {MULTIPLE}": {
        "budget": BYTES, "optimizer": "none", "bucket": {1: MULTIPLE},
    },
}  # fmt: skip


def lengths_of(number: int) -> list[int]:
    """Different lengths from 33 to 256 in a random order, which is always the same."""
    drawn = torch.randperm(SIZES.context - 32, generator=torch.Generator().manual_seed(1))
    return [33 + int(length) for length in drawn[:number]]


def batch_of(length: int) -> tuple[Tensor, Tensor]:
    """Token ids and targets [4, length]."""
    ids = torch.randint(SIZES.vocabulary, (BATCH, length + 1), generator=torch.Generator().manual_seed(length))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def trained(module: nn.Module, lengths: Sequence[int]) -> tuple[Any, list[float]]:
    """What a step on each length leaves behind, and the processor seconds of each."""
    torch.manual_seed(0)
    optimizer, losses, seconds = torch.optim.AdamW(module.parameters()), [], []
    for length in lengths:
        began = time.process_time()
        loss = module(*batch_of(length))
        loss.backward()
        seconds.append(time.process_time() - began)
        losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return outcome(module, (), losses), seconds


def row(way: str, lengths: Sequence[int]) -> dict[str, Any]:
    """One way: seconds of each new length, how many searches, and what differs from eager training or its budget."""
    torch.manual_seed(0)
    module = gpt_case(BATCH, SIZES).build()
    eager = copy.deepcopy(module)
    bound = within_budget(module, **WAYS[way])
    with patch.object(pipeline, "plan", wraps=pipeline.plan) as searched, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "planned .* again|.* are each planned on their own")
        found, seconds = trained(bound, [*lengths, *lengths])
    expected, _ = trained(eager, [*lengths, *lengths])
    above = 0
    for length in lengths:
        batch = batch_of(length)
        clear_gradients(bound, ())
        peak = by_storages(lambda given=batch: _stepped(bound, given), bound, batch)
        plan = plans_of(bound)[-1]
        held = peak.total_nbytes if plan.budget.scope == "total" else peak.activation_nbytes
        above += held > plan.budget.nbytes
    costs = [first - second for first, second in zip(seconds, seconds[len(lengths) :], strict=False)]
    return {
        "way": way,
        "lengths": list(lengths),
        "planned": len(plans_of(bound)),
        "searches": searched.call_count,
        "seconds": costs,
        "unequal": list(compare(found, expected).unequal),
        "above_budget": above,
    }


def _stepped(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = module(*batch)
    loss.backward()
    return loss


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """One row a way: plans and searches, processor seconds of a new length, and what does not hold."""
    lines = [
        [
            row["way"], str(len(row["lengths"])), str(row["planned"]), str(row["searches"]),
            f"{row['seconds'][0]:.1f}", f"{statistics.median(row['seconds'][1:]):.2f}",
            f"{max(row['seconds'][1:]):.2f}", ", ".join(row["unequal"]) or "equal", str(row["above_budget"]),
        ]
        for row in rows
    ]  # fmt: skip
    header = ["budget", "lengths", "plans", "searches", "processor seconds: first", "then median", "most",
              "bits against eager", "steps above the budget"]  # fmt: skip
    return table(header, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in each way and print the report. The exit code is 1 where bits or a budget do not hold."""
    parser = command_parser("models.training.varying_lengths", __doc__)
    parser.add_argument("--lengths", type=count, default=12, metavar="N", help="how many lengths (default: 12)")
    add_output(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    prepare_kernels()
    rows = []
    for way in WAYS:
        rows.append(row(way, lengths_of(options.lengths)))
        print(f"{way}: done", file=sys.stderr, flush=True)
    publish(
        report(rows),
        options.output,
        script="models.training.varying_lengths",
        arguments=arguments,
        device="cpu",
        quantity="processor seconds of planning a new length",
        rows=rows,
    )
    return int(any(row["unequal"] or row["above_budget"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
