"""The command `ogc-plan fit`: the largest sizes of a dimension that train within a memory."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ..planner.display.interrupt import stoppable
from ..planner.display.terminal import activity, console
from ..planner.errors import UsageError
from .files import print_bytes, readable, refuse_plan, shown
from .options import EFFORTS, ModelOptions, model_options, output_options, parse_duration, whole

if TYPE_CHECKING:
    from ..planner.model import Model

_ONE_SIZE = ("--batch cannot change", "--dim cannot change")
"""How an error begins on the size that a search gives a file whose annotations are of one size."""


@click.command(add_help_option=False)
@click.argument("model", metavar="MODEL")
@click.option("--memory", metavar="SIZE", help="What the whole step may take: 24GB, 80GiB.  [required]")
@click.option("--multiple-of", callback=whole(1), default="1", metavar="N", help="Try only multiples of N.")
@model_options(varies=True)
@click.option("--effort", type=click.Choice(EFFORTS), default="default", help="How hard optimal tries for each size.")
@click.option("--time-limit", metavar="TIME", help="Longest time for each size: 30s, 2m. Ctrl-C keeps what is found.")
@output_options()
def fit(model: str, **options: Any) -> None:
    """The largest batch, or other dimension, that fits a memory.

    --dim NAME without a size names a symbolic dimension to vary in place of the batch. Files of the PyTorch adapter
    hold for one size: fit(model, args, memory="24GB") in Python does the same for a module.
    """
    shape = ModelOptions(options)
    dimension, memory = shape.varied(), options["memory"]
    if memory is None:
        raise UsageError("no memory is given", remedy="pass --memory 24GB")
    limit = None if options["time_limit"] is None else parse_duration(options["time_limit"])
    with activity(options["quiet"]) as spinner, readable(model) as path:
        spinner.now("starting")
        from ..planner.trade_offs.largest_input import fit as largest_within
        from .reports.fit_report import fit_as_data, print_fit

        refuse_plan(path, model)

        def load(size: int) -> Model:
            try:
                return shape.at(dimension, size).load(path, shown(model), limit)
            except UsageError as error:
                if not error.message.startswith(_ONE_SIZE):
                    raise
                raise UsageError(
                    f"{shown(model)!r} holds for its own sizes alone: it carries the training graph of one export",
                    remedy="pass --ignore-annotations to vary the bare file, or call fit of ogc_plan.adapters.pytorch",
                ) from error

        with stoppable() as stop:
            found = largest_within(
                load,
                memory,
                dimension=dimension,
                multiple_of=options["multiple_of"],
                effort=options["effort"],
                time_limit_s=limit,
                limits=spinner.limits(None, stop=stop, keeps="what is found"),
            )
    if options["format"] == "json":
        print_bytes((json.dumps(fit_as_data(found, shown(model)), indent=1) + "\n").encode("ascii"))
    elif not options["quiet"]:
        print_fit(console(sys.stdout), found, shown(model), memory, shape.words())
