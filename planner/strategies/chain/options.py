"""Ways to run one block: what to hold between its forward and its backward, and what each way costs.

Every way is a labelling of the block's storages with KEEP and DROP (labels.py). Few storages are enumerated; for
more, a weighted sum of time, held bytes and peak is minimised by annealing over a sweep of weights (a Lagrangian
sweep), each weight starting from the labelling that is best for it of those met or told so far. The search can go
on later at the prices that matter.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Labels, scratch_of
from ..evaluation.labels import Label
from ..kernels.xorshift import stream
from .blocks import Block
from .option_annealing import Grid, anneal, enumerate_all, measure_all, undominated
from .option_cost import measure

_ENUMERATED = 10
_MOST = 48
PRICES = 12
_PEAK_SHARES = (0.0, 0.5)
"""Weight of a byte of the peak relative to a byte held."""
_PER_PAIR = 20
"""Iterations for every pair of storages and price at most, so that small blocks take milliseconds."""

_HELD_STEPS, _PEAK_STEPS = 32, 12
_SPREAD = 256.0
"""The sweep covers prices of a byte from its average price (time of the block / bytes) / _SPREAD to times _SPREAD."""

ROWS = PRICES * (len(_PEAK_SHARES) + 1)
"""Annealings of one block: those of its options and those of its options for the end of a range."""


@dataclass(frozen=True)
class Option:
    """One way to run a block, in bytes and ns.

    ``held_nbytes`` is held from the end of the forward to the start of the backward, ``forward_nbytes`` and
    ``backward_nbytes`` are the peaks relative to the constants of the block (chain_blocks), ``extra_ns`` the
    recomputation in its backward, ``again_ns`` that and a forward that makes only what is held.
    """

    labels: Labels
    held_nbytes: int
    forward_nbytes: int
    backward_nbytes: int
    extra_ns: int
    again_ns: int


class BlockSearch:
    """The ways met so far to run one block; ``last``: no later block needs what leaves it."""

    def __init__(self, block: Block, *, last: bool) -> None:
        a = self._arrays = block.arrays
        self._outgoing, self._last = block.outgoing, last
        self._scratch, self._state = scratch_of(a), stream(1)
        self._wanted = np.zeros(len(a.nbytes), dtype=np.bool_)
        held = block.outgoing & (not last)
        self._movable = np.flatnonzero(block.movable & ~held)
        self._base = np.where(held, Label.KEEP, Label.DROP).astype(np.int8)
        self._nbytes, self._ns = max(1, int(a.nbytes.sum())), max(1, int(a.forward_ns.sum()))
        self.enumerated = len(self._movable) <= _ENUMERATED
        if self.enumerated:
            self._found = np.zeros((1 << len(self._movable), 5), dtype=np.int64)
            enumerate_all(
                a, block.outgoing, last, self._base.copy(), self._movable, self._scratch, self._wanted, self._found
            )
            self._kept = np.repeat(self._base[None, :], len(self._found), axis=0)
            for bit, storage in enumerate(self._movable):
                self._kept[:, storage] = np.arange(len(self._found)) >> bit & 1
            return
        everything = everything_held(block, last=last)
        helds, peaks = (1, 4 * _PEAK_STEPS) if last else (_HELD_STEPS, _PEAK_STEPS)
        peak = max(everything.forward_nbytes, everything.backward_nbytes)
        self._grid = Grid(helds, peaks, everything.held_nbytes // helds + 1, peak // peaks + 1)
        self._found = np.full((helds * peaks, 5), -1, dtype=np.int64)
        self._kept = np.zeros((len(self._found), len(a.nbytes)), dtype=np.int8)
        self._seed(everything.labels[None, :])

    def copy(self) -> BlockSearch:
        """A search that goes on from here without a trace in this one."""
        if self.enumerated:
            return self
        other = copy(self)
        other._found, other._kept, other._state = self._found.copy(), self._kept.copy(), self._state.copy()
        return other

    @property
    def average_price(self) -> float:
        """Time of the block per byte it makes, in ns."""
        return self._ns / self._nbytes

    def know(self, kept: NDArray[np.bool_]) -> None:
        """Measure labellings that keep what is True in the rows of ``kept`` (shape [k, S]), as far as the block may."""
        if not self.enumerated:
            rows = np.repeat(self._base[None, :], len(kept), axis=0)
            rows[:, self._movable] = np.where(kept[:, self._movable], Label.KEEP, Label.DROP)
            self._seed(np.unique(rows, axis=0))

    def _seed(self, rows: NDArray[np.int8]) -> None:
        measure_all(
            self._arrays, self._outgoing, self._last, rows, self._scratch, self._wanted, self._grid, self._found,
            self._kept,
        )  # fmt: skip

    def sweep(self, iterations: int) -> None:
        """Look for ways at every price, ``iterations`` labellings for each."""
        prices = self.average_price * np.geomspace(1 / _SPREAD, _SPREAD, PRICES)
        self._anneal(self._weights(prices), iterations)

    def refine(self, prices: NDArray[np.float64], iterations: int) -> None:
        """Look again at some prices of a byte (ns), ``iterations`` labellings for each from the best known for it."""
        self._anneal(self._weights(prices), iterations)

    def _weights(self, prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Prices of a held byte and of a byte of the peak, in ns (shape [k, 2])."""
        shares = np.array([1.0] if self._last else _PEAK_SHARES)
        peak = (prices[:, None] * shares).ravel()
        held = np.repeat(prices * (not self._last), len(shares))
        return np.column_stack((held, peak))

    def _anneal(self, weights: NDArray[np.float64], iterations: int) -> None:
        if not self.enumerated:
            anneal(
                self._arrays, self._outgoing, self._last, self._movable, weights,
                min(iterations, _PER_PAIR * len(self._movable) ** 2), self._state, self._scratch, self._wanted,
                np.zeros((2, len(self._base)), dtype=np.int8), self._grid, self._found, self._kept,
            )  # fmt: skip

    def options(self) -> tuple[Option, ...]:
        """The ways worth a choice: the best at every price, and others that none matches within a tolerance."""
        used = np.flatnonzero(self._found[:, 0] >= 0)
        found = self._found[used]
        rows = found[:, (1, 2, 4) if self._last else (0, 1, 2, 3)]
        weights = self._weights(self.average_price * np.geomspace(1 / _SPREAD, _SPREAD, 2 * PRICES))
        peak = np.maximum(found[:, 1], found[:, 2])
        values = weights[:, :1] * found[:, 0] + weights[:, 1:] * peak + rows[:, -1]
        best = np.unique(np.argmin(values, axis=1))
        order = np.lexsort((*rows[:, :-1].T, rows[:, -1]))
        chosen = np.zeros(max(_MOST, len(best)), dtype=np.int64)
        chosen[: len(best)] = np.argsort(order)[best]
        count = undominated(np.ascontiguousarray(rows[order]), chosen, len(best), self._nbytes // 500)
        return tuple(
            Option(self._kept[used[row]].copy(), *values)
            for row in np.sort(order[chosen[:count]]).tolist()
            for values in (found[row].tolist(),)
        )


def everything_held(block: Block, *, last: bool) -> Option:
    """The one way that recomputes nothing in the block."""
    labels = np.zeros(len(block.arrays.nbytes), dtype=np.int8)
    labels[block.movable | (block.outgoing & (not last))] = Label.KEEP
    wanted = np.zeros(len(labels), dtype=np.bool_)
    measured = measure(block.arrays, block.outgoing, last, labels, scratch_of(block.arrays), wanted)
    return Option(labels, *(int(value) for value in measured))
