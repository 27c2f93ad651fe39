"""Which budgets and strategies the plan benchmark runs for a graph of a given size, and how long one may take."""

from __future__ import annotations

from dataclasses import dataclass

from ogc_plan.planner.strategies import FIXED, STRATEGIES

SHARES = (80, 60, 50, 40, 30, 20)
"""Budgets in percent of store-all's activation peak."""
FIRST = 50
"""The budget of the first plan where plans are timed."""
FIXED_PLANS = ("ogc", "sqrt", "speed", "segments:4", "keep-all")
BUDGETED = tuple(name for name in STRATEGIES if name not in FIXED and name != "optimal")
QUICK = ("greedy", "layers")
LIMIT_S = 6
"""Wall time after which a strategy other than `optimal` is ended at one budget."""
BASE, HARDER = "default", "high"
"""The effort of `optimal`, and the one that is tried where that one misses its target."""

HARDER_S = 600
"""Wall time after which HARDER is stopped, with what it has."""

SMALL, MIDDLE = 400, 1500


@dataclass(frozen=True, slots=True)
class Extent:
    """Which budgets (in percent) strategies other than `optimal` are given, the ``quick`` ones and the ``slow``.

    ``matched``: `optimal` also runs within the peaks that the strategies without a budget have.
    ``harder``: it runs once more with effort HARDER where BASE misses the target.
    """

    quick: tuple[int, ...]
    slow: tuple[int, ...]
    matched: bool
    harder: bool

    @classmethod
    def of(cls, ops: int) -> Extent:
        """Everything for a small graph, less and less for larger ones."""
        if ops <= SMALL:
            return cls(SHARES, SHARES, True, True)
        if ops <= MIDDLE:
            return cls(SHARES, (FIRST,), ops <= MIDDLE // 2, True)
        return cls((FIRST,), (FIRST,), False, False)


EXTENT = (
    f"`optimal` runs at every budget. Up to {SMALL} ops every other strategy does, too; up to {MIDDLE:,} ops "
    f"{', '.join(QUICK)} do, the other budgeted ones run at {FIRST}%; above, all run at {FIRST}% alone. Strategies "
    f"other than `optimal` are ended after {LIMIT_S} s at a budget. Up to {MIDDLE:,} ops `optimal` with `--effort "
    f"{HARDER}` runs where effort {BASE} misses the target, and is stopped after {HARDER_S} s."
)
"""What runs for which graph, in words."""
