"""Positions as bits of 64-bit words, for compiled kernels."""

from __future__ import annotations

import numpy as np

from .jit import compiled

_ONE = np.uint64(1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_AT = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _AT[((0x03F79D71B4CB0A89 << _bit) % 2**64) >> 58] = _bit


@compiled
def lowest_bit(word: int) -> int:
    """Index of the lowest set bit of a 64-bit word that is not 0 (Leiserson, Prokop & Randall 1998)."""
    return _AT[((word & (~word + _ONE)) * _DE_BRUIJN) >> np.uint64(58)]  # type: ignore[no-any-return]


@compiled
def bit_of(position: int) -> int:
    """The bit of a position within its word."""
    return _ONE << np.uint64(position & 63)  # type: ignore[no-any-return]
