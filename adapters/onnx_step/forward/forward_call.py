"""A call with its operands, as the functions that write its forward see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from ..nodes.call_view import CallView
from ..nodes.writer import Tensor, Writer


@dataclass(frozen=True, slots=True)
class Made:
    """The outputs of a forward, and what only the backward reads."""

    outputs: tuple[Tensor, ...]
    hidden: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Forward(CallView):
    """A call, its operands, and the names that its outputs get if nothing else has them."""

    args: tuple[Tensor | None, ...] = ()
    names: tuple[str, ...] = ()
    writer: Writer | None = None

    @property
    def w(self) -> Writer:
        """Where nodes go."""
        assert self.writer is not None
        return self.writer

    def x(self, position: int = 0) -> Tensor:
        """An operand that must be there."""
        found = self.args[position] if position < len(self.args) else None
        if found is None:
            raise self.refused(f"its input {position} is left out")
        return found

    @property
    def seed(self) -> int:
        """A number for the random generator of this call: the same at each of its runs."""
        return crc32(self.call.name.encode("utf-8", "replace")) & 0x7FFFFFFF

    @property
    def specs(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each output."""
        return [(tuple(output.shape), output.dtype) for output in self.call.outputs]

    def node(
        self, op_type: str, *operands: Tensor | float | None, more: Sequence[tuple[tuple[int, ...], str]] = (),
        **attributes: Any,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """A node that makes the outputs of the call, and ``more`` behind them."""
        like = next((one.dtype for one in operands if isinstance(one, Tensor)), "float32")
        return self.w.several(op_type, operands, [*self.specs, *more], like=like, names=self.names, **attributes)

    def made(self, op_type: str, *operands: Tensor | float | None, **attributes: Any) -> Made:
        """The same, as all that the call makes."""
        return Made(self.node(op_type, *operands, **attributes))


ForwardTable = Mapping[str, Callable[[Forward], Made]]
