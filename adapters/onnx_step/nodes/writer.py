"""Nodes of a graph, in the order in which they are to run, and the tensors that stand for their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ....planner.graph import dense_nbytes
from ....planner.onnx_import.document.protobuf import DTYPES, NodeProto, TensorProto
from .attributes import put_attribute

Array = np.ndarray[Any, Any]
Operand = "Tensor | float"

_NUMBERS = {name: number for number, name in DTYPES.items()}
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "IsNaN"})


def number_of(dtype: str) -> int:
    """The number that ONNX gives to an element type."""
    number: int = _NUMBERS[dtype]
    return number


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """The result of a node, an input or a constant; arithmetic on it writes nodes."""

    writer: Writer = field(repr=False)
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Dense size in bytes."""
        return dense_nbytes(self.shape, self.dtype)

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("Add", self, other)

    def __radd__(self, other: float) -> Tensor:
        return self.writer.op("Add", self, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("Sub", self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self.writer.op("Sub", other, self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("Mul", self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self.writer.op("Mul", self, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("Div", self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self.writer.op("Div", other, self)

    def __neg__(self) -> Tensor:
        return self.writer.op("Neg", self)

    def __lt__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("Less", self, other)

    def __gt__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("Greater", self, other)

    def __le__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("LessOrEqual", self, other)

    def __ge__(self, other: Tensor | float) -> Tensor:
        return self.writer.op("GreaterOrEqual", self, other)

    def apply(self, op_type: str, **attributes: Any) -> Tensor:
        """The result of an op of one input that keeps the shape."""
        return self.writer.op(op_type, self, **attributes)

    def where(self, yes: Tensor | float, no: Tensor | float, dtype: str | None = None) -> Tensor:
        """``yes`` where this condition holds, else ``no``; two numbers need a type."""
        return self.writer.op("Where", self, yes, no, dtype=dtype)

    def cast(self, dtype: str) -> Tensor:
        """In another element type."""
        if dtype == self.dtype:
            return self
        return self.writer.op("Cast", self, dtype=dtype, to=number_of(dtype))

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """In another shape of the same size."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        assert prod(shape) == prod(self.shape), f"{self.name}: {self.shape} as {shape}"
        attributes: dict[str, Any] = {"allowzero": 1} if 0 in shape else {}
        return self.writer.op("Reshape", self, self.writer.ints(shape), shape=shape, dtype=self.dtype, **attributes)

    def transpose(self, order: Sequence[int]) -> Tensor:
        """With its dimensions in another order."""
        order = tuple(order)
        if order == tuple(range(self.rank)):
            return self
        moving = [axis for axis in order if self.shape[axis] != 1]
        if moving == sorted(moving):  # no element moves
            return self.reshape([self.shape[axis] for axis in order])
        return self.writer.op("Transpose", self, shape=tuple(self.shape[axis] for axis in order), perm=order)

    def turned(self) -> Tensor:
        """With its last two dimensions exchanged."""
        return self.transpose((*range(self.rank - 2), self.rank - 1, self.rank - 2))

    def expand(self, shape: Sequence[int]) -> Tensor:
        """Repeated to a shape."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        return self.writer.op("Expand", self, self.writer.ints(shape), shape=shape, dtype=self.dtype)

    def sum(self, axes: Iterable[int] | None = None, *, keep: bool = True) -> Tensor:
        """The sum over dimensions, all of them by default."""
        return self.reduce("ReduceSum", axes, keep=keep)

    def mean(self, axes: Iterable[int] | None = None, *, keep: bool = True) -> Tensor:
        """The mean over dimensions."""
        return self.reduce("ReduceMean", axes, keep=keep)

    def reduce(self, op_type: str, axes: Iterable[int] | None = None, *, keep: bool = True) -> Tensor:
        """A reduction over dimensions."""
        over = sorted(axis % self.rank for axis in (range(self.rank) if axes is None else axes))
        if not over:
            return self if op_type in ("ReduceSum", "ReduceMean") else self.apply(op_type, noop_with_empty_axes=1)
        sizes = [1 if axis in over else size for axis, size in enumerate(self.shape)]
        if not keep:
            sizes = [size for axis, size in enumerate(self.shape) if axis not in over]
        return self.writer.op(
            op_type, self, self.writer.ints(over), shape=tuple(sizes), dtype=self.dtype, keepdims=int(keep)
        )

    def sum_to(self, shape: Sequence[int]) -> Tensor:
        """The sum over the dimensions along which ``shape`` was repeated to this one."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        lead = self.rank - len(shape)
        over = [*range(lead), *(lead + at for at, size in enumerate(shape) if size == 1 != self.shape[lead + at])]
        return (self.sum(over) if over else self).reshape(shape)

    def cut(self, axis: int, start: int, stop: int) -> Tensor:
        """A part of one dimension."""
        if (start, stop) == (0, self.shape[axis]):
            return self
        ints = self.writer.ints
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return self.writer.op(
            "Slice", self, ints((start,)), ints((stop,)), ints((axis,)), shape=shape, dtype=self.dtype
        )

    def pad(self, before: Sequence[int], after: Sequence[int], fill: float = 0.0) -> Tensor:
        """Surrounded by a number; negative sizes cut."""
        if not any(before) and not any(after):
            return self
        shape = tuple(size + b + a for size, b, a in zip(self.shape, before, after, strict=True))
        pads = self.writer.ints((*before, *after))
        value = self.writer.scalar(fill, self.dtype)
        return self.writer.op("Pad", self, pads, value, shape=shape, dtype=self.dtype)

    def matmul(self, other: Tensor) -> Tensor:
        """The product of matrices, repeated over the dimensions before them."""
        lead = np.broadcast_shapes(self.shape[:-2], other.shape[:-2])
        return self.writer.op("MatMul", self, other, shape=(*lead, self.shape[-2], other.shape[-1]), dtype=self.dtype)


class Writer:
    """A growing graph. ``scope`` begins the names of new nodes and of their results."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.nbytes: dict[str, int] = {}
        self.scope = ""
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        self._known: dict[tuple[object, ...], Tensor] = {}

    def fresh(self, name: str) -> str:
        """``name``, or that with a number behind it where there is one already."""
        made = name
        while made in self._taken:
            self._numbers[name] = self._numbers.get(name, 1) + 1
            made = f"{name}~{self._numbers[name]}"
        self._taken.add(made)
        return made

    def tensor(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """A tensor that no node makes: an input."""
        return Tensor(self, name, tuple(shape), dtype)

    def op(
        self,
        op_type: str,
        *operands: Tensor | float | None,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Tensor:
        """The result of a node; by default of the operands' common shape, and of the type of the last of them."""
        last = next(operand for operand in reversed(operands) if isinstance(operand, Tensor))
        if shape is None:
            shape = np.broadcast_shapes(*(operand.shape for operand in operands if isinstance(operand, Tensor)))
        kind = dtype or ("bool" if op_type in _COMPARISONS else last.dtype)
        (made,) = self.several(
            op_type,
            operands,
            [(shape, kind)],
            domain=domain,
            like=kind if op_type == "Where" else last.dtype,
            **attributes,
        )
        return made

    def several(
        self,
        op_type: str,
        operands: Sequence[Tensor | float | None],
        outputs: Sequence[tuple[tuple[int, ...], str] | None],
        *,
        domain: str = "",
        like: str = "float32",
        names: Sequence[str] = (),
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """The results of a node; None stands for one that is left out, numbers are constants of type ``like``."""
        given = [
            operand if operand is None or isinstance(operand, Tensor) else self.scalar(operand, like)
            for operand in operands
        ]
        proto = NodeProto(op_type=op_type, domain=domain, name=self.fresh(f"{self.scope}/{op_type}"))
        proto.input.extend("" if operand is None else operand.name for operand in given)
        while proto.input and not proto.input[-1]:
            del proto.input[-1]
        made: list[Tensor] = []
        for at, output in enumerate(outputs):
            wanted = names[at] if at < len(names) else proto.name if at == 0 else f"{proto.name}#{at}"
            name = "" if output is None else self.fresh(wanted)
            proto.output.append(name)
            if output is not None:
                made.append(Tensor(self, name, *output))
                self.nbytes[name] = made[-1].nbytes
        for key, value in attributes.items():
            put_attribute(proto, key, value)
        self.nodes.append(proto)
        return tuple(made)

    def constant(self, array: Array, dtype: str | None = None, name: str = "") -> Tensor:
        """A constant of the graph; equal ones are one."""
        kind = dtype or str(array.dtype)
        content = np.ascontiguousarray(array).tobytes()
        key = (kind, array.shape, content)
        if key not in self._known:
            made = self.fresh(name or f"constant/{kind}")
            proto = TensorProto(name=made, data_type=number_of(kind), dims=array.shape, raw_data=content)
            self.constants[made] = proto
            self._known[key] = Tensor(self, made, array.shape, kind)
        return self._known[key]

    def ints(self, values: Iterable[int]) -> Tensor:
        """A constant list of int64."""
        return self.constant(np.asarray(list(values), np.int64))

    def scalar(self, value: float, dtype: str) -> Tensor:
        """A constant of no dimensions."""
        if dtype == "bfloat16":  # numpy has none: the upper half of a float32
            bits = np.asarray(value, np.float32).view(np.uint32)
            return self.constant((bits >> 16).astype(np.uint16), dtype)
        return self.constant(np.asarray(value, dtype))

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Tensor:
        """A tensor of one number, made when it is needed."""
        proto = TensorProto(data_type=number_of(dtype), dims=[1])
        proto.raw_data = self.constants[self.scalar(value, dtype).name].raw_data
        return self.op("ConstantOfShape", self.ints(shape), shape=tuple(shape), dtype=dtype, value=proto)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors side by side."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0].shape
        shape = (*first[:axis], sum(part.shape[axis] for part in parts), *first[axis + 1 :])
        return self.op("Concat", *parts, shape=shape, axis=axis)
