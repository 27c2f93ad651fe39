"""Ways to run one block: what to hold between its forward and its backward, and what each way costs.

Every way is a labelling of the block's storages with KEEP and DROP (labels.py). Few storages are enumerated; for
more, a weighted sum of time, held bytes and peak is minimised by annealing over a sweep of weights (a Lagrangian
sweep), each weight starting from the labels of the one before; of all labellings met, the quickest for every
amount held and every peak (both in steps) is remembered. The search can go on later at the prices that matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .chain_blocks import Block
from .chain_measure import Measured, measure
from .evaluate import Array, Arrays, Labels, Scratch, scratch_of
from .kernels import compiled
from .labels import Label

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


@compiled
def _enumerate(
    a: Arrays, outgoing: NDArray[np.bool_], last: bool, labels: Labels, movable: Array, w: Scratch, found: Array
) -> None:
    """Measure all 2^k labellings of the k movable storages into ``found`` (shape [2^k, 5])."""
    wanted = np.zeros(len(a.nbytes), dtype=np.bool_)
    for mask in range(len(found)):
        for bit in range(len(movable)):
            labels[movable[bit]] = mask >> bit & 1
        found[mask] = measure(a, outgoing, last, labels, w, wanted)


@compiled
def _value(measured: Measured, last: bool, per_byte: float, per_peak: float) -> float:
    held, forward, backward, extra, again = measured
    time = again if last else extra
    return time + per_byte * held + per_peak * max(forward, backward)


@compiled
def _remember(
    measured: Measured,
    last: bool,
    labels: Labels,
    steps: tuple[int, int],
    limits: tuple[int, int],
    found: Array,
    kept: NDArray[np.int8],
) -> None:
    """Keep the labelling if it is the quickest so far of its step of bytes held and step of peak."""
    held, forward, backward, _, _ = measured
    row = min(steps[1] - 1, max(forward, backward) * steps[1] // (limits[1] + 1))
    if not last:
        row += steps[1] * min(steps[0] - 1, held * steps[0] // (limits[0] + 1))
    column = 4 if last else 3
    if found[row, 0] < 0 or measured[column] < found[row, column]:
        found[row] = measured
        kept[row] = labels


@compiled
def _sweep(
    a: Arrays,
    outgoing: NDArray[np.bool_],
    last: bool,
    labels: Labels,
    movable: Array,
    weights: NDArray[np.float64],
    iterations: int,
    seed: int,
    w: Scratch,
    steps: tuple[int, int],
    found: Array,
    kept: NDArray[np.int8],
) -> None:
    """Anneal for each row of ``weights`` (ns per byte held, ns per byte of peak), each from the best of the row before.

    ``labels`` starts as the labelling that holds everything; the quickest of every step goes to found and kept
    (shape [rows, 5] and [rows, S]; unused rows stay negative).
    """
    np.random.seed(seed)
    wanted = np.zeros(len(a.nbytes), dtype=np.bool_)
    count = len(movable)
    scale = max(1.0, float(a.forward_ns.sum())) / max(1, count)
    trial, best_labels = labels.copy(), labels.copy()
    whole = measure(a, outgoing, last, labels, w, wanted)
    limits = (whole[0], max(whole[1], whole[2]))
    for row in range(len(weights)):
        per_byte, per_peak = weights[row, 0], weights[row, 1]
        measured = measure(a, outgoing, last, labels, w, wanted)
        _remember(measured, last, labels, steps, limits, found, kept)
        now = _value(measured, last, per_byte, per_peak)
        best = now
        best_labels[:] = labels
        for iteration in range(iterations):
            temperature = scale * 0.3 * 0.01 ** (iteration / iterations)
            trial[:] = labels
            kind = np.random.random()
            at = np.random.randint(count)
            s = movable[at]
            if kind < 0.5:
                trial[s] = 1 - trial[s]
            elif kind < 0.8:
                other = movable[min(count - 1, max(0, at + np.random.randint(-12, 13)))]
                trial[s], trial[other] = trial[other], trial[s]
                if trial[s] == labels[s]:
                    trial[s] = 1 - trial[s]
            else:
                value = np.random.randint(2)
                for near in range(at, min(count, at + 2 + np.random.randint(6))):
                    trial[movable[near]] = value
            measured = measure(a, outgoing, last, trial, w, wanted)
            _remember(measured, last, trial, steps, limits, found, kept)
            new = _value(measured, last, per_byte, per_peak)
            if new <= now or np.random.random() < np.exp((now - new) / temperature):
                labels[:] = trial
                now = new
                if new < best:
                    best = new
                    best_labels[:] = labels
        labels[:] = best_labels


class BlockSearch:
    """The ways met so far to run one block; ``last``: no later block needs what leaves it."""

    def __init__(self, block: Block, *, last: bool) -> None:
        a = self._arrays = block.arrays
        self._outgoing, self._last = block.outgoing, last
        self._scratch = scratch_of(a)
        held = block.outgoing & (not last)
        self._movable = np.flatnonzero(block.movable & ~held)
        self._base = np.where(held, Label.KEEP, Label.DROP).astype(np.int8)
        self._nbytes, self._ns = max(1, int(a.nbytes.sum())), max(1, int(a.forward_ns.sum()))
        self.enumerated = len(self._movable) <= _ENUMERATED
        if self.enumerated:
            self._found = np.zeros((1 << len(self._movable), 5), dtype=np.int64)
            _enumerate(a, block.outgoing, last, self._base.copy(), self._movable, self._scratch, self._found)
            self._kept = np.repeat(self._base[None, :], len(self._found), axis=0)
            for bit, storage in enumerate(self._movable):
                self._kept[:, storage] = np.arange(len(self._found)) >> bit & 1
            return
        self._steps = (1, 4 * _PEAK_STEPS) if last else (_HELD_STEPS, _PEAK_STEPS)
        self._found = np.full((self._steps[0] * self._steps[1], 5), -1, dtype=np.int64)
        self._kept = np.zeros((len(self._found), len(a.nbytes)), dtype=np.int8)

    @property
    def average_price(self) -> float:
        """Time of the block per byte it makes, in ns."""
        return self._ns / self._nbytes

    def sweep(self, iterations: int) -> None:
        """Look for ways at every price, ``iterations`` labellings for each."""
        prices = self.average_price * np.geomspace(1 / _SPREAD, _SPREAD, PRICES)
        labels = self._base.copy()
        labels[self._movable] = Label.KEEP
        self._anneal(labels, self._weights(prices), min(iterations, _PER_PAIR * len(self._movable) ** 2))

    def refine(self, price: float, iterations: int) -> None:
        """Look again around one price of a byte (ns), from the best labels known for it."""
        for weights in self._weights(np.array([price])):
            used = np.flatnonzero(self._found[:, 0] >= 0)
            values = _values(self._found[used], self._last, weights)
            best = self._kept[used[int(np.argmin(values))]].copy()
            self._anneal(best, weights[None, :], min(iterations, _PER_PAIR * len(self._movable) ** 2))

    def _weights(self, prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Prices of a held byte and of a byte of the peak, in ns (shape [k, 2])."""
        if self._last:
            return np.array([(0.0, price) for price in prices])
        return np.array([(price, share * price) for price in prices for share in _PEAK_SHARES])

    def _anneal(self, labels: Labels, weights: NDArray[np.float64], iterations: int) -> None:
        if not self.enumerated:
            _sweep(
                self._arrays, self._outgoing, self._last, labels, self._movable, weights, iterations, 1,
                self._scratch, self._steps, self._found, self._kept,
            )  # fmt: skip

    def options(self) -> tuple[Option, ...]:
        """The ways worth a choice: the best at every price, and others that none matches within a tolerance."""
        used = np.flatnonzero(self._found[:, 0] >= 0)
        found = self._found[used]
        prices = self.average_price * np.geomspace(1 / _SPREAD, _SPREAD, 2 * PRICES)
        best = {int(np.argmin(_values(found, self._last, weights))) for weights in self._weights(prices)}
        chosen = _undominated(found, self._last, sorted(best), self._nbytes)
        return tuple(
            Option(self._kept[used[row]].copy(), *(int(value) for value in found[row])) for row in sorted(chosen)
        )


