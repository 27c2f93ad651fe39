"""The lowest floor of all backward orders, by a search over sets of backwards that have run.

In any order, a set of backwards leaves the same gradients alive, and one more backward needs the same bytes. An order
is therefore a path through such sets, and its floor is the largest need of any step on the path. The lowest floor of
all orders is a bottleneck shortest path (Pollack, Operations Research 8, 1960), found best first. The lowest value that
is still open is a lower bound for every order, so a search that is cut short proves a bound, too.

A backward is run at once if it fits within the proven bound, leaves no more bytes alive than before and contributes to
no sum: running it first makes no order worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ..dependencies import backward_predecessors, reversed_dependences
from .gradient_lifetimes import GradientLives
from .gradients_after import GradientSets
from .step_floor import Floor, lasting_of

MOST_SETS = 1_000
"""Sets that are expanded at most, or as many as there are ops: a tenth of a second on 1,000 ops. Graphs whose branches
join soon need one or two for each join."""
MOST_WORK = 1_000_000
"""Gradients that one search looks at, at most: a second. Networks and random graphs need a seventh of it. Where one op
adds up thousands of branches, the sets would not be too many, but what leads from one to the next."""
_HALVINGS, _SETS_TRIED, _SETS_PER_OP = 5, 2_000, 10
"""Effort of the search for an order with a low floor if the lowest is not known: half a second on 1,000 ops."""


@dataclass(frozen=True, slots=True)
class LeastHeld:
    """A lower bound on the floor of every order.

    ``binding`` is the op that sets it, -1 if no backward needs more than the bound known before. If the search is
    ``complete``, ``order`` has this floor.
    """

    nbytes: int
    complete: bool
    binding: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Ran:
    """The last backward of a path to a set, and the path before it."""

    index: int
    before: _Ran | None


@dataclass(frozen=True, slots=True)
class _Set:
    """The backwards that have run, those that may run next, and the path taken.

    ``alive`` are the bytes of gradients, ``lasting`` those of storages that can be made once only and are still read.
    """

    done: int
    ready: int
    alive: int
    lasting: int
    binding: int
    way: _Ran | None


class OrderFloor:
    """The search for one graph.

    ``base_nbytes`` are alive throughout. ``workspace`` and ``least`` have one entry per op: the workspace of its
    backward, and the least that its backward needs of gradients and workspace under every order.
    """

    def __init__(self, lives: GradientLives, base_nbytes: int, workspace: Sequence[int], least: Sequence[int]) -> None:
        graph = self.graph = lives.graph
        self._gradients, self._least = GradientSets(lives), least
        size, pinned = [storage.nbytes for storage in graph.storages], set(graph.outputs)
        self._always = base_nbytes + sum(size[storage] for storage in pinned)
        lasting = {storage: users for storage, (_, users) in lasting_of(graph).items() if storage not in pinned}
        self._lasting = sum(size[storage] for storage, users in lasting.items() if users)
        self._lets_go: list[list[tuple[int, int]]] = [[] for _ in graph.ops]  # by op: what it is a user of
        self._inside, self._reads = [0] * len(graph.ops), [0] * len(graph.ops)
        for storage, users in lasting.items():
            for index in _bits(users):
                self._lets_go[index].append((size[storage], users))
        self._monotone = sum(1 << index for index in graph.backward_order if self._gradients.monotone(index))
        for index in graph.backward_order:
            backward = graph.ops[index].backward
            assert backward is not None
            self._inside[index] = lives.fresh_nbytes(index) + workspace[index]
            read = (storage for storage in set(backward.reads) - pinned if storage not in lasting)
            self._reads[index] = sum(size[storage] for storage in read)
        predecessors = backward_predecessors(graph)
        self._before = [sum(1 << earlier for earlier in found) for found in predecessors]
        self._after = reversed_dependences(predecessors)

    @property
    def op_count(self) -> int:
        """Ops of the graph."""
        return len(self.graph.ops)

    def search(self, known: int, most_sets: int | None = None, late: Callable[[], bool] = lambda: False) -> LeastHeld:
        """The lowest floor of all orders, at least the ``known`` lower bound.

        At most ``most_sets`` sets are expanded; the default depends on the size of the graph. ``late`` ends it, too.
        """
        everything = sum(1 << index for index in self.graph.backward_order)
        ready = sum(1 << index for index in self.graph.backward_order if not self._before[index])
        left = max(MOST_SETS, self.op_count) if most_sets is None else most_sets
        self._most_work = self._gradients.work + MOST_WORK
        start = _Set(0, ready, self._gradients.begun(), self._lasting, -1, None)
        reached, closed = {0: known}, set[int]()
        heap, count = [(known, 0, 0, start)], 0
        while True:
            nbytes, _, _, found = heappop(heap)
            if found.done in closed or reached[found.done] < nbytes:
                continue
            closed.add(found.done)
            begun, found = found.done, self._run_at_once(found, nbytes)
            if found.done != begun and found.done in closed:
                continue
            closed.add(found.done)
            if found.done == everything:
                return LeastHeld(nbytes, True, found.binding, tuple(_order(found.way)))
            if not left or late():
                return LeastHeld(nbytes, False, found.binding, ())
            left -= 1
            for index in _bits(found.ready):
                if self._worked_enough():
                    return LeastHeld(nbytes, False, found.binding, ())
                change = self._gradients.change(found.done, index)
                needed = self._needed(found, index, change)
                most, done = max(nbytes, needed), found.done | 1 << index
                if most < reached.get(done, 1 << 62):
                    reached[done], count = most, count + 1
                    other = self._after_one(found, index, change, index if needed > nbytes else found.binding)
                    heappush(heap, (most, -done.bit_count(), count, other))

    def _worked_enough(self) -> bool:
        return self._gradients.work > self._most_work

    def _run_at_once(self, found: _Set, nbytes: int) -> _Set:
        """The set after every backward that makes no order worse if it runs first."""
        moved = True
        while moved:
            moved = False
            for index in _bits(found.ready & self._monotone):
                if self._worked_enough():
                    return found
                change = self._gradients.change(found.done, index)
                if change <= 0 and self._needed(found, index, change) <= nbytes:
                    found, moved = self._after_one(found, index, change, found.binding), True
        return found

    def _after_one(self, found: _Set, index: int, change: int, binding: int) -> _Set:
        done, ready = found.done | 1 << index, found.ready & ~(1 << index)
        for later in self._after[index]:
            if not self._before[later] & ~done:
                ready |= 1 << later
        lasting = found.lasting
        for nbytes, users in self._lets_go[index]:
            if not users & ~done:
                lasting -= nbytes
        return _Set(done, ready, found.alive + change, lasting, binding, _Ran(index, found.way))

    def _needed(self, found: _Set, index: int, change: int) -> int:
        """Bytes that the backward of ``index`` needs right after ``found``."""
        added = found.alive + change + self._gradients.sum_nbytes(found.done, index)
        during = max(self._least[index], found.alive + self._inside[index], added)
        return self._always + self._reads[index] + found.lasting + during


def floor_of_orders(orders: OrderFloor, known: Floor, late: Callable[[], bool]) -> tuple[Floor, tuple[int, ...] | None]:
    """The ``known`` floor of every order, or a higher one, and the order that has it if the search is complete.

    A search that ``late`` ends gives the known one: how far it came is chance.
    """
    graph, found = orders.graph, orders.search(known.nbytes, late=late)
    if found.binding < 0 or (not found.complete and late()):
        return known, found.order or None
    if not found.complete:
        return Floor(found.nbytes, "some backward, whatever the order", ()), None
    op = graph.ops[found.binding]
    assert op.backward is not None
    held = sorted({*op.backward.reads, *graph.outputs}, key=lambda s: (-graph.storages[s].nbytes, s))
    step = f"the backward of {op.op_type} {op.name!r}, in the backward order that needs the least"
    return Floor(found.nbytes, step, tuple(graph.storages[s].name for s in held)), found.order


def low_order(
    orders: OrderFloor, between: tuple[int, int], late: Callable[[], bool] = lambda: False
) -> tuple[int, ...] | None:
    """An order whose floor is about the lowest that short searches find ``between`` two sizes; None if they find none.

    It takes long to prove that no order has a floor below a size, but not to find one of many that have. ``late`` is
    asked before each search, and ends them.
    """
    found = None
    below, within = between
    for _ in range(_HALVINGS):
        if late():
            break
        middle = (below + within) // 2
        tried = orders.search(middle, min(_SETS_TRIED, _SETS_PER_OP * orders.op_count))
        if tried.complete:
            within, found = tried.nbytes, tried.order
        else:
            below = middle
    return found


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _order(way: _Ran | None) -> list[int]:
    found = []
    while way is not None:
        found.append(way.index)
        way = way.before
    return found[::-1]
