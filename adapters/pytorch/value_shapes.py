"""Calls whose results have a size that values of an argument decide, such as a mask, and examples of such values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


def count_true(values: torch.Tensor) -> int:
    """How many values are not zero."""
    return int(values.count_nonzero())


def count_distinct(values: torch.Tensor) -> int:
    """How many values differ from each other."""
    return int(values.unique().numel())


@dataclass(frozen=True, slots=True)
class Decider:
    """The tensor ``values`` decides one size of a result: ``count`` of it."""

    values: Any
    count: Callable[[torch.Tensor], int]

    def fill(self, size: int) -> None:
        """Give the tensor values that lead to this size."""
        numbers = torch.arange(self.values.numel(), device=self.values.device)
        made = numbers < size if self.count is count_true else numbers.clamp(max=size - 1)
        self.values.copy_(made.view(self.values.shape))


def decider(call: Any, args: Sequence[Any]) -> Decider | None:
    """What decides a size of the result of a call, or of the values that it writes; None if no values do.

    Of several masks in one index none is named.
    """
    if call in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default):
        given = [index for index in args[1] if index is not None]
        return Decider(given[0], count_true) if len(given) == 1 and _is_mask(given[0]) else None
    if call is aten._unique2.default:
        return Decider(args[0], count_distinct)
    place = {aten.nonzero.default: 0, aten.masked_select.default: 1}.get(call)
    return None if place is None else Decider(args[place], count_true)


def size_decided(call: Any, args: Sequence[Any], result: Sequence[Any]) -> int:
    """The size that `decider` decides, from tensors of the shapes of a call's arguments and ``result``."""
    if call is aten.masked_select.default:
        repeated = torch.broadcast_shapes(args[0].shape, args[1].shape).numel() // max(1, args[1].numel())
        return int(result[0].numel() // max(1, repeated))
    if call not in (aten.nonzero.default, aten._unique2.default):
        position = next(number for number, index in enumerate(args[1]) if index is not None)
        from_the_right = args[0].dim() - args[1][position].dim() + 1 - position
        written = result[0] if call is aten.index.Tensor else args[2]
        return int(written.shape[-from_the_right]) if written.dim() >= from_the_right else 1
    return int(result[0].shape[0])


def _is_mask(index: Any) -> bool:
    value = getattr(index, "meta", {}).get("val", index)  # a node of a graph
    return value.dtype in (torch.bool, torch.uint8)
