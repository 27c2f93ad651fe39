"""Plan and backward order in turn: an order for the plan, then annealing for the order, and again.

Orders chosen before any plan is known (proposals.py) can only guess what will be held. Where the graph branches
the best plan's own order is worth several percent of a step at tight budgets, and decides what can be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...problem import Problem
from ..evaluation.evaluator import Array, Evaluation, Evaluator
from ..orders.order_for_plan import PlanOrders
from ..orders.reordered_problem import Orders, ordered
from ..retention.annealer import HoldAnnealer
from .improve import HOLD_OPS
from .incumbents import rank

_MOVES = (100_000, 10_000, 300_000)
"""Exchanges that a search for an order tries, in turn: few stay near the order there is, where the plan still fits."""
_GUESSES = (0.4, 0.2, 0.6, 0.3)
"""Shares of the saved values taken to be held, in turn, where an order far from the present one is looked for."""
_GUESSED = 3
"""One round of so many looks for such an order, and of the first rounds of so many all where a plan fits."""
_HEATS = (7.0, 2.0, 0.7)
"""Starting temperatures in turn, in units of one forward pass divided by the number of ops."""
_PEAK_HEATS = (0.03, 0.1)
_HOTTEST = 0.2


@dataclass(frozen=True)
class Reordered:
    """A plan (numbered as in the problem under ``orders``) and what it costs."""

    orders: Orders
    evaluator: Evaluator
    sequence: Array
    found: Evaluation

    def rank(self, budget_nbytes: int) -> tuple[int, int]:
        """Less is better, as `search.rank`."""
        return rank(self.found, budget_nbytes)


def rounds_of(problem: Problem, rounds: int) -> int:
    """How many of an effort's ``rounds`` a problem gets: none if it is too large for hold annealing."""
    return rounds if problem.op_count <= HOLD_OPS else 0


def orders_may_follow(problem: Problem) -> bool:
    """Whether there is more than one backward order."""
    return not PlanOrders(problem).forced


def reorder(
    problem: Problem,
    start: Reordered,
    budget_nbytes: int,
    *,
    rounds: int,
    iterations: int,
    seed: int,
    stop: Callable[[], bool],
) -> Reordered:
    """The best plan and orders found from ``start``, a plan of ``problem``, the default one, in its orders.

    A budget that no plan meets is approached: 1 byte asks for the lowest peak. Every round lowers the peak of a plan
    above the budget for half of ``iterations``, and the cost of one within it for all of them; ``stop`` ends it soon.
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
        now = Reordered(orders, evaluator, sequence, evaluator.evaluate_sequence(sequence))
        after = _annealed(now, budget_nbytes, iterations, number, seed, stop)
        now = min(now, after, key=lambda one: one.rank(budget_nbytes))
        if now.rank(budget_nbytes) <= best.rank(budget_nbytes):
            best = now
        if stop():
            break
    return best


def _annealed(
    now: Reordered, budget_nbytes: int, iterations: int, number: int, seed: int, stop: Callable[[], bool]
) -> Reordered:
    """The plan after some annealing under its order: of the peak while that is above the budget, then of the time."""
    annealer = HoldAnnealer(now.evaluator, seed + number)
    sequence, found = now.sequence, now.found

    def late(_: Array) -> bool:
        return stop()

    if found.peak_nbytes > budget_nbytes:
        heat = _PEAK_HEATS[number % len(_PEAK_HEATS)]
        sequence, found = annealer.run(
            sequence, budget_nbytes, iterations // 2, heat=heat, minimise_peak=True, stop=late
        )
    if found.peak_nbytes <= budget_nbytes:
        for heat in (_HEATS[0], _HEATS[number % len(_HEATS)]):
            warm = min(_HOTTEST, heat / now.evaluator.problem.op_count)
            sequence, found = annealer.run(sequence, budget_nbytes, iterations // 2, heat=warm, stop=late)
    return Reordered(now.orders, now.evaluator, sequence, found)
