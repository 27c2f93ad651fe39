"""How hard `optimal` tries: amounts of work, never seconds, so that each effort is deterministic."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Effort:
    """Work of one solve.

    ``annealing`` is iterations times ops of the label annealing, ``holds`` the same for hold matrices,
    ``nodes`` the nodes of the branch and bound, ``rounds`` how often bound and plan learn from each other.
    """

    name: str
    annealing: int
    holds: int
    nodes: int
    rounds: int


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort("fast", 3_000_000, 2_000_000, 0, 1),
        Effort("default", 18_000_000, 15_000_000, 60, 1),
        Effort("high", 300_000_000, 300_000_000, 2_000, 3),
    )
}


def effort_named(text: str) -> Effort:
    """The effort of a name. Raises UsageError for one that does not exist."""
    if text not in EFFORTS:
        raise UsageError(f"effort {text!r} is unknown", remedy=f"choose one of {', '.join(EFFORTS)}")
    return EFFORTS[text]
