"""One call of the planner's reading as an op table sees it: attributes, numbers that are known, shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from json import dumps as quoted
from typing import Any

import torch

from ....planner.errors import UnsupportedOpError
from ....planner.onnx_import.values.call_arguments import CallArguments
from ....planner.onnx_import.values.values import Call, Value

Run = Callable[..., Any]
"""What computes the outputs of a call from tensors: a tensor, or a tuple of them."""

REMEDY = "train the model in the framework that made it, or write this op with others and export again"
_NAMES = {
    "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu",
    "int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InTraining:
    """A run that takes first whether the module trains."""

    call: Run


def refused(call: Call, reason: str) -> UnsupportedOpError:
    """The error of a call that is not built."""
    return UnsupportedOpError(
        f"node {quoted(call.name)} ({call.op_type}) cannot be run by torch: {reason}", remedy=REMEDY
    )


def torch_dtype(dtype: str) -> torch.dtype:
    """The type of torch that has the planner's name; integers of less than a byte take one."""
    found = getattr(torch, _NAMES.get(dtype, dtype), None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedOpError(f"torch has no element type {dtype}", remedy=REMEDY)
    return found


@dataclass(slots=True)
class Node(CallArguments):
    """A call; ``fixed`` says whether a value is a known constant. An input that `known` was asked of is no operand."""

    call: Call
    opset: int
    fixed: Callable[[Value], bool]
    taken: set[int] = field(default_factory=set)

    def refused(self, reason: str) -> UnsupportedOpError:
        """The error of this call."""
        return refused(self.call, reason)

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """The shape of an input."""
        return tuple(self.operand(position).shape)

    @property
    def out_dtype(self) -> torch.dtype:
        """The type of the first output."""
        return torch_dtype(self.call.outputs[0].dtype)

    def known(self, position: int) -> Any:
        """The numbers of a constant input, which is then no operand; None if it is absent.

        Raises UnsupportedOpError if it is there and not constant.
        """
        if not self.has(position):
            return None
        value = self.operand(position)
        if value.known is None or not self.fixed(value):
            raise self.refused(f"its input {quoted(value.name)} has to be constant")
        self.taken.add(position)
        return value.known

    def is_known(self, position: int) -> bool:
        """Whether an input is there and constant."""
        return self.has(position) and self.operand(position).known is not None and self.fixed(self.operand(position))


Builder = Callable[[Node], Run | InTraining]
Table = Mapping[str, Builder]


def plain(run: Run) -> Builder:
    """A builder of a call without attributes."""
    return lambda node: run
