"""How hard `optimal` tries: amounts of work, never seconds, so that each effort is deterministic."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Effort:
    """Work of one solve.

    ``labels``: iterations times ops of the label annealing (improve.py does fewer where holds are annealed next).
    ``holds``: iterations of the hold annealing, on large graphs fewer; ``reaching``: of that which lowers the peak
    until a plan fits; ``peaks``: of that which looks for the smallest peak under each order, ``deepest``: in the best.
    ``growing``: work of the search in integers under more and more stages, as cp_sat.minimum counts it, 0 for linear
    programs alone. ``rounds``: how often bound and plan learn from each other.
    ``chain``: effort of the search for options of the chain's blocks, ``refinements``: how often they are searched
    again around the budget. ``orders``: how many other orders may be planned for where the graph branches,
    ``compared``: ops of the largest graph where they are chosen from many by their relaxations. ``reorderings``:
    rounds of adapting the order to the best plan; ``restarts``: how often that is done from one plan.
    ``hopeless``: the share of a step from which on a gap is not worth work in integers.
    ``enough``: the share of a step that a plan may be proven to lie above the best one at most for the search to end.
    ``first``: the effort whose plan is made before, so that more effort never gives a worse one.
    ``thorough``: whether the plans of several orders are improved before the best of them is chosen.
    """

    name: str
    labels: int
    holds: int
    reaching: int
    peaks: int
    deepest: int
    growing: float
    rounds: int
    chain: float
    refinements: int
    orders: int
    compared: int
    reorderings: int
    restarts: int
    hopeless: float
    enough: float
    first: str | None = None
    thorough: bool = False


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort(
            "fast", labels=1_000_000, holds=40_000, reaching=10_000, peaks=20_000, deepest=0, growing=0.0, rounds=1,
            chain=0.1, refinements=0, orders=0, compared=0, reorderings=0, restarts=0, hopeless=0.02, enough=0.001,
        ),
        Effort(
            "default", labels=3_000_000, holds=1_280_000, reaching=160_000, peaks=80_000, deepest=1_280_000,
            growing=1.0, rounds=1, chain=1.0, refinements=1, orders=1, compared=150, reorderings=5, restarts=2,
            hopeless=0.1, enough=0.001,
        ),
        Effort(
            "high", labels=100_000_000, holds=4_000_000, reaching=1_000_000, peaks=500_000, deepest=4_000_000,
            growing=30.0, rounds=2, chain=5.0, refinements=2, orders=2, compared=600, reorderings=20, restarts=8,
            hopeless=1e9, enough=0.0, first="default", thorough=True,
        ),
    )
}  # fmt: skip


def effort_named(text: str) -> Effort:
    """The effort of a name. Raises UsageError for one that does not exist."""
    if text not in EFFORTS:
        raise UsageError(f"effort {text!r} is unknown", remedy=f"choose one of {', '.join(EFFORTS)}")
    return EFFORTS[text]
