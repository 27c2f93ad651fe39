"""Plans from points of the relaxations, rounded to retention: a point of a low bound often costs little as a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..relaxation.stage_relaxation import Relaxation
from ..retention.annealer import RetentionAnnealer
from .incumbents import Incumbents

_THRESHOLDS = (0.75, 0.5, 0.25)


def round_points(incumbents: Incumbents, annealer: RetentionAnnealer, points: Sequence[Relaxation]) -> None:
    """Offer the roundings of the solved ``points``; a point in integers has one."""
    for point in points:
        if point.solved:
            for threshold in _THRESHOLDS[:1] if _integral(point) else _THRESHOLDS:
                rounded = annealer.from_stages(point, threshold)
                if rounded is not None:
                    incumbents.offer_sequence(*rounded)


def _integral(point: Relaxation) -> bool:
    parts = (point.held, point.recomputations, point.kept, point.remade)
    return all(bool(np.isin(part, (0.0, 1.0)).all()) for part in parts)
