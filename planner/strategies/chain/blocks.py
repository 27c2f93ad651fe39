"""Blocks of a chain as small problems of their own, and the blocks among them that are equal.

A block is the ops between two cuts with their backwards. What crosses into it is always at hand, fixed storages
are left out, and the gradients alive are counted relative to those alive when its backward starts; so the blocks
of repeated layers become equal numbers and are solved once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Array, Arrays, Evaluator
from .block_cuts import Crossing


@dataclass(frozen=True)
class Block:
    """A block with local numbers for its ops and its free storages.

    ``outgoing[s]``: s crosses the cut behind the block; ``movable[s]``: whether to hold s is the block's to decide.
    """

    arrays: Arrays
    outgoing: NDArray[np.bool_]
    movable: NDArray[np.bool_]

    @property
    def op_count(self) -> int:
        """Number of ops."""
        return len(self.arrays.forward_ns)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for blocks with equal numbers."""
        return (*(part.tobytes() for part in self.arrays[:-1]), self.outgoing.tobytes(), self.movable.tobytes())


@dataclass(frozen=True)
class Piece:
    """Blocks ``first`` to ``last`` of a chain decided as one: the equal of block ``which`` of the unique ones."""

    first: int
    last: int
    which: int


@dataclass(frozen=True)
class Blocks:
    """Blocks 0..L-1 between ``positions`` (shape [L + 1]); ``pieces`` are what options are chosen for.

    first_nbytes[b]: what else is held during the first forward of b; again_nbytes[b]: gradients and fixed storages
    alive when the backward of b starts (shape [L]); crossing_nbytes[p, q]: bytes of free storages made in block p
    whose last use is in block q > p (shape [L, L]); live_nbytes[b]: the most held while b runs forward and drops
    what no later op needs, what crosses into b included; local_nbytes[b]: the same without it (shape [L]).
    """

    positions: Array
    pieces: tuple[Piece, ...]
    unique: tuple[Block, ...]
    first_nbytes: Array
    again_nbytes: Array
    crossing_nbytes: Array
    live_nbytes: Array
    local_nbytes: Array

    def __len__(self) -> int:
        return len(self.positions) - 1


def _lists(flat: Array, start: Array, low: int, high: int, number: Array) -> tuple[Array, Array]:
    """The lists low..high-1 of a CSR array in local numbers, entries without a number left out."""
    values = number[flat[start[low] : start[high]]]
    inside = values >= 0
    counts = np.concatenate(([0], np.cumsum(inside)))
    return counts[start[low : high + 1] - start[low]], values[inside]


def _maxima(values: Array, bounds: Array) -> Array:
    """Maximum of each non-empty stretch between consecutive bounds."""
    found: Array = np.maximum.reduceat(values, bounds[:-1])
    return found


def blocks_of(evaluator: Evaluator, crossing: Crossing, nested: Sequence[Array]) -> Blocks:
    """The blocks between the finest cuts, and the pieces between the cuts of every set, equal ones shared."""
    a = evaluator.arrays
    positions = nested[-1]
    n, count, size, fixed, last_use = len(a.forward_ns), len(positions) - 1, a.nbytes, crossing.fixed, crossing.last_use
    during, between, forward = _with_fixed(a, fixed)
    cutter = _Cutter(evaluator, crossing, during, between)
    known: dict[tuple[object, ...], int] = {}
    unique: list[Block] = []
    pieces: dict[tuple[int, int], Piece] = {}
    for cuts in reversed(nested):
        at = np.searchsorted(positions, cuts)
        for first, end, low, high in zip(at[:-1].tolist(), at[1:].tolist(), cuts[:-1], cuts[1:], strict=True):
            if (first, end) in pieces:
                continue
            block = cutter.block(int(low), int(high))
            key = block.key
            if key not in known:
                known[key] = len(unique)
                unique.append(block)
            pieces[first, end] = Piece(first, end - 1, known[key])
    block_of = np.searchsorted(positions, np.arange(n), side="right") - 1
    free = ~fixed
    spans = np.zeros((count, count), dtype=np.int64)
    np.add.at(spans, (block_of[a.producer[free]], block_of[last_use[free]]), size[free])
    np.fill_diagonal(spans, 0)
    live = _alive(a.producer[free], last_use[free], size[free], n) + a.workspace
    ends = np.minimum(last_use, positions[block_of[a.producer] + 1] - 1)
    local = _alive(a.producer[free], ends[free], size[free], n) + a.workspace
    again = np.array([cutter.base(int(p)) for p in positions[1:]], dtype=np.int64)
    return Blocks(
        positions, tuple(pieces[key] for key in sorted(pieces)), tuple(unique), _maxima(forward, positions), again,
        spans, _maxima(live, positions), _maxima(local, positions),
    )  # fmt: skip


