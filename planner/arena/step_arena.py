"""The arena of a plan: its lives and where they lie, and the file that says so, as arena.schema.json describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..limits import NO_LIMITS, Limits
from ..plan_file.record import Plan
from ..plan_file.writer import one_key_per_line
from .check import check
from .interval import ALIGNMENT_NBYTES, Placement, most_alive
from .placement import place
from .step_intervals import Life, step_intervals

FORMAT = "ogc-plan-arena"
VERSION = 1


@dataclass(frozen=True, slots=True)
class StepArena:
    """A checked placement of a plan's lives.

    Attributes:
        plan: The plan.
        lives: The allocations of its step; without ``escaping`` only those that end with it.
        placement: The offset of each life.
        escaping: Whether lives that are alive after the step are placed, too.
    """

    plan: Plan
    lives: tuple[Life, ...]
    placement: Placement
    escaping: bool

    @property
    def peak_nbytes(self) -> int:
        """The most bytes of the lives that are alive together."""
        return most_alive([life.interval for life in self.lives])

    @property
    def ratio(self) -> float:
        """The arena's size over the peak, 1 for a step without allocations."""
        peak = self.peak_nbytes
        return self.placement.nbytes / peak if peak else 1.0


def step_arena(
    plan: Plan, *, escaping: bool = True, alignment: int = ALIGNMENT_NBYTES, limits: Limits = NO_LIMITS
) -> StepArena:
    """Place the allocations of a plan's step in one arena, and check the result.

    Raises PlacementMismatchError for a placement that does not hold, a defect of this program.
    """
    lives = step_intervals(plan, escaping=escaping)
    items = [life.interval for life in lives]
    placement = place(items, alignment=alignment, limits=limits)
    check(items, placement)
    return StepArena(plan, lives, placement, escaping)


def to_json(arena: StepArena) -> dict[str, Any]:
    """The arena as JSON data, keys as in arena.schema.json."""
    placement, plan = arena.placement, arena.plan
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": {"file": plan.model.file, "sha256": plan.model.sha256, "fingerprint": plan.model.fingerprint},
        "steps": len(plan.schedule),
        "alignment": placement.alignment,
        "escaping": arena.escaping,
        "arena_nbytes": placement.nbytes,
        "bound_nbytes": placement.bound_nbytes,
        "peak_nbytes": arena.peak_nbytes,
        "ratio": round(arena.ratio, 9),
        "lives": [
            {
                "kind": life.kind.value,
                "names": list(life.names),
                "offset": offset,
                "nbytes": life.nbytes,
                "first_step": life.first_step,
                "last_step": life.last_step,
                "begin": life.begin,
                "end": life.end,
                "escapes": life.escapes,
            }
            for life, offset in zip(arena.lives, placement.offsets, strict=True)
        ],
    }


def dumps(arena: StepArena) -> str:
    """The arena as text, one life a line."""
    return one_key_per_line(to_json(arena), ensure_ascii=False)
