"""Ours and others by the count of the published script, with plans made for it, and what bounds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.benchmark.measure import COUNTED_MATCHED_TIME, COUNTED_STRATEGY_TIME, MATCHED_TIME, STRATEGY, STRATEGY_TIME
from models.benchmark.published import MIB, published_at
from models.benchmark.rows import Row, cut, rows_of

COUNTED = {MATCHED_TIME: COUNTED_MATCHED_TIME, STRATEGY_TIME: COUNTED_STRATEGY_TIME}
"""The row of a plan for activations -> that of the plan for the published count, in the same time."""

_AT_FLOOR = 1.001
"""A peak up to this times a proven floor is said to be at it."""


def for_the_count(rows: Mapping[str, Row], method: str) -> Row:
    """The plan made for the published count in the time of ``method``, a plan for activations."""
    return rows[COUNTED[method]]


def as_published(finished: Mapping[str, dict[str, Any]]) -> str:
    """How ours does by the count of the published script.

    That count includes inputs, and new parameter gradients until they are added up.
    """
    behind_published, behind_strategy, level = [], [], []
    for name, entry in finished.items():
        rows, published = rows_of(entry), published_at(name, entry["input"])
        if published is not None and _saved(rows, MATCHED_TIME) < 1 - published.remaining:
            behind_published.append(_against(name, entry, MATCHED_TIME, 1 - published.remaining))
        ours, theirs = _saved(rows, STRATEGY_TIME), cut(rows[STRATEGY], rows["plain"], "protocol_nbytes")
        if ours < theirs:
            behind_strategy.append(_against(name, entry, STRATEGY_TIME, theirs))
        elif ours == theirs:
            level.append(f"{name} (at the proven floor)" if _bound(entry, STRATEGY_TIME) else name)
    parts = []
    for behind, whom in ((behind_published, "published"), (behind_strategy, "the strategy")):
        if behind:
            parts.append(f"ours saves less than {whom} in its time on {', '.join(behind)}")
    if level:
        parts.append(f"ours and the strategy save the same on {' and '.join(level)}")
    told = " and ".join(parts) or "ours saves more than the strategy, and no less than published, on every network here"
    return (
        "By the count of the published script, which has gradients there before the step and so counts new ones until "
        f"they are added up, {told}."
    )


def _saved(rows: Mapping[str, Row], method: str) -> float:
    return cut(for_the_count(rows, method), rows["plain"], "protocol_nbytes")


def _against(name: str, entry: dict[str, Any], method: str, theirs: float) -> str:
    bound = _bound(entry, method)
    return f"{name} ({_saved(rows_of(entry), method):.1%} against {theirs:.1%}{f': {bound}' if bound else ''})"


def _bound(entry: dict[str, Any], method: str) -> str:
    """That a plan is at the proven floor of the count, and what is in that; nothing where it is not."""
    rows = rows_of(entry)
    floor = entry.get("counted_floor_nbytes")
    if floor is None or for_the_count(rows, method)["protocol_nbytes"] > floor * _AT_FLOOR:
        return ""
    whole, inputs = rows["plain"]["protocol_nbytes"], entry["input_nbytes"]
    return (
        f"the proven floor: {floor / MIB:,.0f} of {whole / MIB:,.0f} MiB, each with {inputs / MIB:,.0f} MiB of inputs"
    )
