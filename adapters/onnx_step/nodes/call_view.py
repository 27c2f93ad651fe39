"""One call of the planner's reading, with its attributes and the numbers that are known of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps as quoted
from typing import Any

from ....planner.errors import UnsupportedOpError
from ....planner.onnx_import.meaning.formula_numbers import epsilon_of, flat_parts
from ....planner.onnx_import.values.values import Call, Value

REMEDY = "train the model with PyTorch: ogc_plan.adapters.pytorch.from_onnx"


def refused(call: Call, reason: str) -> UnsupportedOpError:
    """The error of a call that cannot be written."""
    return UnsupportedOpError(
        f"node {quoted(call.name)} ({call.op_type}) cannot be part of an ONNX training step: {reason}", remedy=REMEDY
    )


@dataclass(frozen=True, slots=True)
class CallView:
    """What forward and gradient of a call look at beside its tensors. ``opset`` is that of the file."""

    call: Call
    opset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.shape_of(0)

    @property
    def rank(self) -> int:
        """The number of dimensions of the first input."""
        return len(self.shape)

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return tuple(self.call.outputs[0].shape)

    def shape_of(self, position: int) -> tuple[int, ...]:
        """The shape of an input."""
        return tuple(self.operand(position).shape)

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(self.call.inputs) and self.call.inputs[position] is not None

    def operand(self, position: int) -> Value:
        """An input that must be there."""
        value = self.call.inputs[position] if position < len(self.call.inputs) else None
        if value is None:
            raise self.refused(f"its input {position} is left out")
        return value

    def refused(self, reason: str) -> UnsupportedOpError:
        """The error of this call."""
        return refused(self.call, reason)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default."""
        return self.call.attributes.get(name, default)

    def known(self, position: int) -> Any:
        """The numbers of an input; None if it is absent. Raises UnsupportedOpError if they are not known."""
        if not self.has(position):
            return None
        value = self.operand(position)
        if value.known is None:
            raise self.refused(f"its input {quoted(value.name)} has to be constant")
        return value.known

    def ints(self, name: str, position: int) -> tuple[int, ...] | None:
        """Integers that are an attribute in old opsets and an input in new ones; None if absent."""
        listed = self.attr(name)
        if isinstance(listed, tuple):
            return tuple(int(entry) for entry in listed)
        found = self.known(position)
        return None if found is None else tuple(int(entry) for entry in found.ravel())

    def number(self, name: str, position: int, default: Any = None) -> Any:
        """A number that is an attribute in old opsets and an input in new ones."""
        if name in self.call.attributes:
            return self.call.attributes[name]
        found = self.known(position)
        return default if found is None or not found.size else found.ravel()[0].item()

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute ``axis``, counted from the front."""
        return int(self.attr("axis", default)) % max(self.rank if rank is None else rank, 1)

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
