"""Which moment becomes a stage next: of those that promise something, the first that is worth its work.

What a stage promises (stage_worth.py) and what it tells differ, and some make a program ten times harder for nothing.
So each is on trial: where the program takes too long with it, or takes long and tells little, the next is tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf

from .cp_sat import Minimum

Moment = int | tuple[int, int]
"""A stage, or a backward position and the op that runs again before it."""
_TRIAL, _PATIENCE = 6.0, 4.0
"""A program may take so much work, as `cp_sat.minimum` counts it, or so many times what it took without the moment."""
_EASY, _EASILY = 0.3, 2.0
"""One that takes no more than so much, or so many times what it took, is no harder for the moment."""
_TELLS = 0.1
"""The share of the gap that a moment must tell otherwise."""
_PROMISING = 0.1
"""Of what the best moment promises, the others must promise so much."""


class StageChoice:
    """The moments that a point suggests, and which of them is on ``trial``, if any."""

    def __init__(self) -> None:
        self.trial: Moment | None = None
        self._options: list[Moment] = []
        self._retired: set[Moment] = set()
        self._took, self._bound_ns = 0.0, 0  # the last program that was solved and kept

    def most(self, work: float) -> float:
        """What of ``work`` the program may take."""
        return work if self.trial is None else min(work, max(_TRIAL, _PATIENCE * self._took))

    def fails(self, found: Minimum, given: float, work: float, incumbent_ns: int) -> bool:
        """Whether the moment on trial is not worth what it takes, seen by what its program came to.

        ``given`` is what it was given of ``work``: where that was all, a program that is not solved tells nothing.
        """
        if self.trial is None or not (found.proven or given < work):
            return False
        if not found.proven:
            return True
        easy = found.work <= max(_EASY, _EASILY * self._took)
        return not easy and found.bound_ns - self._bound_ns < _TELLS * (incumbent_ns - self._bound_ns)

    def keep(self, found: Minimum) -> None:
        """Keep the moment on trial: its program is solved."""
        self.trial, self._took, self._bound_ns = None, found.work, found.bound_ns

    def offer(self, promised: Mapping[Moment, float]) -> Moment:
        """The most promising moment, the first of several, of those that the last point suggests: it is on trial."""
        best = max((ns for ns in promised.values() if not isinf(ns)), default=0.0)
        options = [moment for moment, ns in promised.items() if ns >= _PROMISING * best]
        self._options = sorted(options, key=promised.__getitem__, reverse=True)
        return self._next()

    def retire(self) -> Moment:
        """The next moment instead of the one on trial; the first one again, and for good, where there is no other."""
        assert self.trial is not None
        self._retired.add(self.trial)
        return self._next()

    def _next(self) -> Moment:
        fresh = [moment for moment in self._options if moment not in self._retired]
        if not fresh:
            self._retired.clear()
        self.trial = fresh[0] if fresh else None
        return fresh[0] if fresh else self._options[0]
