"""`ogc-plan emit`: what is emitted for other runtimes, and the report on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..adapters.save_list.keras_layers import layer_file, wrap_layers
from ..adapters.torch_checkpoint.emit import Emission, called_modules, select_ops, wrap_modules
from ..adapters.torch_checkpoint.emitted_files import module_list, policy_file, prediction
from ..planner.display.layout import field, name_of, some
from ..planner.display.plan_report import SCOPES
from ..planner.plan_file.record import Plan
from ..planner.units import counted, format_both, percent
from . import save_lists
from .files import STDIO
from .save_lists import SaveList

if TYPE_CHECKING:
    from rich.console import Console


def report_data(emission: Emission | SaveList, target: str) -> dict[str, Any]:
    """The report on what was emitted for ``target`` as JSON data: bytes and ns."""
    if isinstance(emission, SaveList):
        return save_lists.report_data(emission, target)
    return {
        "to": target,
        **prediction(emission),
        "modules": list(emission.paths),
        "saved_ops": sum(len(entry.saved) for entry in emission.made.wrapped),
        "batch_norms": emission.batch_norms,
    }


def print_report(out: Console, emission: Emission | SaveList, target: str, written: str) -> None:
    """The report as text."""
    if isinstance(emission, SaveList):
        return save_lists.print_report(out, emission, written)
    plan, made, whole = emission.plan, emission.made, emission.unwrapped
    saved = sum(len(entry.saved) for entry in made.wrapped)
    field(out, "plan", f"made for {name_of(plan.model.file)}, {percent(plan.time.overhead)} more time")
    paths, kind = emission.paths, "layer" if target == "keras" else "module"
    wrapped = f"{len(paths)} of {counted(emission.candidates, kind)}: {some(paths, 6)}" if paths else f"no {kind}"
    field(out, "wrapped", wrapped)
    if target == "torch-sac":
        field(out, "saved", f"the outputs of {counted(saved, 'op')} in them")
    peaks = f"{format_both(made.peak_nbytes)} predicted, {format_both(whole.peak_nbytes)} unwrapped"
    field(out, "peak", f"{peaks} ({SCOPES[plan.budget.scope]})")
    share = percent(made.peak_nbytes / max(1, plan.budget.nbytes))
    field(out, "budget", f"{format_both(plan.budget.nbytes)}, {share} used")
    field(out, "more time", f"{percent(emission.overhead)} of a step, {plan.time.source}")
    if emission.batch_norms:
        norms = counted(len(emission.batch_norms), "batch norm")
        field(out, "note", f"recomputed, so that statistics are updated each time: {norms}")
    field(out, "written", written)


def emitted(plan: Plan, model: str, target: str, output: str) -> tuple[Emission | SaveList, str]:
    """Emit a plan that has been verified against the file ``model``; also the text to write to ``output``."""
    if target in save_lists.TARGETS:
        listed = save_lists.TARGETS[target](plan)
        return listed, listed.text
    if target == "keras":
        emission = wrap_layers(plan)
        return emission, layer_file(emission)
    called = called_modules(model)
    if target == "torch-sac":
        emission = select_ops(plan, called)
        return emission, policy_file(emission)
    emission = wrap_modules(plan, called)
    named = "modules.json" if output == STDIO else Path(output).name
    return emission, module_list(emission, named)
