"""The compiled search for ways to run one block: all labellings of a few storages, or an annealing for many.

The annealing minimises a weighted sum of time, held bytes and peak; of all labellings met, the quickest for every
amount held and every peak (both in steps of a grid) is remembered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Array, Arrays, Labels, Scratch
from ..kernels.jit import compiled, copy_part, sum_of
from ..kernels.xorshift import uniform
from .option_cost import Measured, measure

Flags = NDArray[np.bool_]


class Grid(NamedTuple):
    """Steps of bytes held and of the peak: how many, and how many bytes each takes."""

    helds: int
    peaks: int
    held_nbytes: int
    peak_nbytes: int


@compiled
def enumerate_all(
    a: Arrays,
    outgoing: Flags,
    last: bool,
    labels: Labels,
    movable: Array,
    w: Scratch,
    wanted: Flags,
    found: Array,
) -> None:
    """Measure all 2^k labellings of the k movable storages into ``found`` (shape [2^k, 5]). ``wanted``: room."""
    for mask in range(len(found)):
        for bit in range(len(movable)):
            labels[movable[bit]] = mask >> bit & 1
        _put(found, mask, measure(a, outgoing, last, labels, w, wanted))


@compiled
def _put(found: Array, row: int, measured: Measured) -> None:
    for column in range(5):
        found[row, column] = measured[column]


@compiled
def measure_all(
    a: Arrays,
    outgoing: Flags,
    last: bool,
    rows: NDArray[np.int8],
    w: Scratch,
    wanted: Flags,
    grid: Grid,
    found: Array,
    kept: NDArray[np.int8],
) -> None:
    """Measure and remember every labelling of ``rows`` (shape [k, S]). ``wanted``: room, one entry per storage."""
    for row in range(len(rows)):
        _remember(measure(a, outgoing, last, rows[row], w, wanted), last, rows[row], grid, found, kept)


@compiled
def _value(measured: Measured, last: bool, per_byte: float, per_peak: float) -> float:
    held, forward, backward, extra, again = measured[0], measured[1], measured[2], measured[3], measured[4]
    time = again if last else extra
    return time + per_byte * held + per_peak * max(forward, backward)


@compiled
def _remember(
    measured: Measured,
    last: bool,
    labels: Labels,
    grid: Grid,
    found: Array,
    kept: NDArray[np.int8],
) -> None:
    """Keep the labelling if it is the quickest so far of its step of bytes held and step of peak."""
    held, forward, backward, _, _ = measured
    row = min(grid.peaks - 1, max(forward, backward) // grid.peak_nbytes)
    if not last:
        row += grid.peaks * min(grid.helds - 1, held // grid.held_nbytes)
    column = 4 if last else 3
    if found[row, 0] < 0 or measured[column] < found[row, column]:
        _put(found, row, measured)
        copy_part(kept[row], 0, labels, 0, len(labels))


@compiled
def anneal(
    a: Arrays,
    outgoing: Flags,
    last: bool,
    movable: Array,
    weights: NDArray[np.float64],
    iterations: int,
    state: NDArray[np.uint64],
    w: Scratch,
    wanted: Flags,
    room: NDArray[np.int8],
    grid: Grid,
    found: Array,
    kept: NDArray[np.int8],
) -> None:
    """Anneal for each row of ``weights`` (ns per byte held, ns per byte of peak) from the best labels known for it.

    The quickest of every step goes to found and kept (shape [rows, 5] and [rows, S]; unused rows stay negative).
    ``wanted`` and ``room`` (shape [2, S]) are room.
    """
    size, count = len(wanted), len(movable)
    scale = max(1.0, float(sum_of(a.forward_ns))) / max(1, count)
    labels, trial = room[0], room[1]
    copy_part(labels, 0, kept[0], 0, size)
    for row in range(len(weights)):
        per_byte, per_peak = weights[row, 0], weights[row, 1]
        now = np.inf
        for known in range(len(found)):
            value = _value(found[known], last, per_byte, per_peak)
            if found[known, 0] >= 0 and value < now:
                now = value
                copy_part(labels, 0, kept[known], 0, size)
        for iteration in range(iterations):
            temperature = scale * 0.3 * 0.01 ** (iteration / iterations)
            copy_part(trial, 0, labels, 0, size)
            kind = uniform(state)
            at = int(uniform(state) * count)
            s = movable[at]
            if kind < 0.5:
                trial[s] = 1 - trial[s]
            elif kind < 0.8:
                other = movable[min(count - 1, max(0, at - 12 + int(uniform(state) * 25)))]
                trial[s], trial[other] = trial[other], trial[s]
                if trial[s] == labels[s]:
                    trial[s] = 1 - trial[s]
            else:
                label = int(uniform(state) * 2)
                for near in range(at, min(count, at + 2 + int(uniform(state) * 6))):
                    trial[movable[near]] = label
            measured = measure(a, outgoing, last, trial, w, wanted)
            _remember(measured, last, trial, grid, found, kept)
            new = _value(measured, last, per_byte, per_peak)
            if new <= now or uniform(state) < np.exp((now - new) / temperature):
                copy_part(labels, 0, trial, 0, size)
                now = new


@compiled
def undominated(rows: Array, chosen: Array, count: int, step: int) -> int:
    """Add to the first ``count`` of ``chosen`` the rows that none of it matches in all columns; returns the new count.

    ``rows`` come in order of their last column, the time (shape [k, columns]). The others, memory, count as equal
    within a tolerance that grows, in steps of at least ``step``, until they fit ``chosen``.
    """
    tolerance = 0
    while True:
        total = count
        for row in range(len(rows)):
            matched = False
            for other in range(total):
                matched = True
                for column in range(rows.shape[1]):
                    slack = tolerance if column < rows.shape[1] - 1 else 0
                    if rows[chosen[other], column] > rows[row, column] + slack:
                        matched = False
                        break
                if matched:
                    break
            if not matched:
                total += 1
                if total > len(chosen):
                    break
                chosen[total - 1] = row
        if total <= len(chosen):
            return total
        tolerance = max(step, int(tolerance * 1.6) + 1)
