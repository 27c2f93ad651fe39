"""Search for an order of a partially ordered set that keeps what is alive between its steps small.

What lives from one step to another is a *token*: it takes its bytes from the first of the steps that touch it
(or from the start) to the last. Scheduling a graph for least memory is hard in general; Liu (SIAM J. Algebraic
Discrete Methods 8, 1987) orders the branches of a tree best by running first what ends lowest above its highest
point. Here neighbouring stretches of an order, such as two branches, change places by simulated annealing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...dependencies import Predecessors, is_forced
from ..evaluation.evaluator import Array, csr
from ..kernels.jit import compiled, copy_part
from ..kernels.xorshift import stream, uniform

MOVES = 300_000
"""Exchanges that one search tries: some tens of milliseconds."""


@dataclass
class Tokens:
    """What lives between steps: ``touching[i]`` are the tokens that step i touches."""

    touching: list[list[int]]
    nbytes: list[int] = field(default_factory=list)
    started: list[bool] = field(default_factory=list)
    again: list[int] = field(default_factory=list)

    def add(self, nbytes: int, steps: Sequence[int], *, started: bool = False) -> None:
        """A token of ``nbytes`` that ``steps`` touch; one that nothing else touches changes no order's memory."""
        steps = list(dict.fromkeys(steps))
        if nbytes and steps and (started or len(steps) > 1):
            for step in steps:
                self.touching[step].append(len(self.nbytes))
            self._append(nbytes, started, 0)

    def add_inside(self, step: int, nbytes: int) -> None:
        """``nbytes``, which may be negative, that are alive during one step alone: they count where others are, too."""
        self.touching[step].append(len(self.nbytes))
        self._append(nbytes, False, 0)

    def add_again(self, steps: Sequence[int], nbytes: int) -> None:
        """``nbytes`` that are alive during each of ``steps`` alone but the first of them to run, as for a sum."""
        for step in dict.fromkeys(steps):
            self.touching[step].append(len(self.nbytes))
        self._append(0, False, nbytes)

    def _append(self, nbytes: int, started: bool, again: int) -> None:
        self.nbytes.append(nbytes)
        self.started.append(started)
        self.again.append(again)

    def alive(self, order: Sequence[int]) -> list[int]:
        """Bytes alive during each step of ``order``."""
        first, last = [len(order)] * len(self.nbytes), [-1] * len(self.nbytes)
        for place, step in enumerate(order):
            for token in self.touching[step]:
                first[token], last[token] = min(first[token], place), place
        change = np.zeros(len(order) + 1, dtype=np.int64)
        moment = np.zeros(len(order), dtype=np.int64)
        for place, step in enumerate(order):
            moment[place] = sum(self.again[token] for token in self.touching[step] if first[token] < place)
        for token, nbytes in enumerate(self.nbytes):
            if last[token] >= 0:
                change[0 if self.started[token] else first[token]] += nbytes
                change[last[token] + 1] -= nbytes
        return [int(held) for held in np.cumsum(change[:-1]) + moment]


@compiled
def _power(held: int) -> float:
    """The eighth power: the sum of it follows the peak, and still feels every step."""
    square = float(held) * float(held)
    return (square * square) * (square * square)


@compiled
def _sum_of(
    order: Array, begin: int, end: int, start: Array, touched: Array, nbytes: Array, again: Array, first: Array,
    last: Array, inside: Array, held: Array, moment: Array, entering: int,
) -> float:  # fmt: skip
    """Fill ``held[begin:end]``, the bytes alive during each of these steps, and return the sum of their powers.

    ``moment[begin:end]`` are those among them that are there during that step alone. ``entering`` bytes are alive
    before them; ``first`` and ``last`` are the positions at which a token is touched first and last under an order that
    agrees with this one outside of them. ``inside`` is zero before and after.
    """
    for position in range(begin, end):
        step = order[position]
        for q in range(start[step], start[step + 1]):
            inside[touched[q]] += 1
    alive = entering
    total = 0.0
    for position in range(begin, end):
        step = order[position]
        ends = 0
        moment[position] = 0
        for q in range(start[step], start[step + 1]):
            token = touched[q]
            if inside[token] > 0:  # not met in this stretch so far
                inside[token] = -inside[token]
                if first[token] >= begin:
                    alive += nbytes[token]
                else:
                    moment[position] += again[token]
            else:
                moment[position] += again[token]
            inside[token] += 1
            if inside[token] == 0 and last[token] < end:
                ends += nbytes[token]
        held[position] = alive + moment[position]
        alive -= ends
        total += _power(held[position])
    return total


