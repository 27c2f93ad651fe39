"""Which budgets and strategies the plan benchmark runs for a graph of a given size, and how long one may take."""

from __future__ import annotations

from dataclasses import dataclass

from ogc_plan.planner.strategies import FIXED, STRATEGIES

SHARES = (80, 60, 50, 40, 30, 20)
"""Budgets in percent of store-all's activation peak."""
REPLANNED = 45
"""The budget asked for after one at 50%, of the same prepared problem."""
FIXED_PLANS = ("ogc", "sqrt", "speed", "segments:4", "keep-all")
BUDGETED = tuple(name for name in STRATEGIES if name not in FIXED and name != "optimal")
QUICK = ("greedy", "layers")
LIMIT_S = 6
"""Wall time after which a strategy other than `optimal` is ended at one budget."""

SMALL, MIDDLE, LARGE = 400, 1500, 4000


@dataclass(frozen=True, slots=True)
class Extent:
    """Which budgets (in percent) are run for a graph: ``own`` by `optimal`, ``quick`` and ``slow`` by the others.

    ``matched``: `optimal` also runs within the peaks that the strategies without a budget have.
    """

    own: tuple[int, ...]
    quick: tuple[int, ...]
    slow: tuple[int, ...]
    matched: bool

    @classmethod
    def of(cls, ops: int) -> Extent:
        """Everything for a small graph, less and less for larger ones."""
        if ops <= SMALL:
            return cls(SHARES, SHARES, SHARES, True)
        if ops <= MIDDLE:
            return cls(SHARES, SHARES, (50,), ops <= MIDDLE // 2)
        return cls(SHARES if ops <= LARGE else (60, 50, 30), (50,), (50,), False)


EXTENT = (
    f"Up to {SMALL} ops every strategy runs at every budget; up to {MIDDLE:,} ops {', '.join(QUICK)} do, the other "
    f"budgeted ones run at 50%; above, all but `optimal` run at 50% alone; above {LARGE:,} ops `optimal` runs "
    f"at 60%, 50%, 30% and min. Strategies other than `optimal` are ended after {LIMIT_S} s at a budget."
)
"""What runs for which graph, in words."""
