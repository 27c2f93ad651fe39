"""What two rows of a network's results say of each other: memory saved and time added."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def rows_of(entry: dict[str, Any]) -> dict[str, Row]:
    """The rows of a network that have a result, by method."""
    return {row["method"]: row for row in entry.get("rows", []) if not row.get("error")}


def overhead(row: Row, plain: Row) -> float:
    """The time that a row adds, measured where both were, else predicted."""
    measured = _added(row, plain, "seconds")
    return float(row["overhead"]) if measured is None else measured


def overhead_of_calls(row: Row, plain: Row) -> float | None:
    """The time that a row adds: measured where both were, else the sum over all calls by the roofline, if known."""
    measured = _added(row, plain, "seconds")
    return _added(row, plain, "calls_s") if measured is None else measured


def _added(row: Row, plain: Row, quantity: str) -> float | None:
    if row.get(quantity) and plain.get(quantity):
        return float(row[quantity] / plain[quantity] - 1)
    return None


def cut(row: Row, plain: Row, quantity: str = "activation_nbytes") -> float:
    """The share of plain training's memory that a row saves."""
    return 1 - float(row[quantity]) / float(plain[quantity])
