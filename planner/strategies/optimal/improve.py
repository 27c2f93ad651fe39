"""Lower the cost of the best plan by annealing: its retention, or its labels on graphs too large for that."""

from __future__ import annotations

from collections.abc import Sequence

from ..evaluation.evaluator import Array, Labels
from ..labelling.annealer import Annealer
from ..retention.annealer import RetentionAnnealer
from .effort import share_of
from .incumbents import Incumbents
from .parallel import anneal_in_parallel

_ITERATIONS_PER_PAIR = 100
"""The most iterations for every pair of storages, so that small graphs take milliseconds."""

_RESTARTS = ((0.01, 2), (0.03, 1), (0.1, 2), (0.3, 1))
"""Starting temperature, in units of one forward pass, and levels of checkpoints of each restart in a thread."""

_RETENTION_HEAT = 7.0
"""Starting temperature of retention annealing, in units of one forward pass divided by the number of ops."""
_HOTTEST = 0.2
RETENTION_OPS = 1500
"""A retention matrix has ops times backwards entries; on larger graphs labels and the chain must do."""


def iterations_of(movable: int, work: int) -> int:
    """Iterations of an annealing that may do ``work`` of them over ``movable`` storages."""
    return min(work, _ITERATIONS_PER_PAIR * movable * movable)


def retention_iterations(annealer: RetentionAnnealer, work: float) -> int:
    """Iterations of a retention annealing that may do ``work`` of them on a graph of moderate size."""
    share = share_of(annealer.evaluator.problem.op_count)
    return iterations_of(len(annealer.arrays.movable), int(work * share))


def improve_labels(incumbents: Incumbents, annealers: Sequence[Annealer], *, share: float = 1.0) -> None:
    """Restart from the best labelling over a spread of heats, in two levels of checkpoints and one; then finish cool.

    No single heat serves every network of models/plan_benchmark. ``share`` of the effort's work is done.
    """
    if incumbents.best_labels is None:
        return
    ops = max(1, incumbents.problem.op_count)
    work = max(2000, int(share * incumbents.worth() * incumbents.effort.search.label_work) // ops)
    iterations = iterations_of(len(annealers[0].movable), work) // len(annealers)
    cool = min(0.03, 1.5 / ops) / 2
    origin = incumbents.best_labels.labels

    def run(fork: Incumbents, annealer: Annealer, start: Labels | None, part: int, heat: float, levels: int) -> None:
        def stop(labels: Labels) -> bool:
            fork.offer(labels)
            fork.say("improving the plan")
            return fork.out_of_time() or fork.settled()

        if not fork.out_of_time() and not fork.settled():
            assert start is not None
            fork.offer(
                *annealer.run(start, fork.budget_nbytes, iterations // part, heat=heat, levels=levels, stop=stop)
            )

    def restart(fork: Incumbents, annealer: Annealer, _: int) -> None:
        for heat, levels in _RESTARTS:
            run(fork, annealer, origin, 2 * len(_RESTARTS), heat, levels)

    def finish(fork: Incumbents, annealer: Annealer, number: int) -> None:
        levels = 1 + number % 2
        assert fork.best_labels is not None
        run(fork, annealer, fork.best_labels.labels, 2, cool / levels, levels)

    anneal_in_parallel(incumbents, annealers, restart)
    anneal_in_parallel(incumbents, annealers, finish)


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
            heat = min(_HOTTEST, _RETENTION_HEAT / max(1, fork.problem.op_count))
            fork.offer_sequence(*annealer.run(fork.best.sequence, fork.budget_nbytes, iterations, heat=heat, stop=stop))

    anneal_in_parallel(incumbents, annealers, cool)
