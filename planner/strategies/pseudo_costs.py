"""Which variable to branch on: the gain seen so far per unit of change, by variable and side.

Pseudo-costs as of Benichou et al. (Math. Programming 1971), for the scores of Achterberg, Koch & Martin (OR Letters
2005). A variable not yet seen is ranked by the mean of the others and by how much it decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .linear_program import Floats
from .stage_program import StageProgram

_RELIABLE = 1
"""Once: of a thousand fractional variables hardly one is met four times, which general programs ask for."""


class PseudoCosts:
    """Mean gain in ns per unit of change, of each variable downwards (side 0) and upwards (side 1)."""

    def __init__(self, weight: Floats) -> None:
        self.weight = weight
        self.total = np.zeros((2, len(weight)))
        self.count = np.zeros((2, len(weight)), dtype=np.int64)

    def reliable(self, variable: int) -> bool:
        """Whether both sides were seen often enough to be believed."""
        return bool(self.count[:, variable].min() >= _RELIABLE)

    def learn(self, variable: int, side: int, change: float, gain_ns: float) -> None:
        """A child's bound was ``gain_ns`` above its parent's, whose point was ``change`` away."""
        self.total[side, variable] += gain_ns / max(change, 1e-3)
        self.count[side, variable] += 1

    def ranked(self, point: Floats, variables: NDArray[np.intp]) -> list[int]:
        """The fractional ``variables`` of a point, the most promising first."""
        scores = []
        known = [self.total[side].sum() / max(1, self.count[side].sum()) for side in (0, 1)]
        scale = self.weight[variables].max()
        for variable in variables.tolist():
            x = float(point[variable])
            tilt = self.weight[variable] / scale
            down, up = self._gain(variable, 0, x, known[0] * tilt), self._gain(variable, 1, 1 - x, known[1] * tilt)
            scores.append((-max(down, 1e-3) * max(up, 1e-3), -tilt * min(x, 1 - x), variable))
        return [variable for _, _, variable in sorted(scores)]

    def _gain(self, variable: int, side: int, change: float, default: float) -> float:
        seen = self.count[side, variable]
        return float(change * (self.total[side, variable] / seen if seen else default))


def weights(staged: StageProgram, terms: list[list[tuple[int, int]]]) -> Floats:
    """How much each variable decides: bytes of a storage at a stage above all; ``terms`` are those of each row."""
    weight = np.ones(len(staged.program.cost))
    for q, room in enumerate(staged.rooms):
        largest = max((abs(c) for c, _ in terms[room]), default=1)
        for coefficient, variable in terms[room]:
            weight[variable] = (10.0 + 1000.0 * abs(coefficient) / largest) / (1 + 0.2 * q)
    return weight
