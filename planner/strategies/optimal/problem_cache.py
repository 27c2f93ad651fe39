"""What solves of one problem share, whatever the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock

from ...problem import Problem
from ..baselines.rotor import Rotor
from ..chain.chain import Chain
from ..evaluation.evaluator import Evaluator, Labels
from ..orders.proposals import other_orders
from ..orders.reordered_problem import Orders, default_orders, ordered
from ..relaxation.parametric_min_cut import MinCut
from ..relaxation.stage_relaxation import StageLP
from .alternate_orders import Reordered
from .incumbents import Candidate

_LP_OPS = 2000
"""On larger graphs the minimum cut alone gives the bound."""
_LOW, _LOW_OPS = 0.97, 375
"""The share of the default order's floor above which another one is not worth its time, on graphs of more ops."""


@dataclass(frozen=True)
class Known:
    """Plans under some orders, None for the default ones."""

    prepared: Prepared
    orders: Orders | None
    candidates: tuple[Candidate, ...]

    def orders_in(self, default: Prepared) -> Orders:
        """Its orders, by name where they are those of the ``default`` problem."""
        return self.orders or default_orders(default.problem)

    def starts_in(self, default: Prepared) -> list[Reordered]:
        """Its plans as orders that may be changed are searched from; ``default`` as for `orders_in`."""
        orders, evaluator = self.orders_in(default), self.prepared.evaluator
        return [Reordered(orders, evaluator, plan.sequence, plan.found) for plan in self.candidates]

    @property
    def peak_nbytes(self) -> int:
        """The lowest of their peaks."""
        return min(candidate.found.peak_nbytes for candidate in self.candidates)


@dataclass
class Prepared:
    """A problem with what was already worked out for it.

    Given to several solves, each after the first is faster, and may find less.
    """

    problem: Problem
    lowest: dict[tuple[str, int], tuple[Candidate, ...]] = field(default_factory=dict)
    """Plans of the smallest peak found, by effort and seed; only of searches that ran to their end."""
    lowered: dict[tuple[str, int], Reordered] = field(default_factory=dict)
    """Plans of the smallest peak found when the order may follow the plan; likewise."""
    earlier: dict[tuple[str, int], list[Known]] = field(default_factory=dict)
    """The best plans of solves so far that no other is better than in all, by effort and seed; likewise."""
    unbudgeted: tuple[Labels, ...] = ()
    """Plans of the strategies that know no budget, once they all were asked."""
    _chains: dict[float, Chain] = field(default_factory=dict)
    _alternatives: list[tuple[Orders, Prepared]] = field(default_factory=list)
    _low: tuple[Orders, Prepared] | None = None
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def evaluator(self) -> Evaluator:
        """The problem ready for evaluation."""
        return Evaluator(self.problem)

    @cached_property
    def relaxed(self) -> StageLP | None:
        """The relaxation that bounds the problem at several backward steps; None where it takes too long to solve."""
        return StageLP(self.problem) if self.problem.op_count <= _LP_OPS else None

    @cached_property
    def cut(self) -> MinCut:
        """The relaxation of the first backward step alone, as a minimum cut."""
        return MinCut(self.problem)

    def chain(self, effort: float) -> Chain:
        """The problem as a chain of blocks, whose options were searched with this effort."""
        if effort not in self._chains:
            self._chains[effort] = Chain(self.evaluator.beside(), effort=effort)
        return self._chains[effort]

    @cached_property
    def rotor(self) -> Rotor:
        """The problem as a chain of whole segments."""
        return Rotor(self.evaluator)

    def alternatives(self, count: int, late: Callable[[], bool]) -> list[tuple[Orders, Prepared]]:
        """The same step in the first ``count`` other orders that promise lower peaks, or in as many as there are.

        Once ``late`` those that are there already.
        """
        if self.problem.reorders is not None or not self.problem.backward_order:
            return []
        with self._lock:
            try:
                while len(self._alternatives) < count and not late():
                    orders = next(self._others, None)
                    if orders is None:
                        break
                    self._alternatives.append((orders, Prepared(ordered(self.problem, orders))))
            except BaseException:  # an interrupted search proposes nothing more: begin it anew
                self.__dict__.pop("_others", None)
                self._alternatives.clear()
                raise
            return self._alternatives[:count]

    def low(self, late: Callable[[], bool]) -> tuple[Orders, Prepared] | None:
        """The same step in a backward order of a low floor; None where none is found, or once ``late``.

        On large graphs one that is hardly lower than the default one does not count.
        """
        if self._low is None and not late():
            order = self.problem.low_order(late)
            if late():
                return None
            orders = replace(default_orders(self.problem), backward=order)
            self._low = orders, Prepared(ordered(self.problem, orders))
        if self._low is None:
            return None
        low, default = self._low[1].problem, self.problem
        hardly = low.floor_of_order.nbytes > _LOW * default.floor_of_order.nbytes
        return None if low is default or (hardly and default.op_count > _LOW_OPS) else self._low

    @cached_property
    def _others(self) -> Iterator[Orders]:
        return other_orders(self.problem)
