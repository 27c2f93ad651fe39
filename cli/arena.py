"""The command `ogc-plan arena`: every allocation of a planned step at a fixed offset of one arena."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ..planner.display.terminal import activity, console
from ..planner.errors import PlanFormatError, UsageError
from .files import STDIO, check_target, is_plan, print_bytes, readable, shown, write_bytes_to
from .options import output_options

if TYPE_CHECKING:
    from rich.console import Console

    from ..planner.arena.step_arena import StepArena

USUAL = "arena.json"
MOST_ALIGNMENT = 1 << 30


@click.command(add_help_option=False)
@click.argument("plan_file", metavar="PLAN")
@click.option("-o", "--output", metavar="PATH", default=STDIO, help="Write it there instead of to standard output.")
@click.option("--no-escaping", is_flag=True, help="Leave out what is alive after the step: outputs and gradients.")
@click.option("--alignment", metavar="BYTES", default="512", show_default=True, help="Offsets are multiples of it.")
@output_options()
def arena(plan_file: str, **options: Any) -> None:
    """Every allocation of a plan at a fixed offset of one arena.

    It is written as JSON.
    """
    output, data = options["output"], options["format"] == "json"
    alignment = parse_alignment(options["alignment"])
    check_target(output, usual=USUAL)
    named = STDIO not in (output, plan_file) and os.path.exists(output) and os.path.exists(plan_file)
    if named and os.path.samefile(output, plan_file):
        raise UsageError(f"-o {output!r} would overwrite the plan", remedy=f"write -o {USUAL}")
    with activity(options["quiet"]) as spinner, readable(plan_file) as path:
        spinner.now(f"replaying {shown(plan_file)}")
        from ..planner import pipeline
        from ..planner.arena.step_arena import dumps, step_arena
        from ..planner.plan_file.reader import read_plan

        if not is_plan(path):
            raise PlanFormatError(
                f"{shown(plan_file)!r} is not a plan", remedy="make one with: ogc-plan MODEL --budget SIZE"
            )
        made = read_plan(path)
        pipeline.verify(made)
        spinner.now("placing allocations")
        found = step_arena(made, escaping=not options["no_escaping"], alignment=alignment)
        write_bytes_to(dumps(found).encode("utf-8", "surrogatepass"), output)
    if data and output != STDIO:
        print_bytes((json.dumps(report_data(found), indent=1) + "\n").encode("ascii"))
    if not options["quiet"]:
        people = sys.stderr if data or output == STDIO else sys.stdout
        print_report(console(people), found, "to standard output" if output == STDIO else output)


def parse_alignment(text: str) -> int:
    """The value of ``--alignment`` in bytes. Raises UsageError for what is no number from 1 to 2^30."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= MOST_ALIGNMENT):
        raise UsageError(f"--alignment {text[:40]!r} is no number of bytes", remedy="write for example --alignment 512")
    return int(text)


def report_data(found: StepArena) -> dict[str, Any]:
    """The report as JSON data: the file without its lives."""
    from ..planner.arena.step_arena import to_json

    whole = to_json(found)
    return {**whole, "lives": len(whole["lives"])}


def print_report(out: Console, found: StepArena, written: str) -> None:
    """The report as text."""
    from ..planner.display.layout import field, name_of
    from ..planner.units import counted, format_both, percent

    plan, placement = found.plan, found.placement
    outside = [life.names[0] for life in found.lives if life.escapes]
    field(out, "plan", f"made for {name_of(plan.model.file)}, {counted(len(plan.schedule), 'step')}")
    field(out, "arena", f"{format_both(placement.nbytes)} for {counted(len(found.lives), 'allocation')}")
    field(out, "peak", f"{format_both(found.peak_nbytes)} of them alive together")
    field(out, "above", f"the arena is {percent(max(0.0, found.ratio - 1))} larger than the peak")
    if not found.escaping:
        field(out, "not in it", "outputs, and gradients that are alive after the step")
    elif outside:
        field(out, "escaping", f"{len(outside):,} of them are alive after the step")
    field(out, "written", written)
