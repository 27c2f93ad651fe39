"""Gradient bytes that are alive during each backward under every legal backward order: what the dependences force.

Sets of backwards are integers with one bit per op: ``before[i]`` must precede the backward of op i, ``after[i]`` must
follow it. A gradient has certainly been begun if a contributor must precede, and certainly not been released if a
user or another contributor must follow. A gradient that is released once it has been accumulated is certainly alive if
any backward that it waits for must follow. It has an allocation of its own, or shares that of another gradient if its
only contribution does; an allocation counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import and_

import numpy as np
from numpy.typing import NDArray

from ..dependencies import backward_predecessors, closure, reversed_dependences
from ..training_graph import BackwardOp, TrainingGraph

Ints = NDArray[np.int64]


@dataclass(slots=True)
class GradientLife:
    """Who makes and uses one gradient.

    Attributes:
        allocation: The gradient that owns the memory of the complete gradient: itself or another one.
        makers: (op, allocation that the contribution shares or -1) of each contribution.
        users: The ops whose backwards take it or add it to a sum.
        seeded: Whether the caller hands it in.
        enders: The ops whose backwards end it: it is released after the last of its makers, users and enders.
    """

    allocation: int
    makers: list[tuple[int, int]] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    seeded: bool = False
    enders: list[int] = field(default_factory=list)

    @property
    def touching(self) -> list[int]:
        """The ops whose backwards make, use or end it."""
        return [*(maker for maker, _ in self.makers), *self.users, *self.enders]


def gradient_lives(graph: TrainingGraph) -> list[GradientLife]:
    """Who makes and uses each gradient, in any order."""
    lives = [GradientLife(gradient) for gradient in range(len(graph.gradients))]
    for seed in graph.seeds:
        lives[seed].seeded = True
    for index in graph.backward_order:
        backward = graph.ops[index].backward
        assert backward is not None
        for edge in backward.gives:
            life, source = lives[edge.gradient], -1
            if edge.alias_of is not None and (lives[edge.alias_of].makers or lives[edge.alias_of].seeded):
                source = lives[edge.alias_of].allocation
            life.makers.append((index, source))
            alone = len(life.makers) == 1 and not life.seeded
            life.allocation = source if alone and source >= 0 else edge.gradient
        for gradient in backward.takes:
            lives[gradient].users.append(index)
        for total in backward.sums:
            lives[total.result].makers.append((index, -1))
            for gradient in total.operands:
                lives[gradient].users.append(index)
        for gradient in backward.ends:
            lives[gradient].enders.append(index)
    return lives


def gradient_tokens(graph: TrainingGraph, *, parameters: bool) -> list[tuple[int, list[int], bool]]:
    """(bytes, backwards that touch it, whether the caller hands it in) of each gradient that the step releases.

    In any order it is alive from the first of these backwards, or from the start, to the last. With ``parameters``,
    gradients of parameters that a backward ends are included.
    """
    lives = gradient_lives(graph)
    sharing: list[list[int]] = [[] for _ in graph.gradients]
    for life in lives:
        sharing[life.allocation] += life.touching
    return [
        (entry.nbytes, sharing[gradient], lives[gradient].seeded)
        for gradient, entry in enumerate(graph.gradients)
        if not entry.parameter or (parameters and lives[gradient].enders)
    ]


def gradient_sums(graph: TrainingGraph, *, parameters: bool) -> list[tuple[int, list[int]]]:
    """(bytes, contributors) of each gradient that is the sum of several contributions.

    In any order, these bytes are alive during every contribution but the first, in addition to the sum so far: the
    allocations of the contribution and of the result. A contribution that shares memory has no allocation; if some of
    them do, all are assumed to.
    """
    found = []
    for gradient, life in enumerate(gradient_lives(graph)):
        entry, makers = graph.gradients[gradient], [maker for maker, _ in life.makers]
        if len(makers) + life.seeded > 1 and (parameters or not entry.parameter):
            shares = any(allocation >= 0 for _, allocation in life.makers)
            found.append((entry.nbytes if shares else 2 * entry.nbytes, makers))
    return found


class GradientLives:
    """What is certainly alive at each backward of ``graph``; gradients of ``parameters`` are counted or not."""

    def __init__(self, graph: TrainingGraph, *, parameters: bool) -> None:
        self.graph = graph
        order = graph.backward_order
        predecessors = backward_predecessors(graph)
        self.before = closure(predecessors, order)
        self.after = closure(reversed_dependences(predecessors), order[::-1])
        self.counted = [entry.nbytes if parameters or not entry.parameter else 0 for entry in graph.gradients]
        self.lives = gradient_lives(graph)
        self.turns = self._contributions()
        self._found: dict[int, Sequence[tuple[int, int]]] = {}  # what `_present` has found, by gradient
        self.held = [0] * len(graph.gradients)  # by allocation: the backwards during which it is certainly alive
        self.lasting = [0] * len(graph.gradients)  # and those at whose end it is still alive
        self.everywhere = sum(1 << index for index in order)
        for gradient in range(len(graph.gradients)):
            self._hold(gradient)
        self.held_nbytes = self._added(self.held)
        self.lasting_nbytes = self._added(self.lasting)

    def _hold(self, gradient: int) -> None:
        """Add the backwards during which a gradient is certainly alive to those of its allocation."""
        life, entry = self.lives[gradient], self.graph.gradients[gradient]
        used = used_later = 0
        if life.enders:  # until the end of the last of these backwards
            for index in life.touching:
                used |= self.before[index] | 1 << index
            used_later = used
        elif entry.parameter or not life.users:
            used = used_later = self.everywhere
        for index in life.users:
            used |= self.before[index] | 1 << index
            used_later |= self.before[index]
        pending = pending_later = contributors = 0  # another contribution follows
        for index, _ in life.makers:
            contributors |= 1 << index
            pending |= self.before[index] | 1 << index
            pending_later |= self.before[index]
        if entry.parameter and not self.counted[gradient] and life.makers:  # a partial sum counts, the result does not
            used = used_later = 0
        for allocation, there in self._present(gradient):
            if allocation != gradient and not self.counted[allocation]:
                continue  # the finished gradient of a parameter, shared
            self.held[allocation] |= there & (used | pending)
            if allocation != gradient:  # the next contribution makes a sum in an allocation of its own
                there &= ~contributors
            self.lasting[allocation] |= there & (used_later | pending_later)

    def _contributions(self) -> list[list[tuple[int, int]]]:
        """By op, (gradient, allocation shared or -1) of each contribution of its backward, in turn."""
        turns: list[list[tuple[int, int]]] = [[] for _ in self.graph.ops]
        makers = [iter(life.makers) for life in self.lives]
        for index in self.graph.backward_order:
            backward = self.graph.ops[index].backward
            assert backward is not None
            turns[index] = [(edge.gradient, next(makers[edge.gradient])[1]) for edge in backward.gives]
        return turns

    def _present(self, gradient: int) -> Sequence[tuple[int, int]]:
        """(allocation, backwards before which a gradient certainly is in that allocation)."""
        if gradient not in self._found:
            self._found[gradient] = self._find_present(self.lives[gradient], gradient)
        return self._found[gradient]

    def _find_present(self, life: GradientLife, gradient: int) -> Sequence[tuple[int, int]]:
        after = self.after
        if life.seeded:
            return [(gradient, self.everywhere)]
        if len(life.makers) == 1:
            return [(life.allocation, after[life.makers[0][0]])]
        own = one = two = 0
        for index, source in life.makers:
            two |= one & after[index]
            one |= after[index]
            if source < 0:
                own |= after[index]
        found = [(gradient, own | two)]
        if all(source < 0 for _, source in life.makers):
            return found
        # A shared memory is the gradient's as long as no other contribution can have come.
        until = [self.before[index] | 1 << index for index, _ in life.makers]
        earlier = [self.everywhere, *accumulate(until[:-1], and_)]
        later = [*accumulate(until[:0:-1], and_, initial=self.everywhere)][::-1]
        for (index, source), one, other in zip(life.makers, earlier, later, strict=True):
            if source >= 0 and (alone := after[index] & one & other):
                found.append((source, alone))
        return found

    def _added(self, masks: list[int]) -> list[int]:
        """For each op, the bytes of the allocations whose mask has its bit."""
        count = len(self.graph.ops)
        total = np.zeros(count + 7 & ~7, dtype=np.int64)
        for entry, mask in zip(self.graph.gradients, masks, strict=True):
            if mask and entry.nbytes:
                bits = np.frombuffer(mask.to_bytes(len(total) // 8, "little"), dtype=np.uint8)
                total[np.flatnonzero(np.unpackbits(bits, bitorder="little"))] += entry.nbytes
        return [int(nbytes) for nbytes in total[:count]]

    # -- one backward ----------------------------------------------------------------------------

    def peak_nbytes(self, index: int, workspace_nbytes: int) -> int:
        """Gradient bytes and workspace that the backward of an op certainly needs at one of its moments."""
        backward = self.graph.ops[index].backward
        assert backward is not None
        peak = self.held_nbytes[index] + self.fresh_nbytes(index) + workspace_nbytes
        return max(peak, self._turns_nbytes(index, backward), self._sums_nbytes(index, backward))

    def fresh_nbytes(self, index: int) -> int:
        """The bytes that the backward of an op allocates for its contributions."""
        return sum(self._partial(gradient) for gradient, source in self.turns[index] if source < 0)

    def _partial(self, gradient: int) -> int:
        """The bytes of a contribution that allocates."""
        life = self.lives[gradient]
        final = len(life.makers) == 1 and not life.seeded
        return self.counted[gradient] if final else self.graph.gradients[gradient].nbytes

    def _turns_nbytes(self, index: int, backward: BackwardOp) -> int:
        """The most bytes at the moments in which a contribution is added to those that exist."""
        given = self._given(index)
        operands = {operand for total in backward.sums for operand in total.operands}
        operands -= {gradient for gradient, _ in self.turns[index]} | {total.result for total in backward.sums}
        waiting = {self.lives[operand].allocation for operand in operands}
        owners = Counter(given.values())
        most, all_nbytes = 0, self._more_nbytes(index, waiting.union(owners))
        earlier: dict[int, list[int]] = {}
        for gradient, source in self.turns[index]:
            shared = earlier.setdefault(gradient, [])
            summed = self._summed(index, gradient, source, shared)
            shared.append(source)
            if summed is None:
                continue
            own = given.get(gradient, -1)
            apart = {own} - summed if owners[own] == 1 and own not in waiting else set()
            new = summed - owners.keys() - waiting
            nbytes = all_nbytes + self._more_nbytes(index, new) - self._more_nbytes(index, apart)
            extra = self.counted[gradient] + (self.graph.gradients[gradient].nbytes if source < 0 else 0)
            most = max(most, self.lasting_nbytes[index] + nbytes + extra)
        return most

    def _summed(self, index: int, gradient: int, source: int, earlier: list[int]) -> set[int] | None:
        """The allocations that hold the operands of a sum as one more contribution comes; None if it is the first.

        ``earlier`` are the allocations of those that the same backward has made before. An operand that is counted
        elsewhere, or whose place the order decides, is left out.
        """
        existing = [allocation for allocation, there in self._present(gradient) if there >> index & 1]
        if earlier and (existing or len(earlier) > 1 or earlier[0] < 0):
            existing = [gradient]
        elif earlier:
            rest = (other for other, _ in self.lives[gradient].makers if other != index)
            existing = [earlier[0]] if all(self.after[index] >> other & 1 for other in rest) else [-1]
        if not existing:
            return None
        held = {existing[0], source}
        return {a for a in held if a == gradient or (a >= 0 and self.counted[a])}

    def _sums_nbytes(self, index: int, backward: BackwardOp) -> int:
        """The most bytes at the moments of the sums that the graph spells out.

        At each of them its result and everything that still has a use are alive.
        """
        count = len(backward.sums)
        if not count:
            return 0
        given = self._given(index)
        results = [total.result for total in backward.sums]
        added = {operand: number for number, total in enumerate(backward.sums) for operand in total.operands}

        def until(gradient: int) -> int:
            """The number of the last sum during which a gradient is alive, -1 for none."""
            life = self.lives[gradient]
            later = (*life.users, *(maker for maker, _ in life.makers))
            there = self.graph.gradients[gradient].parameter or not life.users
            stays = there or any(self.after[index] >> other & 1 for other in later)
            return count - 1 if stays else added.get(gradient, -1)

        last: dict[int, int] = {}  # allocation -> the number of the last sum during which it is alive, from the first
        kept = [(allocation, until(gradient)) for gradient, allocation in given.items()]
        turns = {gradient for gradient, _ in self.turns[index]}
        kept += [(self.lives[g].allocation, n) for g, n in added.items() if g not in turns and g not in results]
        for allocation, number in kept:
            last[allocation] = max(number, last.get(allocation, -1))
        change = [0] * (count + 1)
        spans = [(0, allocation, number) for allocation, number in last.items()]
        spans += [(max(n, last.get(r, -1)) + 1, r, until(r)) for n, r in enumerate(results)]
        for first, allocation, number in spans:
            if first <= number:
                nbytes = self._more_nbytes(index, {allocation})
                change[first] += nbytes
                change[number + 1] -= nbytes
        alive = accumulate(change[:-1])
        return self.lasting_nbytes[index] + max(n + self.counted[r] for n, r in zip(alive, results, strict=True))

    def _given(self, index: int) -> dict[int, int]:
        """Gradient -> the allocation in which the contributions of an op certainly stay, alone or in a sum.

        A gradient of which the order decides that is left out.
        """
        given: dict[int, int] = {}
        for gradient, source in self.turns[index]:
            life = self.lives[gradient]
            if source < 0:
                given[gradient] = gradient
            elif len(life.makers) == 1 and not life.seeded:
                given[gradient] = source
        return given

    def _more_nbytes(self, index: int, allocations: Iterable[int]) -> int:
        """Bytes of those ``allocations`` that are not among `lasting_nbytes`."""
        more = (allocation for allocation in allocations if not self.lasting[allocation] >> index & 1)
        return sum(self.counted[allocation] for allocation in more)
