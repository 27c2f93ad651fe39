"""`ogc-plan emit --to onnx`: one training step as an ONNX file, and the report on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..adapters.onnx_step.losses import Loss
from ..adapters.onnx_step.step_file import StepFile, step_file
from ..planner.display.layout import field, name_of
from ..planner.model import Model
from ..planner.plan_file.record import Plan
from ..planner.units import counted, format_both

if TYPE_CHECKING:
    from rich.console import Console


def emitted_step(plan: Plan, model: Model, path: str, options: dict[str, Any]) -> StepFile:
    """The step of a plan that has been verified against ``model``, which is read from ``path``."""
    axis = options["class_axis"]
    return step_file(
        plan, model, path, Loss(options["loss"] or "mse", options["loss_output"], 1 if axis is None else axis)
    )


def step_data(made: StepFile) -> dict[str, Any]:
    """The report as JSON data."""
    return {"to": "onnx", "nodes": made.nodes, "nodes_peak_nbytes": made.peak.nbytes, **made.about}


def print_step_report(out: Console, made: StepFile, plan: Plan, written: str) -> None:
    """The report as text."""
    field(out, "plan", f"made for {name_of(plan.model.file)}")
    kind = {"gradients": "none: gradients of the outputs are inputs"}.get(str(made.about["loss_kind"]))
    field(out, "loss", kind or f"{made.about['loss_kind']}, of {', '.join(made.about['seeds'])}")
    parameters = made.about["parameters"]
    field(out, "step", f"{counted(made.nodes, 'node')}, gradients of {counted(len(parameters), 'parameter')}")
    field(out, "peak", f"{format_both(made.peak.nbytes)} of results alive together, at {made.peak.node}")
    options = ", ".join(f"{key}={value}" for key, value in made.about["session"].items())
    field(out, "run with", options)
    field(out, "written", written)
