"""The results of the plan benchmark as Markdown: overheads and gaps, the best other strategy, seconds and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from models.plan_extent import EXTENT, FIXED_PLANS, SHARES
from models.result_table import table

Results = dict[str, dict[str, Any]]

LEVELS = (0.001, 0.005, 0.01)
"""Gaps, as shares of a step, up to which cells are counted."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`optimal` on one graph within one budget, ``label`` its column."""

    graph: str
    label: str
    row: dict[str, Any]

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that no plan exists."""
        return bool(self.row["status"] == "proven infeasible")

    @property
    def gap(self) -> float | None:
        """Overhead above the proven bound, a share of a step to nine digits; None without a plan."""
        return None if self.row["overhead"] is None else round(self.row["overhead"] - self.row["bound"], 9)


def row_of(entry: dict[str, Any], strategy: str, share: float) -> dict[str, Any]:
    """The row of a budgeted strategy at a share of the store-all peak. Raises StopIteration where it was not run."""
    found: dict[str, Any] = next(r for r in entry["rows"] if r["strategy"] == strategy and r["share"] == share)
    return found


def cells(results: Results) -> Iterator[Cell]:
    """Every budget that `optimal` was given, in the order of the columns; re-plans and matched peaks are not."""
    for name, entry in results.items():
        for row in entry["rows"]:
            if row["strategy"] == "optimal" and row["share"] is not None:
                yield Cell(name, f"{round(100 * row['share'])}%", row)
            elif row["strategy"] == "optimal" and row.get("minimum"):
                yield Cell(name, "min", row)


def percent(value: float | None) -> str:
    """A share in percent with two digits, without the sign."""
    return "-" if value is None else f"{100 * value:.2f}"


def _text(cell: Cell) -> str:
    if cell.infeasible:
        return "infeasible"
    if cell.gap is None:
        return "open"
    return f"{percent(cell.row['overhead'])} ({percent(cell.gap)})"


COLUMNS = (*(f"{share}%" for share in SHARES), "min")


def _grid(results: Results, text: dict[tuple[str, str], str], first: dict[str, list[str]], header: list[str]) -> str:
    rows = [[name, *first[name], *(text.get((name, column), "") for column in COLUMNS)] for name in results]
    return table([*header, *COLUMNS], rows)


def overheads(results: Results) -> str:
    """Overhead of `optimal` in % of a store-all step, in brackets the gap to the proven bound; a row per graph."""
    text = {(cell.graph, cell.label): _text(cell) for cell in cells(results)}
    for cell in cells(results):
        if cell.label == "min" and cell.row["peak_nbytes"] is not None:
            share = cell.row["peak_nbytes"] / results[cell.graph]["store_all_nbytes"]
            text[cell.graph, "min"] = f"{100 * share:.1f}%: {_text(cell)}"
    first = {
        name: [f"{entry['ops']:,}", f"{100 * entry['floor_nbytes'] / entry['store_all_nbytes']:.1f}%"]
        for name, entry in results.items()
    }
    return _grid(results, text, first, ["graph", "ops", "floor"])


def best_other(entry: dict[str, Any], cell: Cell) -> tuple[str, float] | None:
    """The strategy with the least overhead within the cell's budget among all but `optimal`; None without any."""
    limit = cell.row["peak_nbytes"] if cell.label == "min" else cell.row["budget_nbytes"]
    fitting = [
        (row["overhead"], row["strategy"])
        for row in entry["rows"]
        if row["strategy"] != "optimal" and row["overhead"] is not None and limit and row["peak_nbytes"] <= limit
    ]
    return min(fitting)[::-1] if fitting else None


def others(results: Results) -> str:
    """The best of all other strategies within each budget: its overhead in % of a step, and its name."""
    text = {}
    for cell in cells(results):
        best = best_other(results[cell.graph], cell)
        text[cell.graph, cell.label] = "-" if best is None else f"{percent(best[1])} {best[0]}"
    return _grid(results, text, {name: [] for name in results}, ["graph"])


