"""What two rows of a network's results say of each other: memory saved and time added."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def rows_of(entry: dict[str, Any]) -> dict[str, Row]:
    """The rows of a network that have a result, by method."""
    return {row["method"]: row for row in entry["rows"] if not row.get("error")}


def overhead(row: Row, plain: Row) -> float:
    """The time that a row adds, measured where both were, else predicted."""
    if row.get("seconds") and plain.get("seconds"):
        return float(row["seconds"] / plain["seconds"] - 1)
    return float(row["overhead"])


def cut(row: Row, plain: Row, quantity: str = "activation_nbytes") -> float:
    """The share of plain training's memory that a row saves."""
    return 1 - float(row[quantity]) / float(plain[quantity])
