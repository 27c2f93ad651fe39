"""Annealing in lanes: threads that start from the same plans and see nothing of each other before all are done.

So the outcome depends neither on how fast a lane is nor on how many of them a machine can run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..labelling.annealer import Annealer
from ..retention.annealer import HoldAnnealer
from .beside import beside, wait_for
from .incumbents import Search

LANES = 2
_OWN_RANDOMS = 1 << 32
"""The seeds of two lanes lie so far apart."""

AnyAnnealer = TypeVar("AnyAnnealer", Annealer, HoldAnnealer)


def annealers_of(kind: type[AnyAnnealer], search: Search) -> tuple[AnyAnnealer, ...]:
    """An annealer for each lane, with random numbers and working memory of its own."""
    made = [kind(search.evaluator, search.seed)]
    for lane in range(1, LANES):
        made.append(made[0].beside(search.seed + lane * _OWN_RANDOMS))
    return tuple(made)


def in_lanes(
    search: Search, annealers: Sequence[AnyAnnealer], work: Callable[[Search, AnyAnnealer, int], None]
) -> None:
    """Let ``work`` go on from where ``search`` is in every lane, and keep the best that any of them finds."""
    lanes = [search, *(search.lane(annealer.evaluator) for annealer in annealers[1:])]
    with beside(search, LANES - 1) as pool:
        others = [pool.submit(work, lanes[n], annealers[n], n) for n in range(1, len(lanes))]
        work(search, annealers[0], 0)
        wait_for(search, others)
    for lane in lanes[1:]:
        search.take(lane)
