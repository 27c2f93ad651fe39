"""`ogc-plan emit` for runtimes that take a list of what to save: what is emitted, and the report on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..adapters.save_list import jax_policy, titan_policy
from ..adapters.save_list.emitted_file import prediction
from ..adapters.save_list.rounding import Rounded
from ..planner.display.layout import field, name_of, some
from ..planner.display.plan_report import SCOPES
from ..planner.plan_file.record import Plan
from ..planner.units import counted, format_both, percent

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class SaveList:
    """What is emitted: the rounded plan, and what the file names, which is ``saved`` or recomputed."""

    made: Rounded
    names: tuple[str, ...]
    kind: str
    text: str


def jax_list(plan: Plan) -> SaveList:
    """A policy for jax.checkpoint."""
    made = jax_policy.save_names(plan)
    names = tuple(plan.graph.storages[storage].name for storage in jax_policy.saved_storages(made))
    return SaveList(made, names, "saved", jax_policy.policy_file(made))


def titan_list(plan: Plan) -> SaveList:
    """A memory policy for torchtitan's graph trainer."""
    made = titan_policy.save_ops(plan)
    names = tuple(plan.graph.ops[op].name for op in titan_policy.saved_ops(made))
    return SaveList(made, names, "saved", titan_policy.policy_file(made))


TARGETS: dict[str, Callable[[Plan], SaveList]] = {"jax": jax_list, "torchtitan": titan_list}


def report_data(emission: SaveList, target: str) -> dict[str, Any]:
    """The report as JSON data: bytes and ns."""
    return {"to": target, **prediction(emission.made), emission.kind: list(emission.names)}


def print_report(out: Console, emission: SaveList, written: str) -> None:
    """The report as text."""
    made, plan = emission.made, emission.made.plan
    field(out, "plan", f"made for {name_of(plan.model.file)}, {percent(plan.time.overhead)} more time")
    names = f"{counted(len(emission.names), 'tensor')}: {some(emission.names, 6)}" if emission.names else "nothing"
    field(out, emission.kind, names)
    peaks = (
        f"{format_both(made.peak_nbytes)} predicted, {format_both(made.unwrapped_peak_nbytes)} with everything saved"
    )
    field(out, "peak", f"{peaks} ({SCOPES[plan.budget.scope]})")
    share = percent(made.peak_nbytes / max(1, plan.budget.nbytes))
    field(out, "budget", f"{format_both(plan.budget.nbytes)}, {share} used")
    field(out, "more time", f"{percent(made.overhead)} of a step, {plan.time.source}")
    field(out, "written", written)
