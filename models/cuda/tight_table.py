"""The table of networks on a card of their budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.reporting.result_table import megabytes, table


def report(rows: Sequence[dict[str, Any]], on: str) -> str:
    """The rows as Markdown; ``on`` names the card."""
    header = [
        "network", "eager step needs", "budget", "card", "eager there", "binding: asked for",
        "reserved", "planned step: asked for", "reserved", "time added", "result",
    ]  # fmt: skip
    lines, reasons = [], []
    for row in rows:
        binding, step = row.get("binding", {}), row.get("step", {})
        sizes = [binding.get("requested_nbytes"), binding.get("reserved_nbytes")]
        sizes += [step.get("requested_nbytes"), step.get("reserved_nbytes")]
        eager = row.get("eager", "")
        lines.append([
            row["name"],
            megabytes(row["store_all_nbytes"]) if binding else "",
            megabytes(row["budget_nbytes"]),
            megabytes(row["card_nbytes"]),
            eager if isinstance(eager, str) else f"fits, {megabytes(eager)}",
            *("" if size is None else megabytes(size) for size in sizes),
            f"{row['overhead']:+.1%}" if binding else "",
            row["result"],
        ])  # fmt: skip
        if "why" in row:
            reasons.append(f"- {row['name']}: {row['why']}")
    good = sum(row["result"] == "trained" for row in rows)
    told = f"{good} of {len(rows)} networks are bound and trained. Card: {on}. Sizes in MB."
    sizes = [f"- {row['name']}: {row['sizes']}" for row in rows if "sizes" in row]
    return "\n\n".join(filter(None, (told, table(header, lines), "\n".join(reasons), "\n".join(sizes))))
