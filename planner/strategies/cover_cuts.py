"""Cuts from a memory row: what fits together is a knapsack, and lifted minimal covers describe it better than bytes.

A set of storages that does not fit (a cover) cannot all be held: ``sum x <= |C| - 1``. The other storages are lifted
into it one after the other with exact integer coefficients (Balas, Math. Programming 1975; the order of lifting
after Gu, Nemhauser & Savelsbergh, INFORMS J. Computing 1998), so every cut holds for every 0/1 point of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kernels import allocating
from .linear_program import Floats

Ints = NDArray[np.int64]
_VIOLATION = 1e-4
_ROUNDED = 5


@dataclass(frozen=True)
class Cover:
    """The cut ``sum(coefficient * x) <= limit`` with terms (coefficient, variable)."""

    limit: int
    terms: tuple[tuple[int, int], ...]


@allocating
def lifted(weights: Ints, room: int, order: Ints, kind: Ints) -> tuple[Ints, int]:
    """(coefficient of every item, right-hand side) of a cover lifted in ``order``.

    ``kind`` of each entry: 0 it is in the cover, 1 it is lifted upwards from the value 0, 2 downwards from 1. Those
    in the cover come first; they exceed what the items of kind 2 leave. least[v]: the least weight of items of the
    cut so far that are worth v or more.
    """
    count = len(weights)
    coefficients = np.zeros(count, dtype=np.int64)
    free, limit, top = room, -1, 0
    for index in range(len(order)):
        if kind[index] == 2:
            free -= weights[order[index]]
        elif kind[index] == 0:
            limit += 1
    big = np.int64(1) << 62
    least = np.full(4 * count + 8, big, dtype=np.int64)
    least[0] = 0
    for index in range(len(order)):
        item = order[index]
        weight = weights[item]
        left = free
        if kind[index] == 1:
            left = free - weight  # the item is there: what else of the cut still fits?
        elif kind[index] == 2:
            free += weight  # without the item there is more room
            left = free
        fits = 0
        while fits < top and least[fits + 1] <= left:
            fits += 1
        if kind[index] == 0:
            value = 1
        elif kind[index] == 1:
            value = max(0, limit - fits)
        else:
            value = fits - limit
            limit = fits
        coefficients[item] = value
        if value > 0:
            if top + value >= len(least):
                return np.zeros(count, dtype=np.int64), 0
            top += value
            for worth in range(top, 0, -1):
                before = least[max(0, worth - value)]
                if before < big:
                    least[worth] = min(least[worth], before + weight)
    return coefficients, limit


def rounded(terms: list[tuple[int, int]], lower: int, point: Floats) -> list[Cover]:
    """Mixed-integer rounding cuts that ``point`` breaks, of the row ``sum(-weight * x) >= lower``.

    The row is divided by d after some variables are complemented, then rounded (Marchand & Wolsey, Operations Research
    2001): with r = room mod d, ``sum(((d - r) floor(w / d) + max(0, w mod d - r)) x) <= (d - r) floor(room / d)``.
    """
    weights = np.array([-coefficient for coefficient, _ in terms], dtype=np.int64)
    variables = np.array([variable for _, variable in terms], dtype=np.int64)
    values = point[variables]
    between = (values > 1e-6) & (values < 1 - 1e-6)
    divisors = sorted({abs(int(w)) for w in weights[between]} | {abs(int(w)) for w in weights[values > 0.5]})
    divisors = sorted({d // k for d in divisors for k in (1, 2, 3, 4) if d // k > 1})
    found: dict[tuple[tuple[int, int], ...], tuple[float, Cover]] = {}
    for flipped in (values > 0.5, values > 1 - 1e-6):
        signed = np.where(flipped, -weights, weights)
        room = -lower - int(weights[flipped].sum())
        seen = np.where(flipped, 1 - values, values)
        for divisor in divisors:
            rest = room % divisor
            if rest == 0:
                continue
            scaled = (divisor - rest) * (signed // divisor) + np.maximum(0, signed % divisor - rest)
            limit = (divisor - rest) * (room // divisor)
            norm = float(np.sqrt((scaled.astype(np.float64) ** 2).sum()))
            violation = (float(scaled @ seen) - limit) / max(norm, 1.0)
            if violation < 1e-5:
                continue
            limit -= int(scaled[flipped].sum())
            scaled = np.where(flipped, -scaled, scaled)
            unit = max(1, int(np.gcd.reduce(scaled)))
            used = np.flatnonzero(scaled)
            cut = Cover(
                limit // unit, tuple(zip((scaled[used] // unit).tolist(), variables[used].tolist(), strict=True))
            )
            found.setdefault(cut.terms, (violation, cut))
    ranked = sorted(found.values(), key=lambda entry: (-entry[0], entry[1].limit, entry[1].terms))
    return [cut for _, cut in ranked[:_ROUNDED]]


def separate(terms: list[tuple[int, int]], lower: int, point: Floats) -> list[Cover]:
    """Lifted covers that ``point`` breaks, of the row ``sum(-weight * x) >= lower``."""
    signed = np.array([-coefficient for coefficient, _ in terms], dtype=np.int64)
    variables = np.array([variable for _, variable in terms], dtype=np.int64)
    flipped = signed < 0  # such a variable enters as 1 - x
    weights = np.abs(signed)
    room, values = -lower + int(weights[flipped].sum()), np.where(flipped, 1 - point[variables], point[variables])
    one, zero = values > 1 - 1e-6, values < 1e-6
    between = np.flatnonzero(~one & ~zero)
    free = room - int(weights[one].sum())
    if free < 0 or int(weights[between].sum()) <= free:
        return []
    found: dict[tuple[tuple[int, int], ...], Cover] = {}
    for key in ((1 - values) / weights, -values, -weights * values, (1 - values)):
        ranked = between[np.argsort(key[between], kind="stable")]
        reach = int(np.searchsorted(np.cumsum(weights[ranked]), free, side="right")) + 1
        cover = list(ranked[:reach])
        excess = int(weights[cover].sum()) - free
        for item in sorted(cover, key=lambda i: (values[i], weights[i])):
            if weights[item] < excess:
                cover.remove(item)
                excess -= int(weights[item])
        inside = set(cover)
        others = [item for item in between[np.argsort(-values[between], kind="stable")] if item not in inside]
        ones, zeros = np.flatnonzero(one), np.flatnonzero(zero)
        ones, zeros = ones[np.argsort(-weights[ones], kind="stable")], zeros[np.argsort(-weights[zeros], kind="stable")]
        order = np.concatenate((np.array(cover + others, dtype=np.int64), ones, zeros))
        kinds = [0] * len(cover) + [1] * len(others) + [2] * len(ones) + [1] * len(zeros)
        coefficients, limit = lifted(weights, room, order, np.array(kinds, dtype=np.int64))
        if float(coefficients @ values) > limit + _VIOLATION:
            limit -= int(coefficients[flipped].sum())
            coefficients = np.where(flipped, -coefficients, coefficients)
            used = np.flatnonzero(coefficients)
            cut = Cover(int(limit), tuple(zip(coefficients[used].tolist(), variables[used].tolist(), strict=True)))
            found.setdefault(cut.terms, cut)
    return list(found.values())
