"""The command `ogc-plan profile`: times of a model's ops by ONNX Runtime."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ...planner.display.layout import field, name_of, plain_table
from ...planner.display.terminal import activity, console, one_line
from ...planner.errors import UsageError
from ...planner.units import counted, format_ns, percent
from ..files import STDIO, check_target, print_bytes, readable, refuse_plan, shown, write_bytes_to
from ..options import ModelOptions, model_options, output_options, whole

if TYPE_CHECKING:
    from rich.console import Console

    from ...planner.costs.profile import StepProfile
    from ...planner.model import Model

_LONGEST = 5


@click.command(add_help_option=False)
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", metavar="PATH", help="Write the times there, for --profile.")
@click.option("--rounds", callback=whole(1), default="5", metavar="N", help="Runs of the forward; the shortest counts.")
@click.option("--threads", callback=whole(0), default="0", metavar="N", help="Threads of one op (0: one per core).")
@model_options(times=False)
@output_options()
def profile(model: str, **options: Any) -> None:
    """Times of the ops of a bare ONNX file on this machine's CPU.

    ONNX Runtime's profiler times the forward; the backward is a multiple of it that depends on the op. Needs
    onnxruntime.
    """
    shape, target, data = ModelOptions(options), options["output"], options["format"] == "json"
    if target is not None:
        check_target(target, model, usual="times.json")
    if target == STDIO and data:
        raise UsageError("--format json leaves no standard output for the times", remedy="write -o times.json")
    with activity(options["quiet"]) as spinner, readable(model) as path:
        spinner.now("starting")
        from ...adapters.onnxruntime.op_times import profile as measured

        refuse_plan(path, model)
        spinner.now(f"reading {shown(model)}")
        ready = shape.load(path, shown(model))
        spinner.now("running the forward")
        found = measured(ready, path, rounds=options["rounds"], threads=options["threads"])
        if target is not None:
            write_bytes_to(found.dumps().encode(), target)
    if data:
        print_bytes((json.dumps(_data(found, target), indent=1) + "\n").encode("ascii"))
    elif not options["quiet"]:
        again = "nowhere: pass -o times.json, then ogc-plan MODEL --profile times.json"
        written = "to standard output" if target == STDIO else target or again
        _print(console(sys.stderr if target == STDIO else sys.stdout), found, ready, written)


def _data(found: StepProfile, target: str | None) -> dict[str, Any]:
    forward = sum(op.forward_ns for op in found.ops)
    return {
        "timed_by": f"{found.framework}, {found.device}",
        "ops": len(found.ops),
        "forward_ns": forward,
        "step_ns": found.step_ns,
        "written": target,
    }


def _print(out: Console, found: StepProfile, model: Model, written: str) -> None:
    field(out, "model", f"{name_of(model.path)}, {counted(len(found.ops), 'op')}")
    field(out, "timed by", f"{found.framework}, {found.device}")
    forward = sum(op.forward_ns for op in found.ops)
    field(out, "step", f"{format_ns(found.step_ns)}, of it {format_ns(forward)} forward as measured")
    kinds: dict[str, list[int]] = {}
    for op, times in zip(model.training.ops, found.ops, strict=True):
        entry = kinds.setdefault(op.op_type, [0, 0, 0])
        for at, more in enumerate((1, times.forward_ns, times.backward_ns)):
            entry[at] += more
    longest = sorted(kinds.items(), key=lambda entry: -(entry[1][1] + entry[1][2]))[:_LONGEST]
    table = plain_table("op type", "ops", "forward", "backward", "of the step")
    for kind, (count, here, back) in longest:
        share = percent((here + back) / max(1, found.step_ns))
        table.add_row(one_line(kind, 40), str(count), format_ns(here), format_ns(back), share)
    out.print()
    out.print(table)
    out.print()
    field(out, "written", written)
