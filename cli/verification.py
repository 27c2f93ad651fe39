"""`ogc-plan verify`: the model rebuilt with the options in a plan, and the report on the replay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..planner.costs.devices import DEVICES, MEASURED, PROFILED
from ..planner.display.layout import field, name_of, plain_table
from ..planner.display.plan_report import SCOPES, source_line
from ..planner.display.terminal import one_line
from ..planner.errors import ModelError, PlanMismatchError, UnsupportedOpError, UsageError
from ..planner.model import Model
from ..planner.plan_file.record import Plan
from ..planner.simulate import Timeline
from ..planner.units import counted, format_both, format_ns, percent
from .files import read_model

if TYPE_CHECKING:
    from rich.console import Console


def rebuild(plan: Plan, path: str, shown: str) -> Model:
    """The model under the options of the plan.

    Three things are taken from the plan: times for a device from a --device-spec file, and times and workspace from a
    --profile. Everything else is derived afresh. Unknown ops are charged, as a file with such ops has a plan only with
    --charge-unknown. Raises PlanMismatchError if the options do not fit the file: then it is another model.
    """
    record, budget = plan.model, plan.budget
    try:
        model = read_model(
            path,
            dims=dict(record.dims),
            inputs=dict(record.inputs),
            batch=record.batch,
            frozen=budget.frozen,
            optimizer=budget.optimizer,
            grad_accumulation=budget.grad_accumulation,
            device=None if _is_described(plan) else budget.device,
            ignore_annotations=record.annotations is None,
            charge_unknown=True,
        )
    except (UsageError, ModelError) as error:
        own_file = hashlib.sha256(Path(path).read_bytes()).hexdigest() == record.sha256
        unsupported = isinstance(error, UnsupportedOpError) and not own_file
        if error.exit_code != UsageError.exit_code and not unsupported:
            raise
        raise PlanMismatchError(
            f"{shown!r} does not take the options of the plan, which was made for {record.file!r}: {error.message}",
            remedy="verify with the model the plan was made for",
        ) from error
    return _timed_as(plan, model) if _is_described(plan) else model


def _is_described(plan: Plan) -> bool:
    """Whether the plan's times come from a file: a profile, or a description of its device."""
    return plan.budget.device != MEASURED and plan.budget.device not in DEVICES


def _timed_as(plan: Plan, model: Model) -> Model:
    """The model with the plan's times, and for a profile its workspace; unchanged if it has other ops."""
    if len(plan.costs) != len(model.costs):
        return model
    if plan.budget.device == PROFILED:
        return replace(model, costs=plan.costs, device=PROFILED)
    costs = tuple(
        replace(mine, forward_ns=theirs.forward_ns, backward_ns=theirs.backward_ns)
        for mine, theirs in zip(model.costs, plan.costs, strict=True)
    )
    return replace(model, costs=costs, device=plan.budget.device)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the plan promises and what its replay gave; they agree, or the replay would have failed."""

    plan: Plan
    replayed: Timeline
    model: Model | None

    def _pairs(self) -> list[tuple[str, int, int]]:
        peak, time, replay = self.plan.peak, self.plan.time, self.replayed
        return [
            ("total peak", peak.total_nbytes, replay.peak_total_nbytes),
            ("activation peak", peak.activation_nbytes, replay.peak_activation_nbytes),
            ("recomputation", time.recompute_ns, replay.recompute_ns),
            ("step time", time.store_all_ns + time.recompute_ns, replay.time_ns),
        ]

    def _graph(self) -> str:
        if self.model is None:
            return "the plan's own graph (name the model to derive it afresh)"
        same = self.model.sha256 == self.plan.model.sha256
        if self.model.annotations is not None:
            which = "the same" if same else "another"
            return f"the graph that {which} file is annotated with ({source_line(self.model.annotations)})"
        if same:
            return "the graph derived afresh from the same file"
        return (
            "the graph derived afresh from another file: its sha256 differs, its fingerprint is equal, so the two "
            "differ in what no plan depends on, such as weights or names"
        )

    def _taken(self) -> bool:
        """Whether the times are those of the plan, which cannot be compared with others."""
        return self.model is None or _is_described(self.plan)

    def data(self) -> dict[str, Any]:
        """The report as JSON data: bytes and ns."""
        return {
            "verified": True,
            "steps": len(self.plan.schedule),
            "model": None if self.model is None else {"sha256_equal": self.model.sha256 == self.plan.model.sha256},
            "checks": [
                {"what": what, "promised": promised, "replayed": replayed, "unit": "ns" if i > 1 else "bytes"}
                for i, (what, promised, replayed) in enumerate(self._pairs())
            ],
            "times": "of the plan" if self._taken() else "derived",
            "budget": {"nbytes": self.plan.budget.nbytes, "scope": self.plan.budget.scope},
        }

    def print(self, out: Console) -> None:
        """The report as text."""
        table = plain_table("", "promised", "replayed", "", left=(0, 3))
        for position, (what, promised, replayed) in enumerate(self._pairs()):
            texts = [format_ns(n) if position > 1 else format_both(n) for n in (promised, replayed)]
            table.add_row(Text(what), *texts, Text("equal" if promised == replayed else "differs", style="green"))
        budget, peak = self.plan.budget, self.plan.peak
        bounded = peak.total_nbytes if budget.scope == "total" else peak.activation_nbytes
        field(out, "plan", f"made for {name_of(self.plan.model.file)}, {counted(len(self.plan.schedule), 'step')}")
        field(out, "replayed on", self._graph())
        if self.model is not None and self._taken():
            field(out, "times", _taken_from(self.plan.budget.device))
        out.print()
        out.print(table)
        out.print()
        share = percent(bounded / max(1, budget.nbytes))
        field(out, "budget", f"{format_both(budget.nbytes)} for the {SCOPES[budget.scope]}, {share} of it used")


def _taken_from(device: str) -> str:
    if device == PROFILED:
        return "those of the plan, and the workspace: a profile gave them"
    return f"those of the plan: the device {one_line(device, 60)!r} is not built in, a file described it"
