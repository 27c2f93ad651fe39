"""The one-stage relaxation as a parametric minimum cut: bounds and kept sets for graphs of any size.

With the first backward as its only stage, the relaxation of stage_relaxation.py asks which storages to keep to it
(E[t]) and which ops to run again after it (R[i]). Priced per byte instead of bounded by the budget, the
memory row leaves a closure problem: making a value available by a recomputation makes its inputs available too
(Picard, Management Science 1976). Its minimum cut is integral, so the best price gives the optimum of the
linear program (Lagrangian duality; Geoffrion 1974). The price is found by intersecting the lines of the two
kept sets that bracket the budget until no kept set lies below (Kelley's cutting planes in one dimension).

A bound is the value of a flow that max_flow.py has checked in integers, so a solver's mistake can make it
weak but not false. The cuts found at a price are kept for all budgets, but which prices are tried for one budget
does not depend on those before: kept sets that cost the same would tell it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

import numpy as np
from numpy.typing import NDArray

from ...problem import Problem
from .max_flow import MAX_TOTAL, Network, checked_value, maximum_flow

Flags = NDArray[np.bool_]
_MAX_CUTS = 60
"""Maximum flows that one budget may take; networks take 5 to 15."""
_PRICES = 24
"""Prices tried until a kept set fits, each 8 times the last."""


@dataclass(frozen=True, slots=True)
class KeptSet:
    """What a cut keeps to the first backward, shape [storages], its bytes, and the recomputation of the rest in ns."""

    recompute_ns: int
    nbytes: int
    kept: Flags

    def worth(self, price: Fraction) -> int:
        """Time plus priced bytes, a whole number of ns divided by the price's denominator: quickly compared."""
        return self.recompute_ns * price.denominator + self.nbytes * price.numerator


