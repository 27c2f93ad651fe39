"""Exact optima of small problems by search over memory states, for checking bounds and strategies.

Class of plans: forwards in the given order, then backwards in the default order, with any op that may be run
again run any number of times at any moment after its first run. A state is (forwards done, backwards done,
what is alive), where alive is a bitmask of storages and, above them, saved generator states.

Why it stays exact although it never branches on a single drop: dropping is free, and holding more never costs
time later, so a storage is only dropped when the next computation would not fit otherwise, and then only sets
that are maximal among those that fit are kept. Two kinds of storages are dropped at once: those nothing later
can need, and the outputs of an op just before it runs again (they would be held twice).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from heapq import heappop, heappush

from ogc_plan.planner.problem import Problem
from ogc_plan.planner.solution import Decisions

State = tuple[int, int, int]  # forwards done, backwards done, alive mask


def minimum_recompute_ns(problem: Problem, budget_nbytes: int) -> int | None:
    """The least recomputation time in ns whose peak is within the budget, or None when there is no plan."""
    found = Search(problem).cheapest(budget_nbytes)
    return None if found is None else found[0]


def best_decisions(problem: Problem, budget_nbytes: int) -> Decisions | None:
    """One order of computations that reaches `minimum_recompute_ns`."""
    found = Search(problem).cheapest(budget_nbytes)
    return None if found is None else Decisions(found[1])


def minimum_peak(problem: Problem) -> int:
    """The smallest peak in bytes, under the problem's scope, that any plan of the class reaches.

    By bisection on the budget: a plan within M is a plan within any larger M.
    """
    return smallest_within(Search(problem))


def smallest_within(search: Search) -> int:
    """The smallest budget in bytes within which a search finds a plan."""
    low, high = -1, search.keep_all_peak()
    while high - low > 1:  # low is out of reach, high is within
        middle = (low + high) // 2
        if search.cheapest(middle) is not None:
            high = middle
        else:
            low = middle
    return high


class Search:
    """Dijkstra over the memory states of one problem; `moves` says what can come next."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        once = {storage for op in graph.ops if op.once for storage in op.writes}
        assert not problem.keep - once | problem.recompute, "wishes of the user are not searched"
        self.problem, self.graph = problem, graph
        self.ops = len(graph.ops)
        self.goal = (self.ops, len(problem.backward_order))
        self.backwards = [graph.ops[i].backward for i in problem.backward_order]
        self.bit, self.sizes = _bundles(problem)
        self.state_bit = [0] * self.ops
        for index, op in enumerate(graph.ops):
            if op.random_state_nbytes:
                self.state_bit[index] = 1 << len(self.sizes)
                self.sizes.append(op.random_state_nbytes)
        self.reads = [self.mask(op.reads) for op in graph.ops]
        self.writes = [self.mask(op.writes) for op in graph.ops]
        self.backward_reads = [self.mask(backward.reads) for backward in self.backwards if backward is not None]
        self.pinned = self.mask(graph.outputs)
        self.forward_ns = [cost.forward_ns for cost in problem.costs]
        self.workspace = [cost.forward_workspace_nbytes for cost in problem.costs]
        self.during = [int(x) for x in problem.during_nbytes]
        self.between = [int(x) for x in problem.between_nbytes]
        self._size: dict[int, int] = {}
        self._kept: dict[tuple[int, int], tuple[int, ...]] = {}

    def size(self, mask: int) -> int:
        known = self._size.get(mask)
        if known is None:
            known = self._size[mask] = sum(self.sizes[bit] for bit in _bits(mask))
        return known

    def mask(self, storages: tuple[int, ...]) -> int:
        """The bundles that hold ``storages``."""
        mask = 0
        for storage in storages:
            mask |= 1 << self.bit[storage]
        return mask

    @cached_property
    def useful(self) -> list[int]:
        """For each (forwards done + backwards done): everything that a later computation could read."""
        steps = [*self.reads, *self.backward_reads]
        masks = [0] * (len(steps) + 1)
        for position in range(len(steps) - 1, -1, -1):
            needed = masks[position + 1] | steps[position]
            # What could be needed may itself be run again, by ops that have run or will have run by then.
            for op in range(self.ops - 1, -1, -1):
                if self.writes[op] & needed and not (self.graph.ops[op].once and op < position):
                    needed |= self.reads[op] | self.state_bit[op]
            masks[position] = needed
        return masks

    def keep_all_peak(self) -> int:
        live, peak = 0, self.problem.base_nbytes
        for op in range(self.ops):
            live |= self.writes[op]
            peak = max(peak, self.problem.base_nbytes + self.size(live) + self.workspace[op])
        return max([peak, *(self.size(live) + during for during in self.during)])

    def subsets(self, optional: int, room: int) -> tuple[int, ...]:
        """The maximal subsets of ``optional`` whose sizes sum to at most ``room``."""
        if self.size(optional) <= room:
            return (optional,)
        known = self._kept.get((optional, room))
        if known is None:
            bits = sorted(_bits(optional), key=lambda bit: -self.sizes[bit])
            left = [sum(self.sizes[bit] for bit in bits[i:]) for i in range(len(bits))]
            rest = [sum(1 << bit for bit in bits[i:]) for i in range(len(bits))]
            found: list[int] = []

            def extend(position: int, kept: int, room: int, dropped: int) -> None:
                """``dropped`` is the size of the smallest storage left out so far."""
                if position == len(bits) or left[position] <= room:
                    remaining = room - (left[position] if position < len(bits) else 0)
                    if remaining < dropped:  # nothing left out would still fit
                        found.append(kept | (rest[position] if position < len(bits) else 0))
                    return
                size = self.sizes[bits[position]]
                if size <= room:
                    extend(position + 1, kept | 1 << bits[position], room - size, dropped)
                extend(position + 1, kept, room, min(dropped, size))

            extend(0, 0, room, 1 << 62)
            known = tuple(found)
            self._kept[optional, room] = known
        return known

    def moves(self, state: State, budget: int) -> Iterator[tuple[int, int, State]]:
        """(cost in ns, entry of the sequence, next state) for every computation that can come next."""
        forwards, backwards, alive = state
        useful = self.useful[forwards + backwards]
        if forwards < self.ops:
            base = self.problem.base_nbytes
            op = forwards
            required = self.reads[op] | self.pinned & alive
            if required & ~alive == 0:
                after = self.useful[forwards + 1] | self.pinned
                for saved in {0, self.state_bit[op]}:
                    made = self.writes[op] | saved
                    room = budget - base - self.workspace[op] - self.size(made | required)
                    for kept in self.subsets(alive & ~required, room) if room >= 0 else ():
                        yield 0, op, (forwards + 1, backwards, (kept | required | made) & after)
        elif backwards < len(self.backwards):
            base = self.between[backwards]
            required = self.backward_reads[backwards] | self.pinned
            if required & ~alive == 0:
                after = self.useful[forwards + backwards + 1] | self.pinned
                room = budget - self.during[backwards] - self.size(required)
                entry = ~self.problem.backward_order[backwards]
                for kept in self.subsets(alive & ~required, room) if room >= 0 else ():
                    yield 0, entry, (forwards, backwards + 1, (kept | required) & after)
        for op in range(forwards):
            if self.graph.ops[op].once:
                continue
            required = self.reads[op] | self.state_bit[op]
            if required & ~alive or not self.writes[op] & useful & ~alive:
                continue  # cannot run, or would make nothing of use
            required |= self.pinned & alive
            made = self.writes[op] & ~self.pinned
            doubled = self.size(self.writes[op] & self.pinned)
            room = budget - base - self.workspace[op] - doubled - self.size(made | required)
            for kept in self.subsets(alive & ~made & ~required, room) if room >= 0 else ():
                yield self.forward_ns[op], op, (forwards, backwards, (kept | required | made) & (useful | self.pinned))

    def cheapest(self, budget: int) -> tuple[int, tuple[int, ...]] | None:
        """Dijkstra: (recomputation ns, sequence), or None when the end cannot be reached within the budget."""
        came: list[tuple[int, int]] = [(-1, 0)]  # (predecessor, entry)
        queue: list[tuple[int, int, int, State]] = [(0, 0, 0, (0, 0, 0))]
        settled: dict[tuple[int, int], list[int]] = {}
        while queue:
            cost, _, node, state = heappop(queue)
            place = state[:2]
            if place == self.goal:
                return cost, self._path(came, node)
            alive = state[2]
            front = settled.setdefault(place, [])
            if any(alive & ~other == 0 for other in front):
                continue  # an equally cheap or cheaper state holds at least as much
            front.append(alive)
            for extra, entry, following in self.moves(state, budget):
                if any(following[2] & ~other == 0 for other in settled.get(following[:2], ())):
                    continue
                came.append((node, entry))
                heappush(queue, (cost + extra, -following[0] - following[1], len(came) - 1, following))
        return None

    @staticmethod
    def _path(came: list[tuple[int, int]], node: int) -> tuple[int, ...]:
        entries = []
        while node:
            node, entry = came[node]
            entries.append(entry)
        return tuple(reversed(entries))


def _bundles(problem: Problem) -> tuple[list[int], list[int]]:
    """(bundle of each storage, size of each bundle): storages that are made and read together share one bit.

    Holding only some of them is of no use: whoever reads one reads all, and making one makes all.
    """
    graph = problem.graph
    readers: list[list[int]] = [[graph.producer[s], int(s in problem.pinned)] for s in range(len(graph.storages))]
    for index, op in enumerate(graph.ops):
        for storage in op.reads:
            readers[storage].append(index)
        for storage in op.backward.reads if op.backward is not None else ():
            readers[storage].append(~index)
    keys = {key: bit for bit, key in enumerate(sorted({tuple(key) for key in readers}))}
    sizes = [0] * len(keys)
    bit = [keys[tuple(key)] for key in readers]
    for storage, which in enumerate(bit):
        sizes[which] += graph.storages[storage].nbytes
    return bit, sizes


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
