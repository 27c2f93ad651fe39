"""`ogc-plan frontier`: plans for several budgets of one step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..planner.display.layout import field, path_of, plain_table
from ..planner.display.plan_report import print_warnings, source_line, timed_by
from ..planner.display.terminal import one_line
from ..planner.display.timeline import BLOCKS
from ..planner.errors import InfeasibleBudgetError, OgcPlanError, UsageError
from ..planner.model import Model
from ..planner.plan_file.record import Plan
from ..planner.units import format_both, format_nbytes, format_ns, parse_budget, percent

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_BUDGETS = "80%,60%,50%,40%,30%,20%,min"
_BAR = 16
"""Columns of the longest bar."""


def split_budgets(text: str) -> tuple[str, ...]:
    """``80%,60%,min`` -> its budgets, each once. Raises BudgetSyntaxError or UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        raise UsageError(f"--budgets {text!r} names no budget", remedy=f"write for example --budgets {DEFAULT_BUDGETS}")
    if "" in parts:
        raise UsageError(
            f"entry {parts.index('') + 1} of {len(parts)} of --budgets {text!r} is empty",
            remedy=f"write --budgets {','.join(filter(None, parts)) or DEFAULT_BUDGETS}",
        )
    for budget in parts:
        parse_budget(budget)
    return tuple(dict.fromkeys(parts))


def plan_files(folder: str, budgets: Sequence[str]) -> list[str]:
    """The path of the plan for each budget: ``plan-80%.json`` in the folder."""
    return [os.path.join(folder, f"plan-{''.join(budget.split())}.json") for budget in budgets]


def drawing_for(target: str) -> Callable[[Sequence[Plan]], bytes]:
    """What draws plans for a file of this name. Raises UsageError, and MissingPackageError before any work."""
    suffix = os.path.splitext(target)[1].lower()
    if suffix == ".svg":
        from ..planner.display.html.frontier_picture import frontier_svg

        return lambda plans: frontier_svg(plans).encode("utf-8")
    if suffix == ".png":
        from ..planner.display.html.frontier_png import frontier_png

        return frontier_png
    raise UsageError(f"--plot {target!r} is no .svg or .png file", remedy="write --plot frontier.svg")


