"""Orders made for plans again and again, from several of them: one run often ends where another one does not.

The runs share threads and see nothing of each other, so their outcome does not depend on how many are done at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...problem import Problem
from .alternate_orders import Reordered, reorder
from .beside import beside, wait_for
from .incumbents import Search
from .parallel import LANES

_OWN_SEEDS = 1 << 20
"""The seeds of two runs lie so far apart."""


def reorder_in_lanes(
    problem: Problem,
    starts: Sequence[Reordered],
    search: Search,
    budget_nbytes: int,
    *,
    rounds: int,
    restarts: int,
    iterations: int,
) -> Reordered:
    """The best plan and orders of so many runs of so many rounds from each of ``starts``, or the best of these.

    As `reorder`; ``search`` is asked whether to stop.
    """
    found: list[Reordered] = [*starts]

    def run(at: int, start: Reordered, seed: int) -> None:
        own = replace(start, evaluator=start.evaluator.beside())
        found[at] = reorder(
            problem, own, budget_nbytes, rounds=rounds, iterations=iterations, seed=seed,
            stop=lambda: search.stopped_early,
        )  # fmt: skip

    jobs = [(start, search.seed + _OWN_SEEDS * restart) for restart in range(restarts) for start in starts]
    found += [start for start, _ in jobs]
    with beside(search, LANES) as pool:
        work = [pool.submit(run, len(starts) + number, *job) for number, job in enumerate(jobs)]
        wait_for(search, work)
    return min(found, key=lambda one: one.rank(budget_nbytes))
