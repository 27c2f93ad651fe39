"""Gradient bytes that are surely alive after a set of backwards, in whatever order they ran.

Sets of backwards are bits of integers, as in gradient_lifetimes.py. What a set leaves behind follows from it alone,
whatever the order; a finished gradient of a parameter that is not counted is left out, whoever shares its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from .gradient_lifetimes import GradientLives


class GradientSets:
    """What sets of backwards leave behind, and what one more backward holds."""

    def __init__(self, lives: GradientLives) -> None:
        self._lives, graph = lives, lives.graph
        self._nbytes = [entry.nbytes for entry in graph.gradients]
        self._makers = [_mask(maker for maker, _ in life.makers) for life in lives.lives]
        self._used = [self._keepers(gradient) for gradient in range(len(graph.gradients))]
        self._inside: dict[int, list[int]] = {}  # block -> gradients that may be in it
        self._touched: list[list[int]] = [[] for _ in graph.ops]  # by op: blocks that come or go
        for gradient in range(len(graph.gradients)):
            for block in self._blocks(gradient):
                self._inside.setdefault(block, []).append(gradient)
        for block, gradients in self._inside.items():
            for index in {index for gradient in gradients for index in lives.lives[gradient].touching}:
                self._touched[index].append(block)
        self._made = [self._sums(index) for index in range(len(graph.ops))]
        # What `change` and `sum_nbytes` depend on, by op: of the backwards that have run, those that make or keep the
        # gradients that may be in its blocks, or make those that it adds to. The same is asked very often.
        inside = [[gradient for block in blocks for gradient in self._inside[block]] for blocks in self._touched]
        self._felt = [_union(self._makers[g] | (self._used[g] or 0) for g in gradients) for gradients in inside]
        self._summed = [_union(self._makers[gradient] for gradient, _ in made or ()) for made in self._made]
        self._changes: dict[tuple[int, int], int] = {}
        self._moments: dict[tuple[int, int], int] = {}

    def _keepers(self, gradient: int) -> int | None:
        """The backwards any of which a complete gradient waits for; None where it stays, 0 where it is not counted."""
        life, entry = self._lives.lives[gradient], self._lives.graph.gradients[gradient]
        if entry.parameter and not self._lives.counted[gradient] and life.makers:
            return 0
        if life.enders:
            return _mask(life.touching)
        return None if entry.parameter or not life.users else _mask(life.users)

    def _blocks(self, gradient: int) -> set[int]:
        """Where a gradient may be; the finished one of a parameter that is not counted does not keep another's."""
        life = self._lives.lives[gradient]
        if life.seeded:
            blocks = {gradient}
        elif len(life.makers) == 1:
            blocks = {life.block}
        else:
            blocks = {gradient, *(block for _, block in life.makers if block >= 0)}
        return {block for block in blocks if block == gradient or self._lives.counted[block]}

    def _sums(self, index: int) -> tuple[tuple[int, bool], ...] | None:
        """(gradient, whether it shares memory) of each contribution of an op to a sum.

        None where the graph spells sums out in that backward, or it contributes twice to one: when another sum is made,
        the result of these may not be there yet.
        """
        backward = self._lives.graph.ops[index].backward
        if backward is None or backward.sums:
            return None
        found = []
        for gradient in dict.fromkeys(edge.gradient for edge in backward.gives):
            life = self._lives.lives[gradient]
            sources = [source for maker, source in life.makers if maker == index]
            if len(sources) > 1:
                return None
            if len(life.makers) > 1 or life.seeded:
                found.append((gradient, sources[0] >= 0))
        return tuple(found)

    def begun(self) -> int:
        """Bytes before the first backward: seeds."""
        return sum(self._nbytes[block] for block in self._inside if self._alive(block, 0))

    def change(self, done: int, index: int) -> int:
        """What the backward of op ``index`` adds to the bytes that ``done`` leaves behind; negative where it frees."""
        key = index, done & self._felt[index]
        known = self._changes.get(key)
        if known is None:
            now = done | 1 << index
            known = self._changes[key] = sum(
                self._nbytes[block] * (self._alive(block, now) - self._alive(block, done))
                for block in self._touched[index]
            )
        return known

    def monotone(self, index: int) -> bool:
        """Whether a backward adds no more, and makes none hold more, the more others have run: it is part of no sum."""
        return self._made[index] == ()

    def sum_nbytes(self, done: int, index: int) -> int:
        """What the backward of ``index`` holds for a moment beside what it leaves behind: operands of a sum."""
        key = index, done & self._summed[index]
        known = self._moments.get(key)
        if known is None:
            known = self._moments[key] = self._sum_nbytes(done, index)
        return known

    def _sum_nbytes(self, done: int, index: int) -> int:
        most, made = 0, self._made[index] or ()
        for gradient, shares in made:
            block = self._block(gradient, done)
            if block < 0:
                continue
            if shares and block != gradient:
                return 0  # both operands are another gradient's memory, which a later turn may need less of
            most = max(most, self._nbytes[gradient] * ((not shares) + (block == gradient)))
        return most

    def _block(self, gradient: int, done: int) -> int:
        """Where the sum of the contributions so far surely is; -1 where there is none."""
        life = self._lives.lives[gradient]
        if life.seeded:
            return gradient
        if len(life.makers) == 1:
            return life.block if self._makers[gradient] & done else -1
        there = [source for maker, source in life.makers if done >> maker & 1]
        if len(there) == 1 and there[0] >= 0:
            return there[0]
        return gradient if there else -1

    def _alive(self, block: int, done: int) -> bool:
        for gradient in self._inside[block]:
            keepers = self._used[gradient]
            waits = keepers is None or keepers & ~done or self._makers[gradient] & ~done
            if waits and self._block(gradient, done) == block:
                return True
        return False


def _mask(indices: Iterable[int]) -> int:
    return _union(1 << index for index in indices)


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
