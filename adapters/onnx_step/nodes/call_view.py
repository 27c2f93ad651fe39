"""One call of the planner's reading, with its attributes and the numbers that are known of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps as quoted
from typing import Any

from ....planner.errors import UnsupportedOpError
from ....planner.onnx_import.meaning.formula_numbers import epsilon_of, flat_parts
from ....planner.onnx_import.values.call_arguments import CallArguments
from ....planner.onnx_import.values.values import Call

REMEDY = "train the model with PyTorch: ogc_plan.adapters.pytorch.from_onnx"


def refused(call: Call, reason: str) -> UnsupportedOpError:
    """The error of a call that cannot be written."""
    return UnsupportedOpError(
        f"node {quoted(call.name)} ({call.op_type}) cannot be part of an ONNX training step: {reason}", remedy=REMEDY
    )


@dataclass(frozen=True, slots=True)
class CallView(CallArguments):
    """What forward and gradient of a call look at beside its tensors. ``opset`` is that of the file."""

    call: Call
    opset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.shape_of(0)

    def shape_of(self, position: int) -> tuple[int, ...]:
        """The shape of an input."""
        return tuple(self.operand(position).shape)

    def refused(self, reason: str) -> UnsupportedOpError:
        """The error of this call."""
        return refused(self.call, reason)

    def known(self, position: int) -> Any:
        """The numbers of an input; None if it is absent. Raises UnsupportedOpError if they are not known."""
        if not self.has(position):
            return None
        value = self.operand(position)
        if value.known is None:
            raise self.refused(f"its input {quoted(value.name)} has to be constant")
        return value.known

    def axes(self) -> tuple[int, ...]:
        """The dimensions that a reduction reduces."""
        found = self.ints("axes", 1)
        if not found:
            return () if self.attr("noop_with_empty_axes", 0) else tuple(range(self.rank))
        return tuple(axis % max(self.rank, 1) for axis in found)

    def parts(self) -> Iterator[Call]:
        """The calls of the file that a fused call stands for."""
        return flat_parts(self.call)

    def epsilon(self, default: float = 1e-5) -> float:
        """The epsilon of a norm, or the number that its formula adds to the variance."""
        found = epsilon_of(self.call, default)
        if found is None:
            raise self.refused("the epsilon of its formula is not found")
        return found