@dataclass(frozen=True, slots=True)
class Frontier:
    """A model, and a plan or an error for each of ``budgets``."""

    model: Model
    budgets: Sequence[str]
    answers: Sequence[Plan | OgcPlanError]

    def refused(self) -> OgcPlanError | None:
        """The last error if no budget has a plan, else None."""
        errors = [answer for answer in self.answers if isinstance(answer, OgcPlanError)]
        return errors[-1] if len(errors) == len(self.answers) else None

    def data(self) -> dict[str, Any]:
        """The frontier as JSON data: bytes, ns, shares of a store-all step."""
        store_all = self.model.store_all()
        return {
            "model": self.model.path,
            "store_all_activation_nbytes": store_all.peak_activation_nbytes,
            "store_all_total_nbytes": store_all.peak_total_nbytes,
            "store_all_ns": store_all.time_ns,
            "source": self.model.time_source,
            "points": [
                {"budget": text, **(_failed(answer) if isinstance(answer, OgcPlanError) else _planned(answer))}
                for text, answer in zip(self.budgets, self.answers, strict=True)
            ],
        }

    def print(self, out: Console) -> None:
        """The frontier as a table: one line per budget, with a bar for its overhead, and what the bounds are for."""
        store_all = self.model.store_all()
        table = plain_table("budget", "peak", "of all", "overhead", "bound", "gap", "", left=(0, 6), gap=2)
        plans = [answer for answer in self.answers if isinstance(answer, Plan)]
        held = dict.fromkeys(plan.certificate.bound_class for plan in plans if plan.certificate.bound_class)
        marks = {bound_class: "*" * number for number, bound_class in enumerate(held)}
        longest = max((plan.time.overhead for plan in plans), default=0)
        total = bool(plans) and plans[0].budget.scope == "total"
        whole = max(1, store_all.peak_total_nbytes if total else store_all.peak_activation_nbytes)
        for text, answer in zip(self.budgets, self.answers, strict=True):
            if isinstance(answer, OgcPlanError):
                table.add_row(Text(text), _word(answer), "", "", "", "", "")
                continue
            peak = answer.peak.total_nbytes if total else answer.peak.activation_nbytes
            proof = answer.certificate
            cells = [format_nbytes(peak), percent(peak / whole), f"+{percent(answer.time.overhead)}"]
            bound = f"+{percent(proof.bound_ns / max(1, answer.time.store_all_ns))}"
            cells.append(bound + marks[proof.bound_class] if proof.bound_class else "")
            cells.append((percent(answer.gap) if answer.gap > 0 else "optimal") if proof.bound_class else "")
            bar = _bar(answer.time.overhead, longest) + (" stopped early" if proof.stopped_early else "")
            table.add_row(Text(text), *cells, Text(bar))
        field(out, "model", path_of(self.model.path, out))
        if self.model.annotations is not None:
            field(out, "annotations", source_line(self.model.annotations))
        print_warnings(out, self.model.training.assumed)
        what = "of everything" if total else "of activations"
        stored = f"{format_nbytes(whole)} {what}, {format_ns(store_all.time_ns)} a step"
        field(out, "store-all", stored)
        field(out, "timed by", timed_by(self.model.time_source))
        out.print()
        out.print(table)
        out.print()
        field(out, "", "of all: peak as a share of store-all's; overhead, bound and gap as shares of a store-all step")
        for bound_class, mark in marks.items():
            hold = f"hold for {one_line(bound_class, 200)}".replace("this plan", "the plan in that row")
            field(out, "" if mark else "bounds", f"those with {mark} {hold}" if mark else hold)
        self._print_errors(out)

    def _print_errors(self, out: Console) -> None:
        """Why budgets have no plan; budgets with the same reason share a line."""
        told: dict[str, list[str]] = {}
        for text, answer in zip(self.budgets, self.answers, strict=True):
            if isinstance(answer, InfeasibleBudgetError) and answer.smallest_known_nbytes is not None:
                how = "proven infeasible" if answer.proven else "no plan we could find (not proven infeasible)"
                smallest, floor = format_both(answer.smallest_known_nbytes), format_both(answer.lower_bound_nbytes)
                told.setdefault(f"{how}: smallest found {smallest}, proven floor {floor}", []).append(text)
            elif isinstance(answer, OgcPlanError):
                told.setdefault(answer.message, []).append(text)
        for why, budgets in told.items():
            field(out, "no plan", one_line(f"{', '.join(budgets)}: {why}"))


def _bar(share: float, longest: float) -> str:
    """A bar of ``share`` in eighths of a column, _BAR columns for the longest."""
    eighths = round(8 * _BAR * share / longest) if longest else 0
    full, rest = divmod(max(eighths, 1 if share else 0), 8)
    return BLOCKS[8] * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def _word(error: OgcPlanError) -> str:
    if not isinstance(error, InfeasibleBudgetError):
        return "stopped early"
    return "infeasible" if error.proven else "none found"


def _planned(plan: Plan) -> dict[str, Any]:
    proof, whole = plan.certificate, max(1, plan.time.store_all_ns)
    return {
        "budget_nbytes": plan.budget.nbytes,
        "scope": plan.budget.scope,
        "activation_nbytes": plan.peak.activation_nbytes,
        "total_nbytes": plan.peak.total_nbytes,
        "recompute_ns": plan.time.recompute_ns,
        "overhead": plan.time.overhead,
        "bound": proof.bound_ns / whole if proof.bound_class else None,
        "gap": plan.gap if proof.bound_class else None,
        "bound_class": proof.bound_class,
        "status": proof.status,
        "stopped_early": proof.stopped_early,
        "effort": proof.effort,
    }


def _failed(error: OgcPlanError) -> dict[str, Any]:
    known = error if isinstance(error, InfeasibleBudgetError) else None
    return {
        "error": error.message,
        "proven_infeasible": known is not None and known.proven,
        "smallest_known_nbytes": known.smallest_known_nbytes if known else None,
        "floor_nbytes": known.lower_bound_nbytes if known else None,
    }
