"""Random numbers of our own, the same on every machine and in every version of numpy and numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .jit import compiled


def stream(seed: int) -> NDArray[np.uint64]:
    """The state of a stream, shape [1]; `uniform` moves it on."""
    return np.array([(seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % 2**64 or 1], dtype=np.uint64)


@compiled
def uniform(state: NDArray[np.uint64]) -> float:
    """The next number in [0, 1): xorshift64* (Marsaglia 2003, Vigna 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0