@compiled
def _anneal(
    order: Array,
    before_start: Array,
    before: Array,
    start: Array,
    touched: Array,
    nbytes: Array,
    again: Array,
    started: NDArray[np.bool_],
    moves: int,
    state: NDArray[np.uint64],
    best: Array,
    candidate: Array,
    place: Array,
    tokens: Array,
    steps: Array,
) -> float:
    """Make ``best`` the best order found by ``moves`` exchanges of neighbouring stretches, and return its cost.

    Room: ``best`` and ``candidate`` begin as ``order``, ``place`` has an entry for every step and one more, ``tokens``
    three rows and ``steps`` four; all that is 0.
    """
    size = len(order)
    first, last, inside = tokens[0], tokens[1], tokens[2]
    held, moment, bytes_held, bytes_moment = steps[0], steps[1], steps[2], steps[3]
    place[:] = -1
    first[:] = size
    last[:] = -1
    entering = 0
    for token in range(len(nbytes)):
        if started[token]:
            first[token] = -1
            entering += nbytes[token]
    for position in range(size):
        step = order[position]
        place[step] = position
        for q in range(start[step], start[step + 1]):
            token = touched[q]
            first[token] = min(first[token], position)
            last[token] = max(last[token], position)
    now = _sum_of(order, 0, size, start, touched, nbytes, again, first, last, inside, held, moment, entering)
    least, unit = now, now
    for move in range(moves):
        longest = 1 + int((size // 2) ** uniform(state))
        begin = int(uniform(state) * (size - 1))
        middle = min(size - 1, begin + 1 + int(uniform(state) * longest))
        end = min(size, middle + 1 + int(uniform(state) * longest))
        legal = True
        for position in range(middle, end):  # nothing that moves ahead may need what it overtakes
            step = order[position]
            for q in range(before_start[step], before_start[step + 1]):
                if begin <= place[before[q]] < middle:
                    legal = False
                    break
            if not legal:
                break
        if not legal:
            continue
        copy_part(candidate, begin, order, middle, end)
        copy_part(candidate, begin + end - middle, order, begin, middle)
        alive = entering
        if begin > 0:  # what is alive after the step before the stretch
            step = order[begin - 1]
            alive = held[begin - 1] - moment[begin - 1]
            for q in range(start[step], start[step + 1]):
                if last[touched[q]] == begin - 1:
                    alive -= nbytes[touched[q]]
        old = 0.0
        for position in range(begin, end):
            old += _power(held[position])
        new = (
            now
            - old
            + _sum_of(
                candidate,
                begin,
                end,
                start,
                touched,
                nbytes,
                again,
                first,
                last,
                inside,
                bytes_held,
                bytes_moment,
                alive,
            )
        )
        temperature = 0.04 * (1.0 - move / moves) ** 2
        if new <= now or (temperature > 0 and uniform(state) < np.exp((now - new) / (temperature * unit))):
            now = new
            for position in range(begin, end):
                order[position] = candidate[position]
                held[position], moment[position] = bytes_held[position], bytes_moment[position]
                step = order[position]
                place[step] = position
                for q in range(start[step], start[step + 1]):
                    token = touched[q]
                    if first[token] >= begin:
                        first[token] = size
                    if last[token] < end:
                        last[token] = -1
            for position in range(begin, end):
                step = order[position]
                for q in range(start[step], start[step + 1]):
                    token = touched[q]
                    first[token] = min(first[token], position)
                    last[token] = max(last[token], position)
            if now < least:
                least = now
                copy_part(best, 0, order, 0, size)
        else:
            copy_part(candidate, begin, order, begin, end)
    return (least / max(1, size)) ** 0.125  # type: ignore[no-any-return]


def better_order(
    order: Sequence[int], predecessors: Predecessors, tokens: Tokens, *, moves: int = MOVES, seed: int = 0
) -> tuple[tuple[int, ...], float]:
    """An order at least as good as ``order``, a legal one, and its cost in bytes: about the peak of its tokens.

    ``moves`` exchanges of stretches are tried.
    """
    moves = 0 if is_forced(order, predecessors) or len(order) < 2 else moves
    return _searched(order, predecessors, tokens, moves, seed)


def cost(order: Sequence[int], tokens: Tokens) -> float:
    """What `better_order` lowers, in bytes."""
    return _searched(order, ((),) * len(tokens.touching), tokens, 0, 0)[1]


def _searched(
    order: Sequence[int], predecessors: Predecessors, tokens: Tokens, moves: int, seed: int
) -> tuple[tuple[int, ...], float]:
    before_start, before = csr(predecessors)
    start, touched = csr(tokens.touching)
    nbytes, again = np.array(tokens.nbytes, dtype=np.int64), np.array(tokens.again, dtype=np.int64)
    started = np.array(tokens.started, dtype=np.bool_)
    state = stream(seed)
    steps = np.array(order, dtype=np.int64)
    best = steps.copy()
    reached = _anneal(
        steps, before_start, before, start, touched, nbytes, again, started, moves, state, best, steps.copy(),
        np.zeros(len(start), dtype=np.int64), np.zeros((3, len(nbytes)), dtype=np.int64),
        np.zeros((4, len(steps) + 1), dtype=np.int64),
    )  # fmt: skip
    return tuple(best.tolist()), float(reached)
