"""Lower the cost of the best plan by annealing its retention."""

from __future__ import annotations

from collections.abc import Sequence

from ..evaluation.evaluator import Array
from ..retention.annealer import RetentionAnnealer
from .effort import share_of
from .incumbents import Incumbents
from .parallel import anneal_in_parallel

_ITERATIONS_PER_PAIR = 100
"""The most iterations for every pair of storages, so that small graphs take milliseconds."""

HEAT = 7.0
"""Starting temperature of annealing for cost, in units of one forward pass divided by the number of ops."""
_HOTTEST = 0.2
"""The highest starting temperature, in units of one forward pass."""


def cost_heat(op_count: int, heat: float = HEAT) -> float:
    """The starting temperature of annealing for cost, in units of one forward pass."""
    return min(_HOTTEST, heat / max(1, op_count))


def iterations_of(movable: int, work: int) -> int:
    """Iterations of an annealing that may do ``work`` of them over ``movable`` storages."""
    return min(work, _ITERATIONS_PER_PAIR * movable * movable)


def retention_iterations(annealer: RetentionAnnealer, work: float) -> int:
    """Iterations of a retention annealing that may do ``work`` of them on a graph of moderate size."""
    share = share_of(annealer.evaluator.problem.op_count)
    return iterations_of(len(annealer.arrays.movable), int(work * share))


def improve_retention(incumbents: Incumbents, annealers: Sequence[RetentionAnnealer], *, share: float = 1.0) -> None:
    """Anneal retention from the best plan of any kind, for ``share`` of the effort's work."""
    work = share * incumbents.worth() * incumbents.effort.search.iterations
    iterations = retention_iterations(annealers[0], work) // len(annealers)

    def cool(fork: Incumbents, annealer: RetentionAnnealer, _: int) -> None:
        def stop(sequence: Array) -> bool:
            fork.offer_sequence(sequence)
            fork.say("improving the plan")
            return fork.out_of_time() or fork.settled()

        if fork.best is not None and not fork.out_of_time() and not fork.settled():
            heat = cost_heat(fork.problem.op_count)
            fork.offer_sequence(*annealer.run(fork.best.sequence, fork.budget_nbytes, iterations, heat=heat, stop=stop))

    anneal_in_parallel(incumbents, annealers, cool)
