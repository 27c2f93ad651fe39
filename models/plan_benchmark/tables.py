"""The results of the plan benchmark as Markdown: overheads and gaps, the higher effort, the best other strategy."""

from __future__ import annotations

from typing import Any

from models.plan_benchmark.cells import COLUMNS, Cell, Results, cells, percent, retried
from models.plan_benchmark.extent import BASE, FIXED_PLANS, HARDER
from models.plan_benchmark.targets import CLOSE, GAPS
from models.reporting.result_table import table

LEVELS = (0.001, 0.005, 0.01)
"""Gaps, as shares of a step, up to which cells are counted."""


def _grid(results: Results, text: dict[tuple[str, str], str], first: dict[str, list[str]], header: list[str]) -> str:
    rows = [[name, *first[name], *(text.get((name, column), "") for column in COLUMNS)] for name in results]
    return table([*header, *COLUMNS], rows)


def overheads(results: Results) -> str:
    """Overhead of `optimal` in % of a store-all step, in brackets the gap to the proven bound; a row per graph.

    A star marks the plans of the higher effort, which stand in the place of those that miss their target.
    """
    text = {}
    for cell in cells(results, harder=True):
        text[cell.graph, cell.label] = cell.text()
        if cell.label == "min" and cell.row["peak_nbytes"] is not None:
            share = cell.row["peak_nbytes"] / results[cell.graph]["store_all_nbytes"]
            text[cell.graph, "min"] = f"{100 * share:.1f}%: {cell.text()}"
    first = {
        name: [f"{entry['ops']:,}", f"{100 * entry['floor_nbytes'] / entry['store_all_nbytes']:.1f}%"]
        for name, entry in results.items()
    }
    return _grid(results, text, first, ["graph", "ops", "floor"])


def harder(results: Results) -> str:
    """What the higher effort made of each cell whose target was missed, and the processor seconds of both."""
    header = ["graph", "budget", BASE, HARDER, f"{BASE}, CPU s", f"{HARDER}, CPU s"]
    rows = [
        [
            first.graph,
            first.label,
            first.text(),
            second.text().removesuffix("*"),
            f"{first.row['cpu_s']:.0f}",
            f"{second.row['cpu_s']:.0f}",
        ]
        for first, second in retried(results)
    ]
    return table(header, rows)


def legend(results: Results) -> str:
    """What the stars of `overheads` mean; empty where it has none."""
    count = len(retried(results))
    return f"\\* with `--effort {HARDER}`, where effort {BASE} misses its target (cells: {count})." if count else ""


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


def counts(results: Results, *, harder: bool = False) -> str:
    """How many cells of each budget, and of all, have a gap of at most each of LEVELS; open cells have none.

    ``harder``: as in `cells`.
    """
    header = ["budget", "cells", *(f"gap <= {100 * level:g}%" for level in LEVELS), "larger", "no plan found"]
    feasible = [cell for cell in cells(results, harder=harder) if not cell.infeasible]
    rows = []
    for label in (*COLUMNS, "all"):
        own = [cell for cell in feasible if label in (cell.label, "all")]
        gaps = [cell.gap for cell in own if cell.gap is not None]
        within = [sum(gap <= level for gap in gaps) for level in LEVELS]
        rows.append([label, *map(str, (len(own), *within, len(gaps) - within[-1], len(own) - len(gaps)))])
    return table(header, rows)


def summary(results: Results) -> str:
    """The counts of the default effort alone, and those with the higher effort where it was tried."""
    parts = [targets(results), counts(results)]
    if retried(results):
        parts[1:] = [f"Effort {BASE} alone:", parts[1], f"With `--effort {HARDER}` in the cells marked *:"]
        parts.append(counts(results, harder=True))
    return "\n\n".join(parts)


def targets(results: Results) -> str:
    """The target of each budget, in how many cells it is met, and in how many with next to no gap."""
    widths = sorted(set(GAPS.values()))
    held = {width: [f"{share}%" for share in GAPS if GAPS[share] == width] for width in widths}
    named = ", of at most ".join(f"{100 * width:g}% of a step at {', '.join(held[width])}" for width in widths)

    def met(harder: bool) -> tuple[int, int, int, int]:
        own = [cell for cell in cells(results, harder=harder) if not cell.infeasible]
        aimed = [cell for cell in own if any(cell.label in labels for labels in held.values())]
        narrow = [cell for cell in own if cell.label in held[widths[0]]]
        close = [cell for cell in narrow if cell.gap is not None and cell.gap <= CLOSE]
        return sum(not cell.missed for cell in aimed), len(aimed), len(close), len(narrow)

    (first, count, close, narrow), (second, _, closer, _) = met(harder=False), met(harder=True)
    again = bool(retried(results))
    return (
        f"Target: a gap of at most {named}. Met in {first} of {count} cells"
        + (f", in {second} with `--effort {HARDER}` where it is missed" if again else "")
        + f". At {', '.join(held[widths[0]])} the gap is at most {100 * CLOSE:g}% in {close}"
        + (f" ({closer})" if again else "")
        + f" of {narrow} cells."
    )


def wide(results: Results) -> str:
    """The cells with a gap above each of LEVELS but the first, widest first, and those without a plan.

    Where the higher effort was tried, its plan counts.
    """
    shown = list(cells(results, harder=True))
    gaps = [(cell.gap, f"{cell.graph} at {cell.label}") for cell in shown if cell.gap is not None]
    lines = []
    for low, high in zip(LEVELS[1:], (*LEVELS[2:], None), strict=True):
        found = sorted((pair for pair in gaps if low < pair[0] <= (high or pair[0])), key=lambda pair: -pair[0])
        named = ", ".join(f"{where} ({percent(gap)})" for gap, where in found)
        up_to = f" and up to {100 * high:g}%" if high else ""
        lines.append(f"Gaps above {100 * low:g}%{up_to} of a step: {named or 'none'}.")
    missing = [f"{cell.graph} at {cell.label}" for cell in shown if cell.gap is None and not cell.infeasible]
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
