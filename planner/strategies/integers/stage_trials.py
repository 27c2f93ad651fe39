"""Which moment becomes a stage next: of those that promise something, the first that is worth its work.

What a stage promises (stage_scores.py) and what it tells differ, and some make a program ten times harder for nothing.
So each is on trial: where the program takes too long with it, or takes long and tells little, the next is tried. Where
all fail, the one that told most is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf

from .cp_sat import Minimum

Place = int | tuple[int, int]
"""A stage, or a backward position and the op that runs again before it."""
_TRIAL, _PATIENCE = 6.0, 4.0
"""A program may take so much work, as `cp_sat.minimum` counts it, or so many times what it took without the stage."""
_EASY, _EASILY = 0.3, 2.0
"""One that takes no more than so much, or so many times what it took, is no harder for the stage."""
_TELLS = 0.1
"""The share of the gap that a stage must tell otherwise."""
_PROMISING = 0.1
"""Of what the best place promises, the others must promise so much."""


class StageTrials:
    """The places that a point suggests, which of them is on ``trial``, if any, and which have ``failed`` by now."""

    def __init__(self) -> None:
        self.trial: Place | None = None
        self.failed: dict[Place, Minimum] = {}
        self._options: list[Place] = []
        self._took, self._bound_ns = 0.0, 0  # the last program that was solved and kept

    def most(self, work: float) -> float:
        """What of ``work`` the program may take."""
        return work if self.trial is None else min(work, max(_TRIAL, _PATIENCE * self._took))

    def fails(self, found: Minimum, incumbent_ns: int, *, cut_short: bool) -> bool:
        """Whether the place on trial is not worth what it takes, seen by what its program came to.

        One that was not solved tells nothing where it was not ``cut_short``, but given all the work there was.
        """
        if self.trial is None or not (found.proven or cut_short):
            return False
        if not found.proven:
            return True
        easy = found.work <= max(_EASY, _EASILY * self._took)
        return not easy and found.bound_ns - self._bound_ns < _TELLS * (incumbent_ns - self._bound_ns)

    def keep(self, found: Minimum) -> None:
        """Keep what is on trial: its program is solved."""
        self.trial, self._took, self._bound_ns = None, found.work, found.bound_ns

    def offer(self, promised: Mapping[Place, float]) -> Place:
        """Put the most promising of the places that the last point suggests on trial, of several the first.

        Those that failed are left out unless all did.
        """
        if all(place in self.failed for place in promised):
            self.failed.clear()
        fresh = {place: ns for place, ns in promised.items() if place not in self.failed}
        best = max((ns for ns in fresh.values() if not isinf(ns)), default=0.0)
        options = [place for place, ns in fresh.items() if ns >= _PROMISING * best]
        self._options = sorted(options, key=promised.__getitem__, reverse=True)
        self.trial = self._options[0]
        return self.trial

    def retire(self, found: Minimum) -> Place:
        """What takes the place of the one on trial, whose program came to ``found``: the next, as long as there is one.

        Otherwise the one that told most, no longer on trial: ``failed`` has what its program came to. Of those that
        were not solved the first.
        """
        assert self.trial is not None
        self.failed[self.trial] = found
        fresh = [place for place in self._options if place not in self.failed]
        self.trial = fresh[0] if fresh else None
        return fresh[0] if fresh else max(self._options, key=self._told)

    def _told(self, place: Place) -> int:
        found = self.failed[place]
        return found.bound_ns if found.proven else -1
