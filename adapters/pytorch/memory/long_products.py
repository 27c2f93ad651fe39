"""Matrix products on a CPU that would take long: a part of one tells the time of the whole."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch import fx

from .plain_calls import form_of, is_layout

_aten = torch.ops.aten
_DIMENSIONS = {
    _aten.mm.default: ("mk", "kn", "mn"),
    _aten.addmm.default: ("n", "mk", "kn", "mn"),
    _aten.bmm.default: ("bmk", "bkn", "bmn"),
}
"""The dimensions of the operands and of the result."""

_ENOUGH = 2**31
"""Multiply-adds of a part: about a twentieth of a second on a core."""
_LEAST_SIZE = 1024
"""Of the dimension that is cut: a kernel is as quick in a part of so many rows."""
_FRESH_NBYTES = 2**25
"""A result of so many bytes is taken from the system page by page, which costs time. So is that of its part."""


class Part(NamedTuple):
    """Arguments of a part, the bytes of its result, and how many times the whole is the part."""

    args: tuple[Any, ...]
    result_nbytes: int
    times: float


def part_of(node: fx.Node, layouts: Callable[[fx.Node], Any]) -> Part | None:
    """A part of a product on example tensors: a piece of its longest dimension. None for what is no long product."""
    dimensions = _DIMENSIONS.get(node.target)
    if dimensions is None or form_of(node, layouts, None) is None:
        return None
    *operands, result = dimensions
    given = [layouts(argument) if isinstance(argument, fx.Node) else argument for argument in node.args]
    if [len(a.shape) if is_layout(a) else None for a in given] != [len(names) for names in operands]:
        return None
    sizes: dict[str, int] = {}
    for a, names in zip(given, operands, strict=True):
        sizes.update(zip(names, a.shape, strict=True))
    longest = max(sizes, key=sizes.__getitem__)
    share = _ENOUGH / prod(sizes.values())
    nbytes = prod(sizes[name] for name in result) * given[0].dtype.itemsize
    if longest in result and nbytes > _FRESH_NBYTES:
        share = max(share, _FRESH_NBYTES / nbytes)
    size = max(_LEAST_SIZE, ceil(share * sizes[longest]))
    if 2 * size > sizes[longest]:
        return None
    times = sizes[longest] / size
    sizes[longest] = size
    args = tuple(a.packed([sizes[name] for name in names]).example() for a, names in zip(given, operands, strict=True))
    return Part(args, prod(sizes[name] for name in result) * given[0].dtype.itemsize, times)
