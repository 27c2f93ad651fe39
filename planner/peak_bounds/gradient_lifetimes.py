"""Gradient bytes that every legal backward order holds during each backward: what the dependences force.

Backwards are bits of integers: ``before[i]`` must precede the backward of op i, ``after[i]`` must follow it.
A gradient is surely there when a contributor must precede, and surely not released when a user, or another
contributor, must follow; one that goes when it has been added up, when any of the backwards that it waits for must.
Its memory is a block of its own, or that of a gradient whose memory its only contribution shares; a block is
counted once, whoever shares it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..dependencies import backward_predecessors, closure, reversed_dependences
from ..training_graph import TrainingGraph

Ints = NDArray[np.int64]


@dataclass(slots=True)
class GradientLife:
    """One gradient: (op, block the contribution shares or -1) of each contribution, and the ops that use it.

    ``block`` is the gradient that owns the memory once all contributions are there, itself or one it shares with.
    ``enders`` are the ops whose backwards end it: it goes after the last of them, its makers and its users.
    """

    block: int
    makers: list[tuple[int, int]] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    seeded: bool = False
    enders: list[int] = field(default_factory=list)

    @property
    def touching(self) -> list[int]:
        """The ops whose backwards make, use or end it."""
        return [*(maker for maker, _ in self.makers), *self.users, *self.enders]


def gradient_lives(graph: TrainingGraph) -> list[GradientLife]:
    """Who makes and uses each gradient, whatever the order."""
    lives = [GradientLife(gradient) for gradient in range(len(graph.gradients))]
    for seed in graph.seeds:
        lives[seed].seeded = True
    for index in graph.backward_order:
        backward = graph.ops[index].backward
        assert backward is not None
        for edge in backward.gives:
            life, source = lives[edge.gradient], -1
            if edge.alias_of is not None and (lives[edge.alias_of].makers or lives[edge.alias_of].seeded):
                source = lives[edge.alias_of].block
            life.makers.append((index, source))
            alone = len(life.makers) == 1 and not life.seeded
            life.block = source if alone and source >= 0 else edge.gradient
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
    """(bytes, backwards that touch it, whether the caller hands it in) of each gradient that goes in the step.

    It is alive from the first of these backwards, or from the start, to the last, whatever the order. Those of
    ``parameters`` are among them where they are counted and a backward ends them.
    """
    lives = gradient_lives(graph)
    sharing: list[list[int]] = [[] for _ in graph.gradients]
    for life in lives:
        sharing[life.block] += life.touching
    return [
        (entry.nbytes, sharing[gradient], lives[gradient].seeded)
        for gradient, entry in enumerate(graph.gradients)
        if not entry.parameter or (parameters and lives[gradient].enders)
    ]


def gradient_sums(graph: TrainingGraph, *, parameters: bool) -> list[tuple[int, list[int]]]:
    """(bytes, contributors) of each gradient that is added up of several contributions, whatever the order.

    During every contribution but the first these bytes are alive beside what is there: its own block and the result's.
    One that shares a block has none of its own; where some do, all are taken to.
    """
    found = []
    for gradient, life in enumerate(gradient_lives(graph)):
        entry, makers = graph.gradients[gradient], [maker for maker, _ in life.makers]
        if len(makers) + life.seeded > 1 and (parameters or not entry.parameter):
            shares = any(block >= 0 for _, block in life.makers)
            found.append((entry.nbytes if shares else 2 * entry.nbytes, makers))
    return found


class GradientLives:
    """What is surely alive at each backward of ``graph``, gradients of parameters counted or not."""

    def __init__(self, graph: TrainingGraph, *, parameters: bool) -> None:
        self.graph = graph
        order = graph.backward_order
        predecessors = backward_predecessors(graph)
        self.before = closure(predecessors, order)
        self.after = closure(reversed_dependences(predecessors), order[::-1])
        self.counted = [entry.nbytes if parameters or not entry.parameter else 0 for entry in graph.gradients]
        self.lives = gradient_lives(graph)
        self.held = [0] * len(graph.gradients)  # by block: backwards during which it is surely alive
        self.lasting = [0] * len(graph.gradients)  # and those at whose end it still is
        self.everywhere = sum(1 << index for index in order)
        for gradient in range(len(graph.gradients)):
            self._hold(gradient)
        self.held_nbytes = self._added(self.held)
        self.lasting_nbytes = self._added(self.lasting)

    def _hold(self, gradient: int) -> None:
        """Add the backwards during which a gradient is surely alive to those of its block."""
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
        pending = pending_later = contributors = 0  # another contribution comes
        for index, _ in life.makers:
            contributors |= 1 << index
            pending |= self.before[index] | 1 << index
            pending_later |= self.before[index]
        if entry.parameter and not self.counted[gradient] and life.makers:  # a partial sum counts, the result does not
            used = used_later = 0
        for block, there in self._present(gradient):
            if block != gradient and not self.counted[block]:
                continue  # the finished gradient of a parameter, shared
            self.held[block] |= there & (used | pending)
            if block != gradient:  # the next contribution makes a sum, in a block of its own
                there &= ~contributors
            self.lasting[block] |= there & (used_later | pending_later)

    def _present(self, gradient: int) -> Iterable[tuple[int, int]]:
        """(block, backwards before which a gradient surely lives in that block)."""
        life, after = self.lives[gradient], self.after
        if life.seeded:
            return [(gradient, self.everywhere)]
        if len(life.makers) == 1:
            return [(life.block, after[life.makers[0][0]])]
        own = one = two = 0
        for index, source in life.makers:
            two |= one & after[index]
            one |= after[index]
            if source < 0:
                own |= after[index]
        found = [(gradient, own | two)]
        for place, (index, source) in enumerate(life.makers):
            if source >= 0:  # its memory is the gradient's as long as no other contribution can have come
                alone = after[index]
                for other, _ in (*life.makers[:place], *life.makers[place + 1 :]):
                    alone &= self.before[other] | 1 << other
                    if not alone:
                        break
                found.append((source, alone))
        return found

    def _added(self, masks: list[int]) -> list[int]:
        """For each op the bytes of the blocks whose mask has its bit."""
        count = len(self.graph.ops)
        total = np.zeros(count + 7 & ~7, dtype=np.int64)
        for entry, mask in zip(self.graph.gradients, masks, strict=True):
            if mask and entry.nbytes:
                bits = np.frombuffer(mask.to_bytes(len(total) // 8, "little"), dtype=np.uint8)
                total[np.flatnonzero(np.unpackbits(bits, bitorder="little"))] += entry.nbytes
        return [int(nbytes) for nbytes in total[:count]]

    # -- one backward ----------------------------------------------------------------------------

    def peak_nbytes(self, index: int, workspace_nbytes: int) -> int:
        """Gradient bytes and workspace that the backward of an op surely holds at one of its moments."""
        backward = self.graph.ops[index].backward
        assert backward is not None
        turns = self._turns(index)
        peak = self.held_nbytes[index] + self.fresh_nbytes(index) + workspace_nbytes
        for place in range(len(turns)):
            peak = max(peak, self._turn(index, turns, place))
        for number in range(len(backward.sums)):
            peak = max(peak, self._sum(index, turns, number))
        return peak

    def fresh_nbytes(self, index: int) -> int:
        """What the backward of an op allocates for its contributions."""
        return sum(self._partial(gradient) for gradient, source in self._turns(index) if source < 0)

    def _turns(self, index: int) -> list[tuple[int, int]]:
        """(gradient, block shared or -1) of each contribution, in turn."""
        backward = self.graph.ops[index].backward
        assert backward is not None
        turns: list[tuple[int, int]] = []
        seen: dict[int, int] = {}
        for edge in backward.gives:
            seen[edge.gradient] = seen.get(edge.gradient, 0) + 1
            shared = [source for maker, source in self.lives[edge.gradient].makers if maker == index]
            turns.append((edge.gradient, shared[seen[edge.gradient] - 1]))
        return turns

    def _partial(self, gradient: int) -> int:
        """What a contribution to a gradient counts where it allocates."""
        life = self.lives[gradient]
        final = len(life.makers) == 1 and not life.seeded
        return self.counted[gradient] if final else self.graph.gradients[gradient].nbytes

    def _turn(self, index: int, turns: list[tuple[int, int]], place: int) -> int:
        """The moment in which a contribution meets what is there already and becomes part of a sum."""
        gradient, source = turns[place]
        earlier = [shared for other, shared in turns[:place] if other == gradient]
        existing = [block for block, there in self._present(gradient) if there >> index & 1]
        if earlier and (existing or len(earlier) > 1 or earlier[0] < 0):
            existing = [gradient]
        elif earlier:
            life = self.lives[gradient]
            rest = (other for other, _ in life.makers if other != index)
            existing = [earlier[0]] if all(self.after[index] >> other & 1 for other in rest) else [-1]
        if not existing:
            return 0
        extra = self.counted[gradient]
        blocks = {existing[0]}
        if source < 0:
            extra += self.graph.gradients[gradient].nbytes
        else:
            blocks.add(source)
        blocks = {block for block in blocks if block == gradient or (block >= 0 and self.counted[block])}
        for other, shared in turns:
            if other != gradient:
                blocks |= self._given(other, shared)
        backward = self.graph.ops[index].backward
        assert backward is not None
        operands = {operand for total in backward.sums for operand in total.operands}
        operands -= {other for other, _ in turns} | {total.result for total in backward.sums}
        return self._with(index, blocks | {self.lives[operand].block for operand in operands}) + extra

    def _sum(self, index: int, turns: list[tuple[int, int]], number: int) -> int:
        """The moment of a sum that the graph spells out: its result stands beside what still has a use."""
        backward = self.graph.ops[index].backward
        assert backward is not None
        ahead = {operand for total in backward.sums[number:] for operand in total.operands}

        def stays(gradient: int) -> bool:
            life = self.lives[gradient]
            later = [*life.users, *(maker for maker, _ in life.makers)]
            there = self.graph.gradients[gradient].parameter or not life.users or gradient in ahead
            return there or any(self.after[index] >> other & 1 for other in later)

        blocks: set[int] = set()
        for gradient, source in turns:
            if stays(gradient):
                blocks |= self._given(gradient, source)
        results = [total.result for total in backward.sums]
        given = {gradient for gradient, _ in turns}
        blocks |= {self.lives[operand].block for operand in ahead if operand not in given and operand not in results}
        blocks |= {result for result in results[:number] if stays(result)}
        return self._with(index, blocks) + self.counted[results[number]]

    def _given(self, gradient: int, source: int) -> set[int]:
        """The block in which a contribution surely stays, alone or in a sum; none where that depends."""
        if source < 0:
            return {gradient}
        life = self.lives[gradient]
        return {source} if len(life.makers) == 1 and not life.seeded else set()

    def _with(self, index: int, blocks: set[int]) -> int:
        """Bytes of what outlasts a backward's takes, and of ``blocks``."""
        more = (block for block in blocks if not self.lasting[block] >> index & 1)
        return self.lasting_nbytes[index] + sum(self.counted[block] for block in more)