def _values(found: Array, last: bool, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """What ``_value`` gives for every row of ``found``."""
    time = found[:, 4] if last else found[:, 3]
    value: NDArray[np.float64] = time + weights[0] * found[:, 0] + weights[1] * np.maximum(found[:, 1], found[:, 2])
    return value


def _undominated(found: Array, last: bool, best: list[int], nbytes: int) -> list[int]:
    """``best`` and the rows that no chosen one matches; memory counts as equal within a tolerance that grows until
    at most _MOST rows are chosen.
    """
    rows = found[:, 1:4].copy() if last else found[:, :4].copy()
    if last:
        rows[:, 2] = found[:, 4]
    order = np.lexsort((*rows[:, :-1].T, rows[:, -1]))
    tolerance = 0
    while True:
        chosen = list(best)
        slack = np.full(rows.shape[1], tolerance)
        slack[-1] = 0
        for row in order.tolist():
            if not chosen or not np.any(np.all(rows[chosen] <= rows[row] + slack, axis=1)):
                chosen.append(row)
        if len(chosen) <= max(_MOST, len(best)):
            return chosen
        tolerance = max(nbytes // 500, int(tolerance * 1.6) + 1)


def everything_held(block: Block, *, last: bool) -> Option:
    """The one way that recomputes nothing in the block."""
    labels = np.zeros(len(block.arrays.nbytes), dtype=np.int8)
    labels[block.movable | (block.outgoing & (not last))] = Label.KEEP
    wanted = np.zeros(len(labels), dtype=np.bool_)
    measured = measure(block.arrays, block.outgoing, last, labels, scratch_of(block.arrays), wanted)
    return Option(labels, *(int(value) for value in measured))
