"""How hard `optimal` tries: amounts of work, never seconds, so that each effort is deterministic."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Effort:
    """Work of one solve.

    ``labels``: iterations times ops of the label annealing (improve.py does fewer where holds are annealed next).
    ``holds``: iterations of the hold annealing.
    ``branching``: work of the branch and bound as linear_program.Simplex counts it, on programs of ``stages`` stages
    times ops; a bound that is worth closing gets twice that again. ``growing``: work of the search in integers under
    more and more stages, as cp_sat.minimum counts it, and twice that again. ``rounds``: how often bound and plan learn
    from each other. ``chain``: effort of the search for
    options of the chain's blocks, ``refinements``: how often they are searched again around the budget. ``orders``: how
    many other orders may be planned for where the graph branches, ``compared``: ops of the largest graph where they are
    chosen from many by their relaxations. ``reorderings``: rounds of adapting the order to the best plan.
    ``hopeless``: the share of a step from which on a gap is not worth more work on the bound.
    ``enough``: the share of a step that a plan may be proven to lie above the best one at most for the search to end.
    ``first``: the effort whose plan is made before, so that more effort never gives a worse one.
    ``thorough``: whether the plans of several orders are improved before the best of them is chosen.
    """

    name: str
    labels: int
    holds: int
    branching: int
    stages: int
    growing: float
    rounds: int
    chain: float
    refinements: int
    orders: int
    compared: int
    reorderings: int
    hopeless: float
    enough: float
    first: str | None = None
    thorough: bool = False


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort("fast", 1_000_000, 20_000, 0, 1_000, 0.0, 1, 0.1, 0, 0, 0, 0, 0.02, 0.001),
        Effort("default", 3_000_000, 320_000, 1_000_000_000, 1_000, 0.0, 1, 1.0, 1, 1, 150, 5, 0.02, 0.001),
        Effort(
            "high",
            100_000_000,
            2_000_000,
            20_000_000_000,
            1_000,
            30.0,
            2,
            5.0,
            2,
            2,
            600,
            60,
            1e9,
            0.0,
            "default",
            True,
        ),
    )
}


def effort_named(text: str) -> Effort:
    """The effort of a name. Raises UsageError for one that does not exist."""
    if text not in EFFORTS:
        raise UsageError(f"effort {text!r} is unknown", remedy=f"choose one of {', '.join(EFFORTS)}")
    return EFFORTS[text]
