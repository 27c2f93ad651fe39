"""Forward and backward of a few ONNX ops in NumPy, for the reference executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Kernel = Callable[[Any, Sequence[Array]], tuple[list[Array], list[Array]]]
Derivative = Callable[[Any, Callable[[str], Array], Array, set[int]], dict[int, Array]]


def plain(function: Callable[..., Array]) -> Kernel:
    return lambda node, inputs: ([function(*inputs)], [])


def pairs_of(x: Array) -> Array:
    return x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)


def max_pool(node: Any, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Maxima of two neighbours; the hidden buffer holds the place of each."""
    pairs = pairs_of(inputs[0])
    return [pairs.max(-1)], [pairs.argmax(-1).astype(np.int64)]


def dropout(node: Any, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Half of the elements, doubled; the hidden buffer is the mask."""
    mask = np.random.random(inputs[0].shape) < 0.5
    return [inputs[0] * mask * 2], [mask]


FORWARD: dict[str, Kernel] = {
    "MatMul": plain(np.matmul),
    "Add": plain(np.add),
    "Mul": plain(np.multiply),
    "Relu": plain(lambda x: np.maximum(x, np.float32(0))),
    "Identity": plain(lambda x: x),
    "Transpose": plain(np.transpose),
    "Reshape": plain(lambda x, shape: x.reshape(shape)),
    "MaxPool": max_pool,
    "Dropout": dropout,
}


def reduced(gradient: Array, rank: int) -> Array:
    """The sum over the dimensions that an operand of this rank was repeated along; else the gradient itself."""
    extra = tuple(range(gradient.ndim - rank))
    return gradient.sum(extra) if extra else gradient


def of_product(node: Any, saved: Callable[[str], Array], gradient: Array, wanted: set[int]) -> dict[int, Array]:
    left, right = node.input
    found = {}
    if 0 in wanted:
        found[0] = gradient @ saved(right).T
    if 1 in wanted:
        found[1] = saved(left).T @ gradient
    return found


def of_factors(node: Any, saved: Callable[[str], Array], gradient: Array, wanted: set[int]) -> dict[int, Array]:
    return {position: gradient * saved(node.input[1 - position]) for position in wanted}


def of_pool(node: Any, saved: Callable[[str], Array], gradient: Array, wanted: set[int]) -> dict[int, Array]:
    given = pairs_of(np.zeros_like(saved(node.input[0])))
    np.put_along_axis(given, saved("#0")[..., None], gradient[..., None], -1)
    return {0: given.reshape(saved(node.input[0]).shape)}


BACKWARD: dict[str, Derivative] = {
    "MatMul": of_product,
    "Mul": of_factors,
    "Relu": lambda node, saved, gradient, wanted: {0: gradient * (saved(node.output[0]) > 0)},
    "Dropout": lambda node, saved, gradient, wanted: {0: gradient * saved("#0") * 2},
    "MaxPool": of_pool,
}
