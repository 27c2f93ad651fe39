"""Plans from points of the relaxations: rounded to retention, and annealed into the budget if they overrun it.

A point of a low bound costs little, and its rounding often overruns the budget at few moments only. A short annealing
from there pays for the overrun and keeps most of what the point retains, so it finds plans that annealing from a plan
within the budget does not find. If the bound is so low that it says hardly anything, it finds none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..evaluation.evaluator import Array
from ..relaxation.stage_relaxation import Relaxation
from ..retention.annealer import RetentionAnnealer
from .improve import retention_iterations
from .incumbents import Incumbents
from .parallel import anneal_in_parallel

_THRESHOLDS = (0.75, 0.5, 0.25)
_HEATS = (0.3, 1.0)
"""Starting temperatures, in units of a forward pass divided by the number of ops; each thread has its own."""
_ANNEALED = 2
"""The number of points, the first ones, that are annealed from."""
_HOPELESS = 0.5
"""With a gap wider than this share of the step the points tell little of plans, and only a thorough effort anneals
from them."""


def round_points(
    incumbents: Incumbents, annealers: Sequence[RetentionAnnealer], points: Sequence[Relaxation], *, share: float = 1.0
) -> None:
    """Offer the roundings of the solved ``points``, then what annealing makes of those above the budget.

    ``share`` of the effort's work is done.
    """
    overruns: list[Array] = []
    for number, point in enumerate(point for point in points if point.solved):
        for threshold in _THRESHOLDS[:1] if _integral(point) else _THRESHOLDS:
            rounded = annealers[0].from_stages(point, threshold)
            if rounded is not None:
                sequence, found = rounded
                incumbents.offer_sequence(sequence, found)
                known = any(np.array_equal(sequence, other) for other in overruns)
                if found.peak_nbytes > incumbents.budget_nbytes and number < _ANNEALED and not known:
                    overruns.append(sequence)
    _anneal(incumbents, annealers, overruns, share)


def _integral(point: Relaxation) -> bool:
    return all(
        bool(np.isin(part, (0.0, 1.0)).all()) for part in (point.held, point.recomputations, point.kept, point.remade)
    )


def _anneal(
    incumbents: Incumbents, annealers: Sequence[RetentionAnnealer], overruns: Sequence[Array], share: float
) -> None:
    """Anneal each of the plans above the budget at every heat, if that promises something."""
    iterations = retention_iterations(
        annealers[0], share * incumbents.worth() * incumbents.effort.roundings, incumbents.effort
    )
    tasks = [(sequence, heat) for sequence in overruns for heat in _HEATS]
    hopeless = incumbents.best is not None and incumbents.gap() > _HOPELESS and not incumbents.effort.thorough
    if not tasks or not iterations or hopeless or incumbents.settled() or incumbents.out_of_time():
        return
    incumbents.say("rounding into the budget")

    def work(fork: Incumbents, annealer: RetentionAnnealer, number: int) -> None:
        def stop(found: Array) -> bool:
            fork.offer_sequence(found)
            return fork.out_of_time() or fork.settled()

        for sequence, heat in tasks[number :: len(annealers)]:
            if fork.out_of_time() or fork.settled():
                return
            start = heat / max(1, fork.problem.op_count)
            fork.offer_sequence(*annealer.run(sequence, fork.budget_nbytes, iterations, heat=start, stop=stop))

    anneal_in_parallel(incumbents, annealers, work)
