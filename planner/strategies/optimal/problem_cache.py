"""What solves of one problem share, whatever the budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from ...limits import Limits
from ...problem import Problem
from ..baselines.rotor import Rotor
from ..chain.chain import Chain
from ..evaluation.evaluator import Evaluator, Labels
from ..orders.reordered_problem import Orders, default_orders, ordered
from ..relaxation.parametric_min_cut import MinCut
from ..relaxation.stage_relaxation import StageRelaxation
from .alternate_orders import Reordered
from .incumbents import Candidate


@dataclass(frozen=True)
class KnownPlans:
    """Plans under some orders, None for the default ones."""

    cache: ProblemCache
    orders: Orders | None
    candidates: tuple[Candidate, ...]

    def orders_in(self, default: ProblemCache) -> Orders:
        """The orders; for None those of the ``default`` problem."""
        return self.orders or default_orders(default.problem)

    def starts_in(self, default: ProblemCache) -> list[Reordered]:
        """The plans, each with its orders, for a search that may change them; ``default`` as in `orders_in`."""
        orders, evaluator = self.orders_in(default), self.cache.evaluator
        return [Reordered(orders, evaluator, plan.sequence, plan.found) for plan in self.candidates]

    @property
    def peak_nbytes(self) -> int:
        """The smallest of the plans' peaks."""
        return min(candidate.found.peak_nbytes for candidate in self.candidates)


@dataclass
class ProblemCache:
    """A problem with what was already worked out for it.

    Given to several solves, each after the first is faster, and may find less. Only searches that ran to their end
    leave plans here, under their effort and seed.

    Attributes:
        smallest: Plans of the smallest peak in this order.
        reordered: Plans of the smallest peak in orders made for them.
        earlier: The best plans of solves so far, without those that another one dominates.
        unbudgeted: Plans of the strategies that know no budget, once all were asked.
    """

    problem: Problem
    smallest: dict[tuple[str, int], tuple[Candidate, ...]] = field(default_factory=dict)
    reordered: dict[tuple[str, int], Reordered] = field(default_factory=dict)
    earlier: dict[tuple[str, int], list[KnownPlans]] = field(default_factory=dict)
    unbudgeted: tuple[Labels, ...] = ()
    _chains: dict[float, Chain] = field(default_factory=dict)
    _low: tuple[Orders, ProblemCache] | None = None

    @cached_property
    def evaluator(self) -> Evaluator:
        """The problem ready for evaluation."""
        return Evaluator(self.problem)

    @cached_property
    def relaxed(self) -> StageRelaxation | None:
        """The relaxation at several backward stages; None if it takes too long to solve."""
        return StageRelaxation(self.problem) if not self.problem.large else None

    @cached_property
    def cut(self) -> MinCut:
        """The relaxation of the first backward alone, as a minimum cut."""
        return MinCut(self.problem)

    def chain(self, effort: float) -> Chain:
        """The problem as a chain of blocks, whose options were searched with this effort."""
        if effort not in self._chains:
            self._chains[effort] = Chain(self.evaluator.fork(), effort=effort)
        return self._chains[effort]

    @cached_property
    def rotor(self) -> Rotor:
        """The problem as a chain of whole segments."""
        return Rotor(self.evaluator)

    def low(self, limits: Limits) -> tuple[Orders, ProblemCache] | None:
        """The same step in a backward order of a lower floor than the default one; None if none is found in time."""
        if self._low is None and not limits.out_of_time():
            order = self.problem.low_order(limits.out_of_time)
            if limits.out_of_time():
                return None
            orders = replace(default_orders(self.problem), backward=order)
            self._low = orders, ProblemCache(ordered(self.problem, orders))
        if self._low is None:
            return None
        return None if self._low[1].problem is self.problem else self._low
