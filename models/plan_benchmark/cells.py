"""The cells of the plan benchmark's tables: one graph within one budget, planned by `optimal`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from models.plan_benchmark.extent import HARDER, SHARES
from models.plan_benchmark.targets import INFEASIBLE, gap, missed

Results = dict[str, dict[str, Any]]

COLUMNS = (*(f"{share}%" for share in SHARES), "min")
"""The budgets: shares of store-all's activation peak, then the smallest peak found."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`optimal` on one graph within one budget, ``label`` its column."""

    graph: str
    label: str
    row: dict[str, Any]

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that no plan exists."""
        return bool(self.row["status"] == INFEASIBLE)

    @property
    def gap(self) -> float | None:
        """Overhead above the proven bound, a share of a step to nine digits; None without a plan."""
        return gap(self.row)

    @property
    def missed(self) -> bool:
        """Whether the target of this budget is missed; the smallest peak has none."""
        return self.label != "min" and missed(self.row)

    @property
    def harder(self) -> bool:
        """Whether this is the plan of the higher effort."""
        return self.row.get("effort") == HARDER

    def text(self) -> str:
        """Overhead and gap in percent, or why there are none; a star marks the higher effort."""
        if self.infeasible:
            return "infeasible"
        value = "open" if self.gap is None else f"{percent(self.row['overhead'])} ({percent(self.gap)})"
        return f"{value}*" if self.harder else value


def cells(results: Results, *, harder: bool = False) -> Iterator[Cell]:
    """Every budget that `optimal` was given, in the order of the columns; matched peaks are not.

    ``harder``: the row of the higher effort stands in the place of the other one where there is one.
    """
    for name, entry in results.items():
        rows = [row for row in entry["rows"] if row["strategy"] == "optimal"]
        retried = {row["share"]: row for row in rows if harder and row.get("effort") == HARDER}
        for row in rows:
            if row["share"] is not None and row.get("effort") != HARDER:
                yield Cell(name, f"{round(100 * row['share'])}%", retried.get(row["share"], row))
            elif row.get("minimum"):
                yield Cell(name, "min", row)


def retried(results: Results) -> list[tuple[Cell, Cell]]:
    """The cells that were planned with both efforts, each pair as default and higher effort."""
    pairs = zip(cells(results), cells(results, harder=True), strict=True)
    return [(first, second) for first, second in pairs if second.harder]


def row_of(entry: dict[str, Any], strategy: str, share: float) -> dict[str, Any]:
    """The row of a budgeted strategy at a share of the store-all peak; of `optimal` the row of the default effort.

    Raises StopIteration where it was not run.
    """
    found: dict[str, Any] = next(
        row
        for row in entry["rows"]
        if row["strategy"] == strategy and row["share"] == share and row.get("effort") != HARDER
    )
    return found


def percent(value: float | None) -> str:
    """A share in percent with two digits, without the sign."""
    return "-" if value is None else f"{100 * value:.2f}"
