"""The command `ogc-plan emit`: a plan for PyTorch's own checkpoint and for other frameworks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from ..planner.display.terminal import activity, console, is_terminal
from ..planner.errors import PlanFormatError, UsageError
from .defaults import assumed
from .files import STDIO, check_target, is_plan, print_bytes, readable, refuse_plan, shown, write_bytes_to
from .options import output_options

USUAL = {
    "torch-modules": "modules.json", "torch-sac": "policy.py", "torchtitan": "policy.py", "onnx": "step.onnx",
    "jax": "policy.py", "keras": "remat.py",
}  # fmt: skip
"""The file name that remedies propose for each target."""
LOSSES = ("mse", "cross_entropy", "gradients")
"""Those of an ONNX step; with ``gradients`` the gradients of the outputs are further inputs."""

_FITS = {"loss_output": ("mse", "cross_entropy"), "class_axis": ("cross_entropy",)}
_OF_STEPS = ("loss", "loss_output", "class_axis")


@click.command(add_help_option=False)
@click.argument("plan_file", metavar="PLAN")
@click.argument("model", metavar="MODEL")
@click.option(
    "--to",
    "target",
    type=click.Choice(list(USUAL)),
    required=True,
    help="What to emit PLAN for; see above.",
)
@click.option("--loss", type=click.Choice(LOSSES), help="The loss of an ONNX step; mse by default.")
@click.option("--loss-output", metavar="NAME", help="The output that it is of; by default the first one.")
@click.option(
    "--class-axis", metavar="N", type=int, help="The dimension of the classes of cross_entropy; by default 1."
)
@click.option("-o", "--output", metavar="PATH", default=STDIO, help="Write it there instead of to standard output.")
@output_options()
def emit(plan_file: str, model: str, target: str, **options: Any) -> None:
    """A plan for another runtime: ONNX, torch's checkpoint, JAX, Keras.

    \b
    onnx           a training step that runs PLAN's schedule; of a bare file
    torch-modules  modules to wrap in torch.utils.checkpoint, as JSON
    torch-sac      the same with a policy on what to save, as Python
    torchtitan     a save-list for its trainer, as Python
    jax            a save-list by tensor, as Python; of a bare file
    keras          layers to wrap in RematScope, as Python; of tf2onnx's file

    torch-sac and torchtitan take files of ogc_plan.adapters.pytorch.export, torch-modules these and those of
    torch.onnx.export with dynamo=True. All but onnx can do less than a plan: what they wrap or save is chosen anew to
    fit PLAN's budget, and the peak printed is that of what is emitted. An annotated file is planned as a bare one with
    --ignore-annotations.
    """
    output, data = options["output"], options["format"] == "json"
    if plan_file == STDIO and model == STDIO:
        raise UsageError("plan and model cannot both come from standard input", remedy="name one of the files")
    usual = USUAL[target]
    check_target(output, model, usual=usual)
    named = STDIO not in (output, plan_file) and os.path.exists(output) and os.path.exists(plan_file)
    if named and os.path.samefile(output, plan_file):
        raise UsageError(f"-o {output!r} would overwrite the plan", remedy=f"write -o {usual}")
    if data and output == STDIO and target != "torch-modules":
        what = "step" if target == "onnx" else "policy"
        raise UsageError(f"--format json leaves no standard output for the {what}", remedy=f"write -o {usual}")
    if target != "onnx":
        options |= dict.fromkeys(assumed().intersection(_OF_STEPS))
    given = [f"--{name.replace('_', '-')}" for name in _OF_STEPS if options[name] is not None]
    if given and target != "onnx":
        raise UsageError(f"{given[0]} is an option of --to onnx", remedy="leave it out")
    for name, losses in _FITS.items():
        if options[name] is not None and (options["loss"] or LOSSES[0]) not in losses:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} has no effect on --loss {options['loss'] or LOSSES[0]}", remedy=f"pass --loss {losses[-1]}"
            )
    if target == "onnx" and output == STDIO and is_terminal(sys.stdout):
        raise UsageError("a step is no text for a terminal", remedy=f"write -o {usual}")
    with activity(options["quiet"]) as spinner, readable(plan_file) as path, readable(model) as source:
        spinner.now(f"replaying {shown(plan_file)}")
        from ..planner import pipeline
        from ..planner.plan_file.reader import read_plan
        from .emission import emitted, print_report, report_data
        from .verification import rebuild

        if not is_plan(path):
            raise PlanFormatError(
                f"{shown(plan_file)!r} is not a plan",
                remedy="name the plan first: ogc-plan emit PLAN MODEL --to TARGET",
            )
        refuse_plan(source, model)
        made = read_plan(path)
        rebuilt = rebuild(made, source, shown(model))
        pipeline.verify(made, rebuilt)
        written = "to standard output" if output == STDIO else output
        report: Callable[..., None]
        if target == "onnx":
            from .emit_onnx import emitted_step, print_step_report, step_data

            spinner.now("writing the step")
            step = emitted_step(made, rebuilt, source, options)
            content, told, report = step.content, step_data(step), partial(print_step_report, made=step, plan=made)
        else:
            spinner.now("choosing modules")
            emission, text = emitted(made, source, target, output)
            content, told = text.encode("ascii"), report_data(emission, target)
            report = partial(print_report, emission=emission, target=target)
        write_bytes_to(content, output)
    if data and output != STDIO:
        print_bytes((json.dumps(told, indent=1) + "\n").encode("ascii"))
    if not options["quiet"]:
        report(console(sys.stderr if data or output == STDIO else sys.stdout), written=written)
