"""A call whose gradient is written: what it may read, what arrives, and where the results go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from ..nodes.call_view import CallView
from ..nodes.writer import Tensor, Writer


@dataclass(frozen=True, slots=True)
class Sources:
    """How a backward reaches tensors. ``read`` and ``result`` refuse what the planner's rule does not say is read."""

    read: Callable[[int], Tensor]
    result: Callable[[int], Tensor]
    hidden: Callable[[int], Tensor]
    arriving: Callable[[int], Tensor | None]
    give: Callable[[int, Tensor], None]
    has_result: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Backward(CallView):
    """A call, the input positions that need a gradient, and how tensors are reached."""

    needed: frozenset[int] = frozenset()
    sources: Sources | None = None
    writer: Writer | None = None

    @property
    def w(self) -> Writer:
        """Where nodes go."""
        assert self.writer is not None
        return self.writer

    @property
    def _at(self) -> Sources:
        assert self.sources is not None
        return self.sources

    @property
    def g(self) -> Tensor:
        """The gradient of the first output; zeros if none arrives."""
        found = self.arriving(0)
        return self.w.full(self.out, 0.0, self.call.outputs[0].dtype) if found is None else found

    @property
    def dtype(self) -> str:
        """The type of the first input."""
        return self.operand(0).dtype

    def arriving(self, position: int) -> Tensor | None:
        """The gradient of an output, None if nothing depends on it."""
        return self._at.arriving(position)

    def x(self, position: int = 0) -> Tensor:
        """An input that the rule says is read."""
        return self._at.read(position)

    def y(self, position: int = 0) -> Tensor:
        """An output that the rule says is read."""
        return self._at.result(position)

    def has_y(self, position: int = 0) -> bool:
        """Whether the rule says that an output is read."""
        return self._at.has_result(position)

    def hidden(self, position: int = 0) -> Tensor:
        """What the forward made for the backward alone."""
        return self._at.hidden(position)

    def needs(self, position: int) -> bool:
        """Whether an input needs a gradient."""
        return position in self.needed

    def give(self, position: int, gradient: Tensor) -> None:
        """Pass a gradient on to an input; what was repeated to the output's shape is summed."""
        value = self.operand(position)
        self._at.give(position, gradient.sum_to(value.shape).cast(value.dtype))


_PARTS, _LARGE_NBYTES = 8, 2**20


def in_parts(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """An elementwise function of tensors of one shape; of large ones part by part.

    ONNX Runtime writes the result of nearly every op into new memory, so that a long formula would hold several tensors
    of full size.
    """
    first = operands[0]
    count = prod(first.shape)
    if first.nbytes < _LARGE_NBYTES or any(one.shape != first.shape for one in operands):
        return function(*operands)
    step = -(-count // _PARTS)
    flat = [one.reshape((count,)) for one in operands]
    made = [function(*(one.cut(0, start, min(start + step, count)) for one in flat)) for start in range(0, count, step)]
    return first.writer.concat(made, 0).reshape(first.shape)


GradientTable = Mapping[str, Callable[[Backward], None]]


def nothing(call: Backward) -> None:
    """No gradient that differs from zero."""
    for position in sorted(call.needed):
        value = call.operand(position)
        call.give(position, call.w.full(tuple(value.shape), 0.0, value.dtype))
