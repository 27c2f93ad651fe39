"""The page of the first day: what each stage found, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.reporting.result_table import megabytes, table


def report(record: Mapping[str, Any]) -> str:
    """The record as Markdown."""
    stages = record["stages"]
    on = (stages.get("environment") or {}).get("found") or {}
    where = "on a card that no stage described"
    if on:
        where = f"on {on['card']}, torch {on.get('torch')}, CUDA {on.get('cuda')}, cuDNN {on.get('cudnn')}"
    told = [f"`{record['command']}` {where}, commit {record['commit'] or 'unknown'}"]
    if record["standin"]:
        told.append("The card is a stand-in: its values and times mean nothing.")
    ended = [[name, stage["outcome"], f"{stage['seconds']:.0f}"] for name, stage in stages.items()]
    told.append(table(["stage", "outcome", "seconds"], ended))
    for name, stage in stages.items():
        rows = (stage["found"] or {}).get("rows")
        described = _TABLES.get(name.removesuffix("_expandable"))
        if rows and described is not None:
            told.append(f"## {name}\n\n{described(rows)}")
        if stage["error"]:
            told.append(f"## {name}: {stage['outcome']}\n\n```text\n{stage['error'].strip()}\n```")
    for name in ("card_tests", "adapter_tests"):
        tests = (stages.get(name) or {}).get("found")
        if tests:
            counts = ", ".join(f"{number} {kind}" for kind, number in tests["counts"].items())
            told.append("\n".join([f"## {name}\n\n{counts or 'none ran'}", *(f"- {line}" for line in tests["failed"])]))
    return "\n\n".join(told)


def bits(rows: list[dict[str, Any]]) -> str:
    """Which parts of the outcome are unequal to eager training, eager against itself first."""

    def cell(found: dict[str, Any]) -> str:
        if "error" in found:
            return str(found["error"])
        return ", ".join(found["unequal"]) or "equal"

    budgets = list(rows[0]["plans"])
    lines = [
        [row["network"], row["precision"], cell(row["eager"])]
        + [cell(row["plans"].get(budget, {"error": ""})) for budget in budgets]
        for row in rows
    ]
    return table(["network", "precision", "eager again", *budgets], lines)


def memory(rows: list[dict[str, Any]]) -> str:
    """Predicted and measured megabytes."""
    kinds = ("requested", "allocated", "reserved")
    lines = []
    for row in rows:
        if "error" in row:
            lines.append([row["network"], row["precision"], row["way"], row["error"], "", "", ""])
            continue
        predicted, binding = row.get("predicted", {}), row.get("binding")
        pairs = []
        for kind in kinds:
            expected, found = predicted.get(f"{kind}_nbytes"), row["measured"][f"{kind}_nbytes"]
            difference = "" if expected is None else f" ({found - expected:+,} B)"
            pairs.append(f"{megabytes(found)}{difference}")
        lines.append([row["network"], row["precision"], row["way"], *pairs,
                      megabytes(binding["requested_nbytes"]) if binding else ""])  # fmt: skip
    header = ["network", "precision", "way", *(f"{kind}, MB (measured - predicted)" for kind in kinds), "binding, MB"]
    return table(header, lines)


def cap(rows: list[dict[str, Any]]) -> str:
    """What fits the cap."""

    def reserved(nbytes: int | None) -> str:
        return "out of memory" if nbytes is None else megabytes(nbytes)

    lines = []
    for row in rows:
        if "error" in row:
            lines.append([row["network"], row["error"], "", "", "", ""])
            continue
        sizes = row["eager_reserved_nbytes"], row["budget_nbytes"]
        lines.append([
            row["network"], *map(megabytes, sizes), reserved(row["planned_reserved_nbytes"]),
            reserved(row["eager_capped_reserved_nbytes"]), f"{row['overhead']:+.1%}",
        ])  # fmt: skip
    header = ["network", "eager reserves, MB", "budget = cap", "planned reserves", "eager under the cap", "time added"]
    return table(header, lines)


def times(rows: list[dict[str, Any]]) -> str:
    """Milliseconds, and the ratio to eager."""
    eager = {row["network"]: row["ms"] for row in rows if row["way"] == "eager"}
    lines = []
    for row in rows:
        if "error" in row:
            lines.append([row["network"], row["way"], row["error"], "", "", "", ""])
            continue
        first = eager.get(row["network"])
        predicted = row.get("predicted_ratio")
        lines.append([
            row["network"], row["way"], megabytes(row["requested_nbytes"]),
            megabytes(row["reserved_nbytes"]), f"{row['ms']:.2f}",
            f"{row['ms'] / first:.3f}" if first else "", f"{predicted:.3f}" if predicted else "",
        ])  # fmt: skip
    header = ["network", "way", "requested, MB", "reserved, MB", "ms", "eager = 1", "predicted, store-all = 1"]
    return table(header, lines)


def capture(rows: list[dict[str, Any]]) -> str:
    """Whether a step was captured, and what its replay is worth."""
    lines = [
        [row["network"], row["way"], row["error"], "", ""]
        if "error" in row
        else [row["network"], row["way"], "captured", _equal(row), f"{row['replay_ms']:.2f}"]
        for row in rows
    ]
    return table(["network", "way", "graph", "gradients of a replay, against eager's", "ms a replay"], lines)


def _equal(row: dict[str, Any]) -> str:
    return "equal" if row["replayed_gradients_equal"] else "unequal"


_TABLES = {"bits": bits, "memory": memory, "cap": cap, "times": times, "compiled": times, "capture": capture}
