"""The dynamic programme over a chain of blocks, and the way back from a number of memory units to decisions.

D[s, t, m] is the least time to run blocks s..t forward and backward in m units of memory when what crosses into s is
held elsewhere. Either block s keeps some of its inner values (one of its options) and s+1..t follow, or s..k-1 run
forward and keep only what crosses into k, k..t are done, and s..k-1 start again: the recurrence of Rotor
(Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, arXiv:1911.13214) with several ways to keep a block,
sets of storages between blocks, and gradients that differ from cut to cut.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Array
from ..kernels.jit import allocating, compiled
from .blocks import Blocks
from .options import Option

Floats = NDArray[np.float32]
_DITHER = 0.6180339887498949
"""Fractional steps of the golden ratio: spreads the rounding of equal blocks evenly (no bias along the chain)."""


class Units(NamedTuple):
    """A chain in units of memory, L blocks.

    start, to, held, forward, backward, extra, again: the options of the pieces that start with block b are the rows
    start[b]..start[b+1]-1 of the other six, to[o] is the last block of o's piece; end_*: the same for pieces that
    end a range of recomputations. run[b]: time to run blocks 0..b-1 forward
    where nothing is made in vain; kept[s, k]: units that cross into k and are made in s..k-1; discard[s, b]: peak of
    running b when s..b-1 ran before it; first[b], again_at[b]: constants of a first run and a recomputation up to b.
    """

    start: Array
    to: Array
    held: Array
    forward: Array
    backward: Array
    extra: Floats
    again: Floats
    end_start: Array
    end_to: Array
    end_forward: Array
    end_backward: Array
    end_again: Floats
    run: Floats
    kept: Array
    discard: Array
    first: Array
    again_at: Array


class Forward(NamedTuple):
    """Run the ops of blocks ``first`` to ``last`` forward."""

    first: int
    last: int


class Backward(NamedTuple):
    """Run the backwards of a piece under the option of a row; ``end``: a row for the end of a recomputed range."""

    row: int
    end: bool


def units_of(
    chain: Blocks,
    options: tuple[tuple[Option, ...], ...],
    ends: tuple[tuple[Option, ...], ...],
    unit: float,
    *,
    even: bool = True,
) -> Units:
    """The chain with every size divided by ``unit`` bytes and rounded up; what is held, with ``even``, evenly."""
    count = len(chain)
    dither = np.array([(0.5 + b * _DITHER) % 1.0 if even else 1 - 1e-9 for b in range(count)])
    inner = _flat(chain, options, unit, dither)
    outer = _flat(chain, ends, unit, dither)
    run = np.zeros(count + 1)
    for piece in chain.pieces:
        if piece.first == piece.last:
            run[piece.first + 1] = min(option.again_ns - option.extra_ns for option in options[piece.which])
    run = np.cumsum(run)
    rounded = np.rint if even else _up
    kept = np.zeros((count, count + 1))
    for k in range(1, count):  # storages made in s..k-1 that cross into k
        kept[:k, k] = np.cumsum(chain.crossing_nbytes[:k, k:].sum(axis=1)[::-1])[::-1]
    discard = np.zeros((count, count))
    for b in range(count):
        through = np.zeros(count)
        if b + 1 < count and b:
            through[1 : b + 1] = np.cumsum(chain.crossing_nbytes[:b, b + 1 :].sum(axis=1))
        discard[: b + 1, b] = np.minimum(
            chain.live_nbytes[b] - through[: b + 1], chain.local_nbytes[b] + kept[: b + 1, b]
        )
    return Units(
        *inner, outer[0], outer[1], outer[3], outer[4], outer[6],
        run.astype(np.float32), rounded(kept / unit).astype(np.int64), _up(discard / unit),
        _up(chain.first_nbytes / unit), _up(chain.again_nbytes / unit),
    )  # fmt: skip


def _up(values: NDArray[np.float64]) -> Array:
    return np.ceil(values - 1e-9).astype(np.int64)


def _flat(
    chain: Blocks, options: tuple[tuple[Option, ...], ...], unit: float, dither: NDArray[np.float64]
) -> tuple[Array, Array, Array, Array, Array, Floats, Floats]:
    """(start, to, held, forward, backward, extra, again) of the options of every piece, in order of first."""
    first, last = ([getattr(p, end) for p in chain.pieces for _ in options[p.which]] for end in ("first", "last"))
    rows = np.array(
        [
            (o.held_nbytes, o.forward_nbytes, o.backward_nbytes, o.extra_ns, o.again_ns)
            for piece in chain.pieces
            for o in options[piece.which]
        ]
    ).reshape(-1, 5)
    start = np.searchsorted(first, np.arange(len(chain) + 1))
    return (
        start.astype(np.int64), np.array(last, dtype=np.int64),
        np.floor(rows[:, 0] / unit + dither[first]).astype(np.int64),
        _up(rows[:, 1] / unit), _up((rows[:, 2] + chain.again_nbytes[last]) / unit),
        rows[:, 3].astype(np.float32), rows[:, 4].astype(np.float32),
    )  # fmt: skip


@compiled
def _first(u: Units, s: int, t: int) -> int:
    """The most that blocks s..t have beside them when they run forward for the first time."""
    most = 0
    for b in range(s, t + 1):
        most = max(most, u.first[b])
    return most


@allocating
def _lower(d: Floats, after: Floats, before: Floats, held: int, need: int, cost: np.float32) -> None:
    """Lower d[m] to after[m - held] + before[m] + cost for every m from ``need`` >= held on."""
    goal, rest, first = d[need:], after[need - held : len(d) - held], before[need:]
    for m in range(len(goal)):  # over slices from 0, which compilers turn into vector instructions
        value = rest[m] + first[m] + cost
        goal[m] = value if value < goal[m] else goal[m]


@allocating
def table(u: Units, most: int) -> Floats:
    """D for every range and 0..most units; infinite where the range does not fit (shape [L, L, most + 1], ns)."""
    count = len(u.run) - 1
    best = np.empty((count, count, most + 1), dtype=np.float32)
    nothing = np.zeros(most + 1, dtype=np.float32)
    for t in range(count):
        final = t == count - 1
        for s in range(t, -1, -1):
            d = best[s, t]
            d[:] = np.inf
            constant = u.again_at[t]
            if not final:
                for o in range(u.end_start[s], u.end_start[s + 1]):
                    if u.end_to[o] != t:
                        continue
                    need = max(u.end_backward[o], u.end_forward[o] + constant)
                    if need <= most:
                        d[need] = min(d[need], u.end_again[o])
            for o in range(u.start[s], u.start[s + 1]):
                if u.to[o] > t or (u.to[o] == t and not final):
                    continue
                held = u.held[o]
                need = max(u.backward[o], u.forward[o] + (_first(u, s, u.to[o]) if final else constant))
                cost = u.extra[o] if final else u.again[o]
                if need <= most and u.to[o] == t:
                    d[need] = min(d[need], cost)
                elif max(need, held) <= most and u.to[o] < t:
                    _lower(d, best[u.to[o] + 1, t], nothing, held, max(need, held), cost)
            for m in range(most):
                d[m + 1] = min(d[m + 1], d[m])
            need = 0
            for k in range(s + 1, t + 1):
                need = max(need, u.discard[s, k - 1] + (u.first[k - 1] if final else constant))
                if need > most:
                    break
                kept = u.kept[s, k]
                cost = np.float32(0) if final else u.run[k] - u.run[s]
                if kept <= most:
                    _lower(d, best[k, t], best[s, k - 1], kept, max(need, kept), cost)
    return best


@compiled
def _chosen(u: Units, best: Floats, s: int, t: int, m: int) -> tuple[int, int]:
    """How D[s, t, m] came about: (0, row of an option), (1, row of an option that ends the range) or (2, cut k > s)."""
    count = len(u.run) - 1
    final = t == count - 1
    constant = u.again_at[t]
    kind, choice, value = -1, -1, np.float32(np.inf)
    if not final:
        for o in range(u.end_start[s], u.end_start[s + 1]):
            if u.end_to[o] != t or max(u.end_backward[o], u.end_forward[o] + constant) > m:
                continue
            if u.end_again[o] < value:
                kind, choice, value = 1, o, u.end_again[o]
    for o in range(u.start[s], u.start[s + 1]):
        if u.to[o] > t or (u.to[o] == t and not final):
            continue
        cost = u.extra[o] if final else u.again[o]
        if max(u.backward[o], u.forward[o] + (_first(u, s, u.to[o]) if final else constant)) > m:
            continue
        if u.to[o] < t:
            if u.held[o] > m:
                continue
            cost = best[u.to[o] + 1, t, m - u.held[o]] + cost
        if cost < value:
            kind, choice, value = 0, o, cost
    need = 0
    for k in range(s + 1, t + 1):
        need = max(need, u.discard[s, k - 1] + (u.first[k - 1] if final else constant))
        if max(need, u.kept[s, k]) > m:
            continue
        cost = np.float32(0) if final else u.run[k] - u.run[s]
        cost = best[k, t, m - u.kept[s, k]] + best[s, k - 1, m] + cost
        if cost < value:
            kind, choice, value = 2, k, cost
    return kind, choice


def trace(u: Units, best: Floats, m: int) -> list[Forward | Backward]:
    """The steps of the best way to run the whole chain in ``m`` units; D must be finite there."""
    steps: list[Forward | Backward] = []
    pending: list[tuple[int, int, int] | Backward] = [(0, len(u.run) - 2, m)]
    while pending:
        task = pending.pop()
        if isinstance(task, Backward):
            steps.append(task)
            continue
        s, t, units = task
        kind, choice = _chosen(u, best, s, t, units)
        if kind == 2:
            steps.append(Forward(s, choice - 1))
            pending += [(s, choice - 1, units), (choice, t, units - int(u.kept[s, choice]))]
            continue
        to = int((u.end_to if kind else u.to)[choice])
        steps.append(Forward(s, to))
        pending.append(Backward(choice, kind == 1))
        if to < t:
            pending.append((to + 1, t, units - int(u.held[choice])))
    return steps
