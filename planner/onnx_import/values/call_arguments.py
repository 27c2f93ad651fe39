"""The inputs and attributes of a call, wherever an opset has them, for those who run or write calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ...errors import UnsupportedOpError
from .values import Call, Value


class CallArguments(ABC):
    """What a call is given. A subclass says which numbers are known, and how a call is refused."""

    __slots__ = ()
    call: Call

    @abstractmethod
    def refused(self, reason: str) -> UnsupportedOpError:
        """The error of this call."""

    @abstractmethod
    def known(self, position: int) -> Any:
        """The numbers of an input; None if it is absent. Raises UnsupportedOpError if they are not known."""

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(self.call.inputs) and self.call.inputs[position] is not None

    def operand(self, position: int) -> Value:
        """An input that must be there."""
        value = self.call.inputs[position] if position < len(self.call.inputs) else None
        if value is None:
            raise self.refused(f"its input {position} is left out")
        return value

    @property
    def rank(self) -> int:
        """The number of dimensions of the first input."""
        return len(self.operand(0).shape)

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return tuple(self.call.outputs[0].shape)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default."""
        return self.call.attributes.get(name, default)

    def ints(self, name: str, position: int = -1) -> tuple[int, ...] | None:
        """Integers that are an attribute in old opsets and an input in new ones; None if absent."""
        listed = self.attr(name)
        if isinstance(listed, tuple):
            return tuple(int(entry) for entry in listed)
        found = self.known(position) if position >= 0 else None
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
