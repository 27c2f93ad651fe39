"""`ogc-plan emit`: what is emitted for other runtimes, and the report on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..adapters.torch_checkpoint.called_modules import called_modules
from ..adapters.torch_checkpoint.emit import Emission, select_ops, wrap_modules
from ..adapters.torch_checkpoint.module_list import module_list, prediction
from ..adapters.torch_checkpoint.policy_file import policy_file
from ..planner.plan_file.record import Plan
from ..planner.units import format_both
from .files import STDIO, write_bytes_to
from .report import SCOPES, field, name_of, percent
from .terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Emitted:
    """An emission, its target (``torch-modules`` or ``torch-sac``) and its text."""

    emission: Emission
    target: str
    text: str

    def write(self, path: str) -> None:
        """Write the text atomically to a file, to stdout (``-``), or to a pipe or device."""
        write_bytes_to(self.text.encode("ascii"), path)

    def data(self) -> dict[str, Any]:
        """The report as JSON data: bytes and ns."""
        made = self.emission.made
        return {
            "to": self.target,
            **prediction(self.emission),
            "modules": list(self.emission.paths),
            "saved_ops": sum(len(entry.saved) for entry in made.wrapped),
            "batch_norms": self.emission.batch_norms,
        }

    def print(self, out: Console, written: str) -> None:
        """The report as text."""
        emission = self.emission
        plan, made, whole = emission.plan, emission.made, emission.unwrapped
        saved = sum(len(entry.saved) for entry in made.wrapped)
        field(out, "plan", f"made for {name_of(plan.model.file)}, {percent(plan.time.overhead)} more time")
        paths = [one_line(path, 60) for path in emission.paths]
        shown = ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
        field(out, "wrapped", f"{len(paths)} of {emission.candidates} modules: {shown}" if paths else "no module")
        if self.target == "torch-sac":
            field(out, "saved", f"the outputs of {saved} ops in them")
        peaks = f"{format_both(made.peak_nbytes)} predicted, {format_both(whole.peak_nbytes)} unwrapped"
        field(out, "peak", f"{peaks} ({SCOPES[plan.budget.scope]})")
        share = percent(made.peak_nbytes / max(1, plan.budget.nbytes))
        field(out, "budget", f"{format_both(plan.budget.nbytes)}, {share} used")
        field(out, "more time", f"{percent(emission.overhead)} of a step, {plan.time.source}")
        if emission.batch_norms:
            norms = f"{len(emission.batch_norms)} batch norms are recomputed and update their statistics each time"
            field(out, "note", norms)
        field(out, "written", written)


def emitted(plan: Plan, model: str, target: str, output: str) -> Emitted:
    """Emit a plan that has been verified against the file ``model`` for ``target``.

    Raises what `wrap_modules` and `select_ops` raise.
    """
    called = called_modules(model)
    if target == "torch-sac":
        emission = select_ops(plan, called)
        return Emitted(emission, target, policy_file(emission))
    emission = wrap_modules(plan, called)
    named = "modules.json" if output == STDIO else Path(output).name
    return Emitted(emission, target, module_list(emission, named))
