"""The times of the plan benchmark as Markdown: against the targets by size of the graph, and graph by graph."""

from __future__ import annotations

from statistics import median
from typing import Any

from models.plan_benchmark.cells import COLUMNS, Results, cells, percent
from models.plan_benchmark.targets import SIZES, size_of
from models.reporting.result_table import table


def _timed(results: Results) -> Results:
    return {name: entry for name, entry in results.items() if entry.get("times")}


def _plans(entry: dict[str, Any], *, first: bool) -> list[dict[str, Any]]:
    return [plan for plan in entry["times"]["plans"] if plan["first"] == first]


def _against(seconds: list[float], target_s: float) -> list[str]:
    """Target, median, maximum, and how many of the times meet the target."""
    if not seconds:
        return [f"{target_s:g}", "-", "-", "-"]
    met = sum(each <= target_s for each in seconds)
    share = f"{met} of {len(seconds)} ({100 * met / len(seconds):.0f}%)"
    return [f"{target_s:g}", f"{median(seconds):.2f}", f"{max(seconds):.2f}", share]


def sizes(results: Results) -> str:
    """First plans and re-plans of each size class against their targets in wall seconds, and the largest peak RSS."""
    header = ["seconds", "graphs", "first plan: target", "median", "maximum", "met"]
    header += ["re-plan: target", "median", "maximum", "met", "peak RSS, MB"]
    rows = []
    for size in SIZES:
        own = [entry for name, entry in _timed(results).items() if size_of(name, entry["ops"]) == size]
        if own:
            seconds = {
                first: [plan["seconds"] for entry in own for plan in _plans(entry, first=first)]
                for first in (True, False)
            }
            compared = [*_against(seconds[True], size.first_s), *_against(seconds[False], size.again_s)]
            largest = max(entry["times"]["peak_rss_mb"] for entry in own)
            rows.append([size.title, str(len(own)), *compared, f"{largest:.0f}"])
    return table(header, rows)


def graphs(results: Results) -> str:
    """Seconds of reading, of the first plan and the re-plan for each budget, and the peak RSS."""
    rows = []
    for name, entry in _timed(results).items():
        first, again = (
            {plan["label"]: plan["seconds"] for plan in _plans(entry, first=first)} for first in (True, False)
        )
        rows.append(
            [
                name,
                f"{entry['ops']:,}",
                f"{entry['times']['read_s']:.2f}",
                *(_seconds(first.get(label), again.get(label)) for label in COLUMNS),
                f"{entry['times']['peak_rss_mb']:.0f}",
            ]
        )
    return table(["graph", "ops", "read", *COLUMNS, "RSS MB"], rows)


def _seconds(first: float | None, again: float | None) -> str:
    """A first plan, and the re-plan in brackets."""
    if first is None:
        return ""
    return f"{first:.2f}" if again is None else f"{first:.2f} ({again:.2f})"


def totals(results: Results) -> str:
    """Wall and processor time of all timed plans: far apart where something else took the processors."""
    plans = [plan for entry in _timed(results).values() for plan in entry["times"]["plans"]]
    wall, cpu = (sum(plan[key] for plan in plans) for key in ("seconds", "cpu_s"))
    return f"These {len(plans)} plans took {wall:,.0f} s of wall time and {cpu:,.0f} s of processor time in all."


def differences(results: Results) -> str:
    """How plans that share a prepared graph differ from those of solves from nothing."""
    fresh = {(cell.graph, cell.label): cell.row["overhead"] for cell in cells(results)}
    changes: list[float] = []
    lost = won = 0
    for name, entry in _timed(results).items():
        for plan in _plans(entry, first=False):
            alone = fresh[name, plan["label"]]
            if alone is not None and plan["overhead"] is not None:
                changes.append(plan["overhead"] - alone)
            lost += alone is not None and plan["overhead"] is None
            won += alone is None and plan["overhead"] is not None
    down, up = [-change for change in changes if change < 0], [change for change in changes if change > 0]
    text = (
        f"A re-plan starts from what earlier ones found. Of {len(changes)} re-plans {len(down)} are cheaper than the "
        f"plan of a solve from nothing, by up to {percent(max(down, default=0))}% of a step, and {len(up)} dearer, by "
        f"up to {percent(max(up, default=0))}%."
    )
    return f"{text} {won} have a plan where such a solve has none, {lost} the reverse." if won or lost else text
