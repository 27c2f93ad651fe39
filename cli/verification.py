"""`ogc-plan verify`: the model rebuilt with the options a plan records, and the verdict in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ogc_plan.planner.errors import ModelError, PlanMismatchError, UsageError
from ogc_plan.planner.model import Model, load_model
from ogc_plan.planner.plan_record import Plan
from ogc_plan.planner.simulate import Timeline
from ogc_plan.planner.units import format_both, format_ns
from rich.text import Text

from .report import SCOPES, field, name_of, percent, plain_table, source_line

if TYPE_CHECKING:
    from rich.console import Console


def rebuild(plan: Plan, path: str, shown: str) -> Model:
    """The model as the plan's options shape it.

    Raises PlanMismatchError where these options do not fit the file: then it is another model.
    """
    record, budget = plan.model, plan.budget
    try:
        return load_model(
            path,
            dims=dict(record.dims),
            inputs=dict(record.inputs),
            batch=record.batch,
            frozen=budget.frozen,
            optimizer=budget.optimizer,
            grad_accumulation=budget.grad_accumulation,
            device=budget.device,
            ignore_annotations=record.annotations is None,
        )
    except (UsageError, ModelError) as error:
        if error.exit_code != UsageError.exit_code:
            raise
        raise PlanMismatchError(
            f"{shown!r} does not take the options of the plan, which was made for {record.file!r}: {error}",
            remedy="verify with the model the plan was made for",
        ) from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was promised and what the replay gave; both agree, or the replay would have failed."""

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
        return "the graph derived afresh; the file differs from the planned one in what does not matter, e.g. weights"

    def data(self) -> dict[str, Any]:
        """For programs; bytes and ns."""
        return {
            "verified": True,
            "steps": len(self.plan.schedule),
            "model": None if self.model is None else {"sha256_equal": self.model.sha256 == self.plan.model.sha256},
            "checks": [
                {"what": what, "promised": promised, "replayed": replayed, "unit": "ns" if i > 1 else "bytes"}
                for i, (what, promised, replayed) in enumerate(self._pairs())
            ],
            "budget": {"nbytes": self.plan.budget.nbytes, "scope": self.plan.budget.scope},
        }

    def print(self, out: Console) -> None:
        """For people."""
        table = plain_table("", "promised", "replayed", "", left=(0, 3))
        for position, (what, promised, replayed) in enumerate(self._pairs()):
            texts = [format_ns(n) if position > 1 else format_both(n) for n in (promised, replayed)]
            table.add_row(Text(what), *texts, Text("equal" if promised == replayed else "differs", style="green"))
        budget, peak = self.plan.budget, self.plan.peak
        bounded = peak.total_nbytes if budget.scope == "total" else peak.activation_nbytes
        field(out, "plan", f"made for {name_of(self.plan.model.file)}, {len(self.plan.schedule):,} steps")
        field(out, "replayed on", self._graph())
        out.print()
        out.print(table)
        out.print()
        share = percent(bounded / max(1, budget.nbytes))
        field(out, "budget", f"{format_both(budget.nbytes)} for the {SCOPES[budget.scope]}, {share} of it used")
