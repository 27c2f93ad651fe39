"""What the plans of the benchmark are held to: gaps to the proven bound by budget, seconds by size of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INFEASIBLE = "proven infeasible"
"""The status of a row whose budget no plan meets."""
GAPS = {80: 0.005, 60: 0.005, 50: 0.005, 40: 0.005, 30: 0.01}
"""The widest gap for each budget, a share of a store-all step; budgets are in percent of store-all's peak."""
CLOSE = 0.001
"""The gap that half of the cells at 80% to 40% must not exceed."""
VARIED = ("transformer_varied",)
"""Graphs of some 10,000 ops of which no two layers are equal."""


def gap(row: dict[str, Any]) -> float | None:
    """Overhead above the proven bound, a share of a step to nine digits; None without a plan."""
    return None if row["overhead"] is None else round(float(row["overhead"] - row["bound"]), 9)


def missed(row: dict[str, Any]) -> bool:
    """Whether `optimal` found no plan where one may exist, or left a gap wider than its budget allows."""
    width, allowed = gap(row), GAPS.get(round(100 * row["share"]))
    if width is None:
        return bool(row["status"] != INFEASIBLE)
    return allowed is not None and width > allowed


@dataclass(frozen=True, slots=True)
class Size:
    """Graphs of up to ``ops`` ops, and the wall seconds that their first plan and a plan for another budget may take.

    ``varied``: of the largest graphs only those whose layers differ.
    """

    title: str
    ops: int
    first_s: float
    varied: bool = False

    @property
    def again_s(self) -> float:
        """Seconds that planning the same prepared graph for another budget may take."""
        return self.first_s / 4


SIZES = (
    Size("up to 700 ops", 700, 3),
    Size("701 to 1,500 ops", 1_500, 10),
    Size("1,501 to 3,500 ops", 3_500, 30),
    Size("10,000 ops, layers repeat", 10_000, 30),
    Size("10,000 ops, layers vary", 10_000, 180, varied=True),
)


def size_of(name: str, ops: int) -> Size:
    """The size class of a graph. Raises StopIteration above 10,000 ops."""
    return next(size for size in SIZES if ops <= size.ops and size.varied == (name in VARIED))
