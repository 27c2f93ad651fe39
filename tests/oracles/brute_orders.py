"""Exact optima of small problems where forward and backward orders are free.

Class of plans: every legal forward order (dependencies.py), then every legal backward order, with recomputations as
in brute.py. A state is (forwards done, backwards done, what is alive), each a bitmask. Gradients held between
backwards depend on which have run, not on their order, so they are found once for each set.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ogc_plan.planner.dependencies import Predecessors, backward_predecessors, forward_predecessors
from ogc_plan.planner.problem import Problem, gradient_memory
from ogc_plan.planner.solution import Decisions

from tests.oracles.brute import Search, State, smallest_within


def best_in_any_order(problem: Problem, budget_nbytes: int) -> tuple[int, Decisions] | None:
    """(least recomputation in ns, decisions that reach it) within the budget, or None when there is no plan."""
    found = _AnyOrder(problem).cheapest(budget_nbytes)
    return None if found is None else (found[0], Decisions(found[1]))


def minimum_peak_in_any_order(problem: Problem) -> int:
    """The smallest peak in bytes, under the problem's scope, that any plan of the class reaches."""
    return smallest_within(_AnyOrder(problem))


def _masks(predecessors: Predecessors) -> list[int]:
    return [sum(1 << earlier for earlier in before) for before in predecessors]


class _AnyOrder(Search):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.forward_before = _masks(forward_predecessors(self.graph))
        self.backward_before = _masks(backward_predecessors(self.graph))
        self.every_backward = sum(1 << op for op in problem.backward_order)
        self.goal = ((1 << self.ops) - 1, self.every_backward)
        self.useful_after = cache(self._useful_after)
        self.gradients = cache(self._gradients)

    def _useful_after(self, forwards: int, backwards: int) -> int:
        """Everything that a computation could read once these have run."""
        needed = 0
        for op in range(self.ops):
            if not forwards >> op & 1:
                needed |= self.reads[op]
        for op, reads in zip(self.problem.backward_order, self.backward_reads, strict=True):
            if not backwards >> op & 1:
                needed |= reads
        for op in range(self.ops - 1, -1, -1):
            if self.writes[op] & needed and not (self.graph.ops[op].once and forwards >> op & 1):
                needed |= self.reads[op] | self.state_bit[op]
        return needed

    def _gradients(self, backwards: int, following: int) -> tuple[int, int]:
        """(bytes before, bytes during) a backward that follows those that have run."""
        order = self.problem.backward_order
        ran = [op for op in order if backwards >> op & 1]
        rest = [op for op in order if not backwards >> op & 1 and op != following]
        during, between = gradient_memory(self.graph, self.problem.costs, (*ran, following, *rest), self.problem.scope)
        return int(between[len(ran)]) + self.problem.base_nbytes, int(during[len(ran)]) + self.problem.base_nbytes

    def moves(self, state: State, budget: int) -> Iterator[tuple[int, int, State]]:
        """(cost in ns, entry of the sequence, next state) for every computation that can come next."""
        forwards, backwards, alive = state
        useful = self.useful_after(forwards, backwards)
        base = self.problem.base_nbytes
        if forwards != self.goal[0]:
            for op in range(self.ops):
                if forwards >> op & 1 or self.forward_before[op] & ~forwards:
                    continue
                yield from self._first_run(op, state, budget)
        else:
            for position, op in enumerate(self.problem.backward_order):
                if backwards >> op & 1 or self.backward_before[op] & ~backwards:
                    continue
                base, during = self.gradients(backwards, op)
                required = self.backward_reads[position] | self.pinned
                if required & ~alive == 0:
                    after = self.useful_after(forwards, backwards | 1 << op) | self.pinned
                    room = budget - during - self.size(required)
                    for kept in self.subsets(alive & ~required, room) if room >= 0 else ():
                        yield 0, ~op, (forwards, backwards | 1 << op, (kept | required) & after)
        for op in range(self.ops):
            if forwards >> op & 1 and not self.graph.ops[op].once:
                yield from self._recomputations(op, state, useful, budget - base)

    def _first_run(self, op: int, state: State, budget: int) -> Iterator[tuple[int, int, State]]:
        forwards, backwards, alive = state
        required = self.reads[op] | self.pinned & alive
        if required & ~alive:
            return
        after = self.useful_after(forwards | 1 << op, backwards) | self.pinned
        for saved in {0, self.state_bit[op]}:
            made = self.writes[op] | saved
            room = budget - self.problem.base_nbytes - self.workspace[op] - self.size(made | required)
            for kept in self.subsets(alive & ~required, room) if room >= 0 else ():
                yield 0, op, (forwards | 1 << op, backwards, (kept | required | made) & after)

    def _recomputations(self, op: int, state: State, useful: int, room: int) -> Iterator[tuple[int, int, State]]:
        forwards, backwards, alive = state
        required = self.reads[op] | self.state_bit[op]
        if required & ~alive or not self.writes[op] & useful & ~alive:
            return
        required |= self.pinned & alive
        made = self.writes[op] & ~self.pinned
        room -= self.workspace[op] + self.size(self.writes[op] & self.pinned) + self.size(made | required)
        for kept in self.subsets(alive & ~made & ~required, room) if room >= 0 else ():
            yield self.forward_ns[op], op, (forwards, backwards, (kept | required | made) & (useful | self.pinned))
