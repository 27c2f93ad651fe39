"""The command `ogc-plan emit`: a plan for PyTorch's own checkpoint and for other frameworks."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from ..planner.display.terminal import activity, console
from ..planner.errors import PlanFormatError, UsageError
from .files import STDIO, check_target, is_plan, print_bytes, readable, refuse_plan, shown, write_bytes_to
from .options import output_options

USUAL = {
    "torch-modules": "modules.json", "torch-sac": "policy.py", "torchtitan": "policy.py", "jax": "policy.py",
    "keras": "remat.py",
}  # fmt: skip
"""The file name that remedies propose for each target."""


@click.command(add_help_option=False)
@click.argument("plan_file", metavar="PLAN")
@click.argument("model", metavar="MODEL")
@click.option(
    "--to",
    "target",
    type=click.Choice(list(USUAL)),
    required=True,
    help="Modules to wrap in torch.utils.checkpoint (JSON), or a policy or save-list (Python).",
)
@click.option("-o", "--output", metavar="PATH", default=STDIO, help="Write it there instead of to standard output.")
@output_options()
def emit(plan_file: str, model: str, target: str, **options: Any) -> None:
    """A plan for PyTorch's own checkpoint, torchtitan, JAX or Keras.

    These can do less than a plan, so what they wrap or save is chosen anew to fit PLAN's budget. The peak printed is
    that of what is emitted.
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
        raise UsageError("--format json leaves no standard output for the policy", remedy=f"write -o {usual}")
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
        pipeline.verify(made, rebuild(made, source, shown(model)))
        spinner.now("choosing modules")
        emission, text = emitted(made, source, target, output)
        write_bytes_to(text.encode("ascii"), output)
    if data and output != STDIO:
        print_bytes((json.dumps(report_data(emission, target), indent=1) + "\n").encode("ascii"))
    if not options["quiet"]:
        people = sys.stderr if data or output == STDIO else sys.stdout
        print_report(console(people), emission, target, "to standard output" if output == STDIO else output)
