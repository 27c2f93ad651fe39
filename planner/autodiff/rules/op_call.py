"""The argument and the result of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...graph import ITEM_BITS, Op, Tensor

INDEX_NBYTES = 8  # torch indexes with int64
FLOAT_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Saved:
    """What one backward reads: positions of inputs and outputs, and the bytes of each hidden buffer."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    hidden_nbytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleCall:
    """An op with its tensors; ``needs`` are the input positions that need a gradient."""

    op: Op
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    needs: frozenset[int]

    @property
    def first(self) -> Tensor:
        """The first input, which every op of the tables has."""
        return self.required(0)

    @property
    def output(self) -> Tensor:
        """The first output."""
        return self.outputs[0]

    def required(self, position: int) -> Tensor:
        """An input that the op always has."""
        tensor = self.inputs[position]
        assert tensor is not None
        return tensor

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def present(self, positions: Iterable[int]) -> tuple[int, ...]:
        """The input positions among ``positions`` that are there."""
        return tuple(position for position in positions if self.has(position))

    def needed(self, *positions: int) -> bool:
        """Whether any of these inputs needs a gradient."""
        return any(position in self.needs for position in positions)

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.op.attribute(name, default)
        assert isinstance(value, int)
        return value

    def number(self, name: str, default: float) -> float:
        """A numeric attribute."""
        value = self.op.attribute(name, default)
        assert isinstance(value, (int, float))
        return value

    def text(self, name: str, default: str) -> str:
        """A text attribute."""
        return str(self.op.attribute(name, default))


Rule = Callable[[RuleCall], Saved]


def table(rules: dict[Rule, str]) -> dict[str, Rule]:
    """Op type -> rule, from lists of op types separated by blanks."""
    return {op_type: rule for rule, names in rules.items() for op_type in names.split()}


def nothing(call: RuleCall) -> Saved:
    """Shapes alone."""
    return Saved()


def first_input(call: RuleCall) -> Saved:
    """The first input."""
    return Saved(inputs=(0,))


def both_inputs(call: RuleCall) -> Saved:
    """The first two inputs, whichever of them needs a gradient."""
    return Saved(inputs=(0, 1))


def first_output(call: RuleCall) -> Saved:
    """The first output."""
    return Saved(outputs=(0,))


def input_and_output(call: RuleCall) -> Saved:
    """The first input and the first output."""
    return Saved(inputs=(0,), outputs=(0,))


def factors(call: RuleCall) -> Saved:
    """Each operand of a product, for the gradient of the other one."""
    return Saved(inputs=tuple(mine for mine, other in ((0, 1), (1, 0)) if call.needed(other)))


def item_nbytes(tensor: Tensor) -> int:
    """Bytes of one element, at least one."""
    return max(ITEM_BITS[tensor.dtype] // 8, 1)


def statistic_nbytes(tensor: Tensor) -> int:
    """Bytes of one statistic of a norm or of attention.

    At least float32, as CUDA saves them for half types; on the CPU torch saves them in the half type.
    """
    return max(item_nbytes(tensor), FLOAT_NBYTES)
