"""The report of `ogc-plan fit`: the largest sizes of a dimension that train within a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...planner.display.layout import command, field, path_of, plain_table
from ...planner.display.plan_report import not_covered, print_warnings, timed_by
from ...planner.errors import shell_word
from ...planner.trade_offs.largest_input import Fit, Sized
from ...planner.units import format_both, format_nbytes, format_ns, format_rate, percent
from ..options import BATCH

if TYPE_CHECKING:
    from rich.console import Console


def fit_as_data(found: Fit, model: str) -> dict[str, Any]:
    """The sizes as JSON data: bytes, ns, samples a second."""
    beyond = found.beyond
    return {
        "model": model,
        "dimension": found.dimension,
        "memory_nbytes": found.memory_nbytes,
        "without_recomputation": None if found.without is None else _size(found.without),
        "fastest": _size(found.fastest),
        "largest": _size(found.largest),
        "beyond": None
        if beyond is None
        else {
            "size": beyond.size,
            "proven_infeasible": beyond.proven,
            "floor_nbytes": beyond.floor_nbytes,
            "smallest_known_nbytes": beyond.smallest_nbytes,
        },
        "planned": [_size(sized) for sized in found.planned],
        "source": found.largest.plan.time.source,
        "stopped_early": found.stopped_early,
    }


def _size(sized: Sized) -> dict[str, Any]:
    return {
        "size": sized.size,
        "peak_nbytes": sized.plan.peak.total_nbytes,
        "store_all_nbytes": sized.plan.peak.store_all_total_nbytes,
        "step_ns": sized.step_ns,
        "per_s": sized.per_s,
        "overhead": sized.plan.time.overhead,
        "gap": sized.plan.gap,
    }


def print_fit(out: Console, found: Fit, model: str, memory: str, options: Sequence[str]) -> None:
    """The three sizes as a table, why the next one does not fit, and the command that plans the largest."""
    plan = found.largest.plan
    field(out, "model", path_of(model, out))
    field(out, "memory", f"{format_nbytes(found.memory_nbytes)} for {plan.covers}")
    print_warnings(out, plan.model.assumed)
    field(out, "timed by", timed_by(plan.time.source))
    out.print()
    unit = "samples/s" if found.dimension == BATCH else f"{found.dimension}/s"
    table = plain_table("", found.dimension, "peak", "a step", unit, "overhead", left=(0,), gap=2)
    rows = {"without recomputation": found.without, "the fastest": found.fastest, "the largest": found.largest}
    for name, sized in rows.items():
        if sized is None:
            table.add_row(Text(name), "none", "", "", "", "")
            continue
        cells = [f"{sized.size:,}", format_nbytes(sized.plan.peak.total_nbytes), format_ns(sized.step_ns)]
        table.add_row(Text(name), *cells, format_rate(sized.per_s), f"+{percent(sized.plan.time.overhead)}")
    out.print(table)
    out.print()
    field(out, "beyond", _why(found))
    if found.stopped_early:
        field(out, "stopped", "early: a faster size may be among those that were not planned")
    if found.fastest is not found.without and found.fastest is not found.largest:
        sizes = ", ".join(f"{sized.size:,}" for sized in found.planned)
        field(out, "fastest", f"of the sizes planned: {sizes}")
    field(out, "not covered", "; ".join(not_covered(plan.graph, plan.budget.optimizer)))
    size = found.largest.size
    given = f"--batch {size}" if found.dimension == BATCH else f"--dim {shell_word(f'{found.dimension}={size}')}"
    words = ["ogc-plan", shell_word(model), "--budget", shell_word(memory), given, *options, "-o plan.json"]
    command(out, "plan it", " ".join(words))


def _why(found: Fit) -> str:
    """Why the next size is not the largest."""
    beyond = found.beyond
    if beyond is None:
        return "the search was stopped; larger sizes may fit"
    what = f"{found.dimension} {beyond.size:,}"
    if beyond.proven:
        return f"{what} is proven not to fit: its floor is {format_both(beyond.floor_nbytes)}"
    floor = f"not proven not to fit, its floor is {format_both(beyond.floor_nbytes)}"
    if beyond.smallest_nbytes is None:
        return f"{what} has no plan found in time; {floor}"
    return (
        f"{what} has no plan that was found, its smallest peak found is {format_both(beyond.smallest_nbytes)}; {floor}"
    )
