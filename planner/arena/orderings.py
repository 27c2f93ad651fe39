"""The orders in which items are placed greedily: what is hard to place comes first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..strategies.kernels.xorshift import stream, uniform
from .first_fit import Array, Items

PERTURBED = 3
"""How many more orders are made from the first one by exchanging items of about the same size."""


def orderings(items: Items, movable: Array) -> Iterator[Array]:
    """Orders of the items ``movable``: by area, size, lifetime, end, begin, and by perturbed sizes.

    Ties fall back to size, then to begin, then to the order in which the items were given.
    """
    size, begin, end = items.size[movable], items.begin[movable], items.end[movable]
    lifetime = end - begin
    area = size.astype(np.float64) * lifetime
    for key in (-area, -size, -lifetime, -end, begin):
        yield movable[np.lexsort((begin, -size, key))]
    state = stream(0)
    for _ in range(PERTURBED):
        factors = np.array([0.5 + uniform(state) for _ in range(len(size))])
        yield movable[np.lexsort((begin, -size * factors))]