class _Cutter:
    """Cuts blocks out of a problem; ``during`` and ``between`` are its constants with the fixed storages."""

    def __init__(self, evaluator: Evaluator, crossing: Crossing, during: Array, between: Array) -> None:
        self.a, self.crossing, self.during, self.between = evaluator.arrays, crossing, during, between
        n = len(self.a.forward_ns)
        backward = np.zeros(n + 1, dtype=np.int64)
        backward[self.a.order + 1] = 1
        self.behind = len(self.a.order) - np.cumsum(backward)  # backwards of the ops from each position on
        self.unwanted = np.zeros(len(self.a.nbytes), dtype=np.bool_)
        self.unwanted[list(evaluator.problem.recompute)] = True
        self.number = np.full(len(self.a.nbytes), -1, dtype=np.int64)

    def base(self, position: int) -> int:
        """Constant bytes alive when the first backward below a cut starts."""
        first = int(self.behind[position])
        return int(self.between[first]) if first < len(self.between) else 0

    def block(self, low: int, high: int) -> Block:
        """The block of the ops low..high-1."""
        a, number = self.a, self.number
        first, end = int(self.behind[high]), int(self.behind[low])
        made = a.writes[a.writes_start[low] : a.writes_start[high]]
        made = made[~self.crossing.fixed[made]]
        number[made] = np.arange(len(made))
        base = self.base(high)
        arrays = Arrays(
            *_lists(a.reads, a.reads_start, low, high, number),
            *_lists(a.writes, a.writes_start, low, high, number),
            *_lists(a.needs, a.needs_start, first, end, number),
            a.order[first:end] - low,
            a.nbytes[made],
            a.producer[made] - low,
            np.zeros(len(made), dtype=np.bool_),
            a.forward_ns[low:high],
            a.workspace[low:high],
            a.random_state[low:high],
            self.during[first:end] - base,
            self.between[first:end] - base,
            0,
        )
        number[made] = -1
        used = np.zeros(len(made), dtype=np.bool_)
        used[arrays.reads] = used[arrays.needs] = True
        return Block(arrays, self.crossing.last_use[made] >= high, used & ~self.unwanted[made])


def _alive(made: Array, last: Array, nbytes: Array, n: int) -> Array:
    """Bytes alive during each of n ops when storages live from ``made`` to ``last``, both included."""
    change = np.zeros(n + 1, dtype=np.int64)
    np.add.at(change, made, nbytes)
    np.add.at(change, last + 1, -nbytes)
    return np.cumsum(change)[:n]


def _with_fixed(a: Arrays, fixed: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
    """(during, between, forward): the constant bytes of each backward step and each first run, fixed ones included."""
    n, m = len(a.forward_ns), len(a.order)
    last_read = np.full(len(a.nbytes), -1, dtype=np.int64)  # by a backward, as a position of the order
    np.maximum.at(last_read, a.needs, np.repeat(np.arange(m), np.diff(a.needs_start)))
    # a recomputation serves the backwards of ops from its own on, and may read what is fixed as late as their last
    position_of = np.full(n + 1, -1, dtype=np.int64)
    position_of[a.order] = np.arange(m)
    latest = np.maximum.accumulate(position_of[::-1])[::-1]
    np.maximum.at(last_read, a.reads, latest[np.repeat(np.arange(n), np.diff(a.reads_start))])
    last_read[a.pinned] = m
    last_forward = a.producer.copy()
    np.maximum.at(last_forward, a.reads, np.repeat(np.arange(n), np.diff(a.reads_start)))
    last_forward[last_read >= 0] = n - 1
    held = fixed & (last_read >= 0)
    change = np.zeros(m + 1, dtype=np.int64)
    np.add.at(change, np.minimum(last_read[held], m - 1) + 1, -a.nbytes[held])
    alive = int(a.nbytes[held].sum()) + np.cumsum(change)[:m]
    forward = _alive(a.producer[fixed], last_forward[fixed], a.nbytes[fixed], n) + a.base
    return a.during + alive, a.between + alive, forward
