"""The tables of what plans reserve of a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from models.reporting.result_table import megabytes, table


def summary(found: Sequence[dict[str, Any]], on: str) -> str:
    """How many steps kept budget and prediction, and the ratios by network; ``on`` names the card."""
    planned = [row for each in found for row in each.get("rows", ()) if "measured" in row]
    kept = sum(row["measured"][2] <= row["budget_nbytes"] for row in planned)
    exact = sum(row["measured"] == row["predicted"] for row in planned)
    arenas = [row["arena"]["nbytes"] / max(1, row["arena"]["alive_nbytes"]) for row in planned]
    refused = sum("why" in row for each in found for row in each.get("rows", ()))
    told = [
        f"Card: {on}. {kept} of {len(planned)} planned steps reserve no more than their budget; in {exact} the bytes "
        f"requested, allocated and reserved are those predicted. {refused} budgets have no plan."
    ]
    if arenas:
        told.append(f"Arena: at most {max(arenas):.4f} times the bytes that are alive together.")
    lines = []
    for each in found:
        ratios = [row["measured"][2] / row["measured"][0] for row in each.get("rows", ()) if "measured" in row]
        eager = each["eager"][1] / each["eager"][0] if "eager" in each else 0.0
        cells = [f"{median(ratios):.3f}", f"{max(ratios):.3f}"] if ratios else ["", ""]
        lines.append([each["name"], each["segments"], f"{eager:.3f}", str(len(ratios)), *cells])
    header = ["network", "segments", "eager: reserved / requested", "plans", "median", "maximum"]
    return "\n\n".join((" ".join(told), table(header, lines)))


def report(found: Sequence[dict[str, Any]], on: str) -> str:
    """The rows as Markdown: the summary, and all budgets."""
    told = ["Sizes in MB; reserved includes what cuBLAS keeps. Errors are measured less predicted bytes."]
    header = [
        "network", "segments", "eager: requested", "reserved", "budget", "requested", "allocated", "reserved",
        "of requested", "errors", "time added", "arena",
    ]  # fmt: skip
    lines, reasons = [], []
    for each in found:
        if "error" in each:
            reasons.append(f"- {each['name']}, {each['segments']}: {each['error']}")
            continue
        for row in each["rows"]:
            head = [each["name"], each["segments"], *map(megabytes, each["eager"])]
            head.append(f"{row['share']}%: {megabytes(row['budget_nbytes'])}")
            if "why" in row:
                lines.append([*head, "no plan", *[""] * 6])
                continue
            measured = row["measured"]
            errors = [a - b for a, b in zip(measured, row["predicted"], strict=True)]
            lines.append([
                *head,
                *map(megabytes, measured),
                f"{measured[2] / measured[0]:.3f}",
                "0" if not any(errors) else " ".join(f"{error:+,}" for error in errors),
                f"{row['overhead']:+.1%}",
                f"{row['arena']['nbytes'] / max(1, row['arena']['alive_nbytes']):.4f}",
            ])  # fmt: skip
    sizes = {f"- {each['name']}: {each['sizes']}": None for each in found if "sizes" in each}
    parts = (summary(found, on), *told, table(header, lines), "\n".join(reasons), "\n".join(sizes))
    return "\n\n".join(filter(None, parts))
