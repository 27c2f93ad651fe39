"""Alternate between plan and order: reorder the backward for the plan, anneal the plan in that order, and repeat.

On graphs with branches the order made for the best plan is worth several percent of a step at tight budgets, and
decides what can be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...limits import Limits
from ...problem import Problem
from ..evaluation.evaluator import Array, Evaluation, Evaluator
from ..orders.order_for_plan import PlanOrders
from ..orders.reordered_problem import Orders, ordered
from ..retention.annealer import RetentionAnnealer
from .effort import OrderEffort, share_of
from .improve import HEAT, cost_heat
from .incumbents import rank
from .parallel import threads

_MOVES = (100_000, 10_000, 300_000)
"""Exchanges that a search for an order tries, in turn: a few stay near the present order, where the plan still fits."""
_GUESSES = (0.4, 0.2, 0.6, 0.3)
"""Shares of the saved values taken to be retained, in turn, by a search for an order far from the present one."""
_GUESSED = 3
"""One round in so many looks for such an order; within the budget so does each of the first rounds, as many in all."""
_HEATS = (HEAT, 2.0, 0.7)
"""Starting temperatures in turn, as `cost_heat` takes them."""
_PEAK_HEATS = (0.03, 0.1)
_SEED_STRIDE = 1 << 20
"""The distance between the seeds of two restarts."""


@dataclass(frozen=True)
class Reordered:
    """A plan (numbered as in the problem under ``orders``) and what it costs."""

    orders: Orders
    evaluator: Evaluator
    sequence: Array
    found: Evaluation

    def rank(self, budget_nbytes: int) -> tuple[int, int]:
        """A key by which better plans come first, as `incumbents.rank`."""
        return rank(self.found, budget_nbytes)


def reorder_in_parallel(
    problem: Problem,
    starts: Sequence[Reordered],
    budget_nbytes: int,
    effort: OrderEffort,
    *,
    seed: int,
    limits: Limits,
) -> Reordered:
    """The best of ``starts`` and of what runs of `reorder` find from them: runs often end in different places.

    The runs see nothing of each other, so the outcome does not depend on how many are done at once. There are none on
    graphs too large for retention annealing.
    """
    iterations = int(effort.iterations * share_of(problem.op_count))
    restarts = effort.restarts if not problem.large else 0
    with threads(limits) as team:
        runs = [
            team.start(
                reorder, problem, replace(start, evaluator=start.evaluator.fork()), budget_nbytes, rounds=effort.rounds,
                iterations=iterations, seed=seed + _SEED_STRIDE * restart, limits=team.limits,
            )
            for restart in range(restarts)
            for start in starts
        ]  # fmt: skip
        team.join()
    return min([*starts, *(run.result() for run in runs)], key=lambda found: found.rank(budget_nbytes))


def reorder(
    problem: Problem,
    start: Reordered,
    budget_nbytes: int,
    *,
    rounds: int,
    iterations: int,
    seed: int,
    limits: Limits,
) -> Reordered:
    """The best plan and orders found from ``start``, a plan of ``problem``, the default one, in its orders.

    A budget that no plan meets is approached: 1 byte asks for the smallest peak. Every round lowers the peak of a plan
    above the budget for half of ``iterations``, and the cost of a plan within it for all of them.
    """
    searched = PlanOrders(problem)
    best = start
    if searched.forced:
        return best
    for number in range(rounds):
        early = number < rounds // _GUESSED and start.found.peak_nbytes <= budget_nbytes
        far = early or number % _GUESSED == 0
        orders, sequence = searched.better(
            best.evaluator,
            best.orders,
            best.sequence,
            moves=max(_MOVES) if far else _MOVES[number % len(_MOVES)],
            seed=seed + number,
            guess=_GUESSES[number // (1 if early else _GUESSED) % len(_GUESSES)] if far else None,
        )
        evaluator = Evaluator(ordered(problem, orders))
        moved = Reordered(orders, evaluator, sequence, evaluator.evaluate_sequence(sequence))
        annealed = _annealed(moved, budget_nbytes, iterations, number, seed, limits)
        now = min(moved, annealed, key=lambda found: found.rank(budget_nbytes))
        if now.rank(budget_nbytes) <= best.rank(budget_nbytes):
            best = now
        if limits.out_of_time():
            break
    return best


def _annealed(
    start: Reordered, budget_nbytes: int, iterations: int, number: int, seed: int, limits: Limits
) -> Reordered:
    """A plan annealed in its orders: its peak while that is above the budget, then its time."""
    annealer = RetentionAnnealer(start.evaluator, seed + number)
    sequence, found = start.sequence, start.found
    if found.peak_nbytes > budget_nbytes:
        heat = _PEAK_HEATS[number % len(_PEAK_HEATS)]
        sequence, found = annealer.run(
            sequence, budget_nbytes, iterations // 2, heat=heat, minimise_peak=True, stop=lambda _: limits.out_of_time()
        )
    if found.peak_nbytes <= budget_nbytes:
        for heat in (_HEATS[0], _HEATS[number % len(_HEATS)]):
            warm = cost_heat(start.evaluator.problem.op_count, heat)
            sequence, found = annealer.run(
                sequence, budget_nbytes, iterations // 2, heat=warm, stop=lambda _: limits.out_of_time()
            )
    return Reordered(start.orders, start.evaluator, sequence, found)