class MinCut:
    """The parametric cut of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        graph, ops = problem.graph, problem.op_count
        free = problem.nbytes == 0
        free[list(problem.pinned)] = True
        producer = problem.producer.tolist()
        once = [op.once for op in graph.ops]
        first: set[int] = set()
        needed: set[int] = set()
        for position, op in enumerate(problem.backward_order):
            backward = graph.ops[op].backward
            assert backward is not None
            (needed if position else first).update(s for s in backward.reads if not free[s])
        lasting = {s for s in needed if once[producer[s]]} | first  # all that must be alive at the first backward
        needed -= lasting
        useful = [False] * ops
        for storage in needed:
            useful[producer[storage]] = True
        wanted: dict[int, int] = {}  # what only recomputations read -> its node
        for op in range(ops - 1, -1, -1):
            for storage in graph.ops[op].reads if useful[op] else ():
                if not free[storage] and storage not in lasting and storage not in needed:
                    wanted.setdefault(storage, ops + 2 + len(wanted))
                    useful[producer[storage]] |= not once[producer[storage]]
        source, sink = ops, ops + 1
        arcs = [(op, sink, -1, op) for op in range(ops) if useful[op]]
        arcs += [(source, producer[s], s, -1) for s in sorted(needed)]
        arcs += [(node, sink if once[producer[s]] else producer[s], s, -1) for s, node in wanted.items()]
        readers = [
            (op, s) for op in range(ops) if useful[op] for s in dict.fromkeys(graph.ops[op].reads) if s in wanted
        ]
        arcs += [(op, wanted[s], s, -1) for op, s in readers]
        table = np.array(arcs, dtype=np.int64).reshape(-1, 4)
        self._network = Network(ops + 2 + len(wanted), source, sink, table[:, 0].copy(), table[:, 1].copy())
        self._storage, self._op = table[:, 2].copy(), table[:, 3].copy()
        self._lasting = np.array(sorted(lasting), dtype=np.int64)
        self._needed = np.array(sorted(needed), dtype=np.int64)
        self._reader = np.array([op for op, _ in readers], dtype=np.int64)
        self._read = np.array([storage for _, storage in readers], dtype=np.int64)
        self._useful = np.array(useful, dtype=np.bool_)
        self._unit = max(1, gcd(*problem.nbytes[sorted(lasting | needed | wanted.keys())].tolist()))
        self._total_ns = int(problem.forward_ns[self._useful].sum())
        self._solved: dict[Fraction, tuple[Fraction, list[KeptSet]]] = {}
        self._supports = {Fraction(0): Fraction(0)}  # price -> at least this much time plus priced bytes
        self._known = [self._kept_set(np.zeros(self._network.nodes, dtype=np.bool_))]  # the best one at no price

    def afresh(self) -> MinCut:
        """The same cut before any price was tried; it shares the network and the flows."""
        other = copy(self)
        other._supports, other._known = {Fraction(0): Fraction(0)}, self._known[:1]
        return other

    def _kept_set(self, side: Flags) -> KeptSet:
        """The kept set of a cut with the ops that are run again on one ``side``: what they or a backward read."""
        problem, producer = self.problem, self.problem.producer
        again = side[: problem.op_count] & self._useful
        kept = np.zeros(len(producer), dtype=np.bool_)
        kept[self._needed] = True
        kept[self._read[again[self._reader]]] = True
        kept &= ~again[producer]
        kept[self._lasting] = True
        return KeptSet(int(problem.forward_ns[again].sum()), int(problem.nbytes[kept].sum()), kept)

    def _solve(self, price: Fraction) -> None:
        """Remember the cheapest kept sets at a price in ns per byte, and the support that the flow proves."""
        if price not in self._solved:
            self._solved[price] = self._flow(price)
        self._supports[price], sets = self._solved[price]
        self._known += sets

    def _flow(self, price: Fraction) -> tuple[Fraction, list[KeptSet]]:
        count = len(self._op)
        most = MAX_TOTAL // (count + 1)
        scale = 1 << max(0, (most // (self._total_ns + 1)).bit_length() - 1)
        runs = self._op >= 0
        sizes, inverse = np.unique(self.problem.nbytes[self._storage[~runs]], return_inverse=True)
        priced = [min(most, price.numerator * scale * size // price.denominator) for size in sizes.tolist()]
        capacity = np.zeros(count, dtype=np.int64)
        capacity[runs] = self.problem.forward_ns[self._op[runs]] * scale
        capacity[~runs] = np.array(priced, dtype=np.int64)[inverse]
        found = maximum_flow(self._network, capacity)
        value = checked_value(self._network, capacity, found.flow)
        lasting = price * int(self.problem.nbytes[self._lasting].sum())
        support = lasting + (Fraction(value, scale) if value is not None else 0)
        return support, [self._kept_set(side) for side in (found.smallest, found.largest)]

    def bracket(self, budget_nbytes: int) -> tuple[KeptSet, KeptSet]:
        """(within, above): two kept sets that are cheapest at one price, the first within the budget.

        Both are the set that recomputes nothing where that fits the first backward, and the smallest one
        where none does.
        """
        room = self._room(budget_nbytes)
        above = self._known[0]
        if above.nbytes <= room:
            return above, above
        within = min(self._known, key=lambda known: known.nbytes)
        price = Fraction(self._total_ns + 1, int(self.problem.nbytes.sum()))
        for _ in range(_PRICES):
            if within.nbytes <= room:
                break
            if price not in self._supports:
                self._solve(price)
            within = min(self._known, key=lambda known: known.nbytes)
            price *= 8
        else:
            return within, within
        for _ in range(_MAX_CUTS):
            price = Fraction(within.recompute_ns - above.recompute_ns, above.nbytes - within.nbytes)
            best = min(self._known, key=lambda known: known.worth(price))
            if best.worth(price) == within.worth(price):
                if price in self._supports:
                    break
                self._solve(price)
            elif best.nbytes <= room:
                within = best
            else:
                above = best
        return within, above

    def bound_ns(self, budget_nbytes: int) -> int:
        """A certified lower bound in ns, of stage_lp.BOUND_CLASS."""
        self.bracket(budget_nbytes)
        room = self._room(budget_nbytes)
        bound = max(value - price * room for price, value in self._supports.items())
        return -(-bound.numerator // bound.denominator)

    def _room(self, budget_nbytes: int) -> int:
        """What kept sets may hold during the first backward: a multiple of the unit of their sizes."""
        if not self.problem.backward_order:
            return budget_nbytes
        return (
            (budget_nbytes - int(self.problem.during_nbytes[0]) - self.problem.pinned_nbytes) // self._unit * self._unit
        )
