"""The table of what PyTorch itself offers, each method next to a plan within the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.benchmark.measure import STRATEGY, ours_within
from models.benchmark.rows import Row, cut, overhead_of_calls
from models.reporting.result_table import table

REASONS = {
    "Tensor cached during selective activation checkpoint has been mutated": "in-place ReLU after a saved tensor",
    "modified by an inplace operation": "a module in place where a checkpointed part begins",
}
"""Part of an error -> what it comes from."""
_LONGEST = 60

NOTE = (
    "What PyTorch offers, by the same meter, and ours within the memory that each of them holds. Blocks are those that "
    "the network is built of; of VGG and AlexNet, the stages between poolings. checkpoint_sequential runs about "
    "sqrt(n) segments of every outermost Sequential of n layers: where one of its own would begin with a module that "
    "acts in place, which fails, it begins at the nearest layer where it works. A dash: the network has no such "
    "Sequential of more than one segment."
)
_PREDICTED = " Times of both sides are sums over all calls of the step that runs, by the roofline."


def reason(error: str) -> str:
    """Why a method failed, in a few words; all of it is in the JSON file."""
    known = [why for part, why in REASONS.items() if part in error]
    if known or len(error) <= _LONGEST:
        return known[0] if known else error
    return f"{error[:_LONGEST].rsplit(' ', 1)[0]} ..."


def alternatives(finished: Mapping[str, dict[str, Any]], *, predicted: bool) -> str:
    """A line for each network and method, below what the columns mean; nothing where no method was run."""
    names = list(dict.fromkeys(
        row["method"] for entry in finished.values() for row in entry["rows"]
        if not row["method"].startswith(("plain", "ours", STRATEGY))
    ))  # fmt: skip
    if not names:
        return ""
    lines = []
    for name, entry in finished.items():
        rows = {row["method"]: row for row in entry["rows"]}
        lines += [[name, method, *_cells(rows, method)] for method in names]
    header = ["network", "method", "cut", "time", "ours at that memory: time"]
    return f"{NOTE}{_PREDICTED if predicted else ''}\n\n{table(header, lines)}"


def _cells(rows: Mapping[str, Row], method: str) -> list[str]:
    row, ours, plain = rows.get(method), rows.get(ours_within(method)), rows["plain"]
    if row is None:
        return ["-", "-", "-"]
    if row.get("error"):
        return [f"fails: {reason(row['error'])}", "-", "-"]
    time = _time(row, plain)
    if row.get("gradient_difference"):
        time += f", gradients differ by {row['gradient_difference']:.0e}"
    return [f"{cut(row, plain):.1%}", time, "-" if ours is None else ours.get("error") or _time(ours, plain)]


def _time(row: Row, plain: Row) -> str:
    added = overhead_of_calls(row, plain)
    return "-" if added is None else f"{added:.1%}"