def effort(results: Results) -> str:
    """Seconds of `optimal` for each budget, of planning again for another budget, of reading; peak RSS in MB."""
    text = {(cell.graph, cell.label): f"{cell.row['seconds']:.1f}" for cell in cells(results)}
    header = ["graph", "read", *COLUMNS, "again", "RSS MB"]
    rows = [
        [
            name,
            f"{entry['read_s']:.1f}",
            *(text.get((name, column), "") for column in COLUMNS),
            f"{entry['replan_s']:.1f}",
            f"{entry['peak_rss_mb']:.0f}",
        ]
        for name, entry in results.items()
    ]
    return table(header, rows)


def counts(results: Results) -> str:
    """How many cells of each budget, and of all, have a gap of at most each of LEVELS; open cells have none."""
    header = ["budget", "cells", *(f"gap <= {100 * level:g}%" for level in LEVELS), "larger", "no plan found"]
    feasible = [cell for cell in cells(results) if not cell.infeasible]
    rows = []
    for label in (*COLUMNS, "all"):
        own = [cell for cell in feasible if label in (cell.label, "all")]
        gaps = [cell.gap for cell in own if cell.gap is not None]
        within = [sum(gap <= level for gap in gaps) for level in LEVELS]
        rows.append([label, *map(str, (len(own), *within, len(gaps) - within[-1], len(own) - len(gaps)))])
    return table(header, rows)


def wide(results: Results) -> str:
    """The cells with a gap above each of LEVELS but the first, widest first, and those without a plan."""
    gaps = [(cell.gap, f"{cell.graph} at {cell.label}") for cell in cells(results) if cell.gap is not None]
    lines = []
    for low, high in zip(LEVELS[1:], (*LEVELS[2:], None), strict=True):
        found = sorted((pair for pair in gaps if low < pair[0] <= (high or pair[0])), key=lambda pair: -pair[0])
        named = ", ".join(f"{where} ({percent(gap)})" for gap, where in found)
        up_to = f" and up to {100 * high:g}%" if high else ""
        lines.append(f"Gaps above {100 * low:g}%{up_to} of a step: {named or 'none'}.")
    missing = [f"{cell.graph} at {cell.label}" for cell in cells(results) if cell.gap is None and not cell.infeasible]
    return "\n".join([*reversed(lines), f"Above the floor with no plan found: {', '.join(missing) or 'none'}."])


def beaten(results: Results) -> str:
    """How often another strategy has a plan with less overhead within the same budget."""
    compared = [(cell, best_other(results[cell.graph], cell)) for cell in cells(results) if not cell.infeasible]
    with_other = [(cell, best) for cell, best in compared if best is not None]
    lost = [
        f"{cell.graph} at {cell.label} ({best[0]})"
        for cell, best in with_other
        if cell.row["overhead"] is None or best[1] < cell.row["overhead"]
    ]
    better = ", ".join(lost) or "none"
    return f"Of {len(with_other)} cells where another strategy has a plan, it has a better one in: {better}."


def fixed(results: Results) -> str:
    """The strategies without a budget: their own peak and overhead, and `optimal` within that same peak."""
    names = FIXED_PLANS[:-1]
    rows = []
    for name, entry in results.items():
        matched = {row["matches"]: row for row in entry["rows"] if row.get("matches")}
        if not matched:
            continue
        texts = [name]
        for strategy in names:
            own = next(row for row in entry["rows"] if row["strategy"] == strategy)
            if own["peak_nbytes"] is None or strategy not in matched:
                texts.append("-")
                continue
            share = 100 * own["peak_nbytes"] / entry["store_all_nbytes"]
            texts.append(f"{share:.0f}%: {percent(own['overhead'])} vs {percent(matched[strategy]['overhead'])}")
        rows.append(texts)
    return table(["graph", *names], rows)


def report(results: Results) -> str:
    """All tables with what they show."""
    return "\n\n".join(
        [
            "Budgets are shares of the activation peak of a step that stores everything; `min` is the smallest peak "
            "found, given before its overhead. Overheads are recomputation in % of such a step.",
            EXTENT,
            "## `optimal`: overhead (gap to the proven bound)",
            overheads(results),
            counts(results),
            wide(results),
            "## The best other strategy within the same budget",
            beaten(results),
            others(results),
            "## Seconds of one solve, and memory",
            "`again`: planning for 45% after 50% of the same prepared graph; RSS: of reading and all solves.",
            effort(results),
            "## Strategies without a budget: own peak and overhead, and `optimal` within that peak",
            fixed(results),
        ]
    )
