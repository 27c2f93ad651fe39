"""Resizing: it is a product with a sparse matrix along each dimension, and its gradient one with that transposed."""

from __future__ import annotations

import numpy as np

from ....planner.onnx_import.meaning.element_sources import COORDINATES, nearest_sources, resize_positions
from ..forward.upgrade import resize_factors
from ..nodes.writer import Array, Tensor
from .backward_call import Backward, GradientTable


def _resize(call: Backward) -> None:
    mode = str(call.attr("mode", "nearest"))
    old_form = call.call.op_type == "Upsample" or call.opset < 11
    how = "asymmetric" if old_form else str(call.attr("coordinate_transformation_mode", "half_pixel"))
    rounding = str(call.attr("nearest_mode", "floor" if old_form else "round_prefer_floor"))
    special = call.attr("antialias", 0) or call.attr("exclude_outside", 0) or how not in COORDINATES
    if mode not in ("nearest", "linear", "cubic") or special:
        raise call.refused(f"mode {mode} with {how} has no gradient here")
    factors = resize_factors(call) or [new / max(old, 1) for old, new in zip(call.shape, call.out, strict=True)]
    cube = float(call.attr("cubic_coeff_a", -0.75))
    g = call.g
    for axis, (old, new) in enumerate(zip(call.shape, call.out, strict=True)):
        if call.shape == call.out or (old == new and factors[axis] == 1):  # all of one shape: a copy
            continue
        if mode == "nearest" and how in ("asymmetric", "half_pixel") and new % old == 0 and _repeats(
            nearest_sources(old, new, factors[axis], how, rounding), new // old
        ):  # fmt: skip
            g = _summed(g, axis, old)
            continue
        matrix = np.zeros((new, old))
        for at, entries in enumerate(_entries(old, new, factors[axis], mode, how, rounding, cube)):
            for place, share in entries:
                matrix[at, place] += share
        g = _along(g, axis, matrix.astype(call.dtype))
    call.give(0, g)


def _repeats(found: list[int], times: int) -> bool:
    return found == [at // times for at in range(len(found))]


def _summed(g: Tensor, axis: int, old: int) -> Tensor:
    """The sum of neighbours."""
    shape = (*g.shape[:axis], old, g.shape[axis] // old, *g.shape[axis + 1 :])
    return g.reshape(shape).sum((axis + 1,), keep=False)


def _along(g: Tensor, axis: int, matrix: Array) -> Tensor:
    """The product with a matrix along one dimension."""
    order = (*(at for at in range(g.rank) if at != axis), axis)
    made = g.transpose(order).matmul(g.writer.constant(matrix))
    return made.transpose([order.index(at) for at in range(g.rank)])


def _entries(
    old: int, new: int, factor: float, mode: str, how: str, rounding: str, cube: float
) -> list[list[tuple[int, float]]]:
    """The old elements that each new one is made of, with their shares."""
    if mode == "nearest":
        return [[(place, 1.0)] for place in nearest_sources(old, new, factor, how, rounding)]
    made = []
    for place in map(float, resize_positions(old, new, factor, how)):
        if mode == "cubic":
            low = int(np.floor(place))
            taps = range(low - 1, low + 3)
            made.append([(min(max(tap, 0), old - 1), _cubic(abs(place - tap), cube)) for tap in taps])
            continue
        place = min(max(place, 0.0), old - 1.0)
        low = int(place)
        share = place - low
        made.append([(low, 1 - share), (min(low + 1, old - 1), share)])
    return made


def _cubic(distance: float, a: float) -> float:
    """The share of an element at a distance."""
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * (distance**3 - 5 * distance**2 + 8 * distance - 4) if distance < 2 else 0.0


RESIZING: GradientTable = {"Resize": _resize, "Upsample": _resize}
