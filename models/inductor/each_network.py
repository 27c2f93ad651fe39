"""A report that is written after each network, and keeps the rows of networks that are not named."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from models.inductor.networks import NETWORKS
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.result_record import publish
from models.training.cases import Case


def write_each(
    script: str,
    description: str,
    arguments: Sequence[str] | None,
    row: type[Any],
    rows_of: Callable[[Case], list[Any]],
    report: Callable[[list[Any]], str],
    quantity: str,
) -> int:
    """Run ``script``: ``rows_of`` each network that is named, all without names."""
    parser = command_parser(script, description)
    add_names(parser, NETWORKS)
    parser.add_argument("--threads", type=int, default=1, help="threads of each step (1)")
    add_output(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for name in options.names or NETWORKS:
        made = rows_of(NETWORKS[name])
        before = json.loads(options.output.read_text())["rows"] if options.output and options.output.exists() else []
        kept = [row(**found) for found in before if found["network"] != name]
        rows = sorted([*kept, *made], key=lambda found: list(NETWORKS).index(found.network))
        publish(
            report(rows),
            options.output,
            script=script,
            arguments=arguments,
            device="cpu",
            quantity=quantity,
            sizes={case.name: case.sizes for case in NETWORKS.values()},
            rows=[asdict(found) for found in rows],
        )
    return 0
