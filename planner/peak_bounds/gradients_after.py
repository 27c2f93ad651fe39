"""Gradient bytes that are alive after a set of backwards, in whatever order they ran.

Sets of backwards are integers with one bit per op, as in gradient_lifetimes.py. The gradients that a set leaves alive
depend on the set alone, not on the order. The final gradient of a parameter that is not counted is left out, even if
other gradients share its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from .gradient_lifetimes import GradientLives

_OPS_AT_ONCE = 500
"""A set of that many backwards is handled in the time of one gradient."""


class GradientSets:
    """What sets of backwards leave alive, and what one more backward adds."""

    def __init__(self, lives: GradientLives) -> None:
        self._lives, graph = lives, lives.graph
        self._nbytes = [entry.nbytes for entry in graph.gradients]
        self._makers = [_mask(maker for maker, _ in life.makers) for life in lives.lives]
        self._used = [self._keepers(gradient) for gradient in range(len(graph.gradients))]
        self._inside: dict[int, list[int]] = {}  # allocation -> the gradients that may be in it
        self._touched: list[list[int]] = [[] for _ in graph.ops]  # by op: the allocations that it makes or releases
        for gradient in range(len(graph.gradients)):
            for allocation in self._allocations(gradient):
                self._inside.setdefault(allocation, []).append(gradient)
        for allocation, gradients in self._inside.items():
            for index in {index for gradient in gradients for index in lives.lives[gradient].touching}:
                self._touched[index].append(allocation)
        self._made = [self._sums(index) for index in range(len(graph.ops))]
        # The backwards that `change` and `sum_nbytes` depend on, by op: those that make or keep the gradients that may
        # be in its allocations, and those that make the gradients that it adds to. They are the keys of two caches.
        felt = {
            allocation: _union(self._makers[g] | (self._used[g] or 0) for g in gradients)
            for allocation, gradients in self._inside.items()
        }
        self._felt = [_union(felt[allocation] for allocation in allocations) for allocations in self._touched]
        self._summed = [_union(self._makers[gradient] for gradient, _ in made or ()) for made in self._made]
        self.work = 0  # how much has been asked and computed so far, in gradients looked at
        self._per_set = 1 + len(graph.ops) // _OPS_AT_ONCE
        self._per_change = [sum(len(self._inside[allocation]) for allocation in touched) for touched in self._touched]
        self._changes: dict[tuple[int, int], int] = {}
        self._moments: dict[tuple[int, int], int] = {}

    def _keepers(self, gradient: int) -> int | None:
        """The backwards that a complete gradient waits for; None if it stays alive, 0 if it is not counted."""
        life, entry = self._lives.lives[gradient], self._lives.graph.gradients[gradient]
        if entry.parameter and not self._lives.counted[gradient] and life.makers:
            return 0
        if life.enders:
            return _mask(life.touching)
        return None if entry.parameter or not life.users else _mask(life.users)

    def _allocations(self, gradient: int) -> set[int]:
        """The allocations that a gradient may be in, without those that are not counted and belong to another one."""
        life = self._lives.lives[gradient]
        if life.seeded:
            allocations = {gradient}
        elif len(life.makers) == 1:
            allocations = {life.allocation}
        else:
            allocations = {gradient, *(allocation for _, allocation in life.makers if allocation >= 0)}
        return {allocation for allocation in allocations if allocation == gradient or self._lives.counted[allocation]}

    def _sums(self, index: int) -> tuple[tuple[int, bool], ...] | None:
        """(gradient, whether it shares memory) of each contribution of an op to a sum.

        None for a backward that contributes twice to a sum or has sums that the graph spells out: their results may not
        exist yet when another sum is made.
        """
        backward = self._lives.graph.ops[index].backward
        if backward is None or backward.sums:
            return None
        found = []
        turns = self._lives.turns[index]
        if len(dict(turns)) < len(turns):
            return None
        for gradient, source in turns:
            life = self._lives.lives[gradient]
            if len(life.makers) > 1 or life.seeded:
                found.append((gradient, source >= 0))
        return tuple(found)

    def begun(self) -> int:
        """Bytes before the first backward: the seeds."""
        return sum(self._nbytes[allocation] for allocation in self._inside if self._alive(allocation, 0))

    def change(self, done: int, index: int) -> int:
        """The bytes that the backward of op ``index`` adds to those that ``done`` leaves; negative if it frees."""
        key = index, done & self._felt[index]
        known = self._changes.get(key)
        self.work += self._per_set
        if known is None:
            self.work += self._per_change[index]
            now = done | 1 << index
            known = self._changes[key] = sum(
                self._nbytes[allocation] * (self._alive(allocation, now) - self._alive(allocation, done))
                for allocation in self._touched[index]
            )
        return known

    def monotone(self, index: int) -> bool:
        """Whether a backward contributes to no sum: then it never adds more bytes after more backwards have run."""
        return self._made[index] == ()

    def sum_nbytes(self, done: int, index: int) -> int:
        """The bytes of the backward of ``index`` that are alive for a moment only: operands of a sum."""
        key = index, done & self._summed[index]
        known = self._moments.get(key)
        if known is None:
            known = self._moments[key] = self._sum_nbytes(done, index)
        return known

    def _sum_nbytes(self, done: int, index: int) -> int:
        most, made = 0, self._made[index] or ()
        for gradient, shares in made:
            allocation = self._allocation(gradient, done)
            if allocation < 0:
                continue
            if shares and allocation != gradient:
                return 0  # both operands are in another gradient's memory, and a later sum may need less
            most = max(most, self._nbytes[gradient] * ((not shares) + (allocation == gradient)))
        return most

    def _allocation(self, gradient: int, done: int) -> int:
        """The allocation of the sum of the contributions so far; -1 if there is none."""
        life = self._lives.lives[gradient]
        if life.seeded:
            return gradient
        if len(life.makers) == 1:
            return life.allocation if self._makers[gradient] & done else -1
        there = [source for maker, source in life.makers if done >> maker & 1]
        if len(there) == 1 and there[0] >= 0:
            return there[0]
        return gradient if there else -1

    def _alive(self, allocation: int, done: int) -> bool:
        for gradient in self._inside[allocation]:
            keepers = self._used[gradient]
            waits = keepers is None or keepers & ~done or self._makers[gradient] & ~done
            if waits and self._allocation(gradient, done) == allocation:
                return True
        return False


def _mask(indices: Iterable[int]) -> int:
    return _union(1 << index for index in indices)


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
