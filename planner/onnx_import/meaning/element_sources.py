"""Which elements of a dimension those of a resized or padded one are, as ONNX Runtime takes them."""

from __future__ import annotations

import numpy as np

from ..values.constant_folding import Array

COORDINATES = frozenset(
    "half_pixel pytorch_half_pixel half_pixel_symmetric align_corners asymmetric tf_half_pixel_for_nn".split()
)
_TIE = 1e-6  # what ONNX Runtime takes for halfway


def resize_positions(old: int, new: int, factor: float, how: str) -> Array:
    """The float32 position of each new element; the order of the operations decides which neighbour is nearest."""
    at, half = np.arange(new, dtype=np.float32), np.float32(0.5)
    scale, size = np.float32(factor), np.float32(old)
    found: Array = (at + half) / scale
    if how == "align_corners":
        found = at * (size - np.float32(1)) / np.float32(max(new - 1, 1))
    elif how == "asymmetric":
        found = at / scale
    elif how == "pytorch_half_pixel" and new == 1:
        found = np.zeros_like(at)
    elif how == "half_pixel_symmetric":  # the runtime's formula: from here on in float64
        offset = size / np.float32(2) * (np.float32(1) - np.float32(new) / (scale * size))
        found = (float(offset) + (at + half).astype(np.float64) / float(scale) - 0.5).astype(np.float32)
    elif how != "tf_half_pixel_for_nn":
        found = found - half
    return found


def nearest_sources(old: int, new: int, factor: float, how: str, rounding: str) -> list[int]:
    """Which element of the old dimension each one of the new dimension is."""
    found = resize_positions(old, new, factor, how).astype(np.float64)
    low = np.floor(found)
    tie = np.abs(found - low - 0.5) <= _TIE
    rounded = {
        "round_prefer_floor": np.where(tie, low, np.floor(found + 0.5)),
        "round_prefer_ceil": np.where(tie, low + 1, np.floor(found + 0.5)),
        "floor": low,
        "ceil": np.ceil(found),
    }[rounding]
    return [int(entry) for entry in np.clip(rounded, 0, old - 1)]


def padded_sources(size: int, before: int, after: int, mode: str) -> list[int]:
    """Which element of the old dimension each one of the padded dimension is; negative pads crop first."""
    first, kept = max(-before, 0), size + min(before, 0) + min(after, 0)
    places = np.arange(size + before + after) - max(before, 0)
    if mode == "edge":
        places = np.clip(places, 0, kept - 1)
    elif mode == "wrap":
        places %= kept
    else:  # reflect
        places %= max(2 * (kept - 1), 1)
        places = np.where(places < kept, places, 2 * (kept - 1) - places)
    return [first + int(place) for place in places]
