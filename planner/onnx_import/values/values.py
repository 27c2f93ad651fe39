"""What the ONNX reader builds: values with their memory layout, and the calls that make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...graph import NodePath, Sized, View

if TYPE_CHECKING:
    import numpy as np


@lru_cache(maxsize=4096)
def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a dense tensor whose last dimension is contiguous."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


Partial = tuple[int | None, ...] | None
"""A shape with None for each unknown size; None for an unknown number of dimensions."""
Given = Mapping[int, "np.ndarray[Any, Any]"]
"""Numbers of inputs of a node, by position, in place of those that it reads; -1 for the attribute ``shape``."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """Element type of an output, and its sizes as far as they are known."""

    dtype: str
    dims: Partial

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The static shape, None if it depends on data."""
        if self.dims is None:
            return None
        sizes = tuple(size for size in self.dims if size is not None)
        return sizes if len(sizes) == len(self.dims) else None


@dataclass(slots=True, eq=False)
class Value(Sized):
    """One value of the file. ``strides`` are in elements; ``view_of`` is the value that owns the memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    view_of: Value | None = None
    known: np.ndarray[Any, Any] | None = None  # its values, if they are few and can be computed
    from_input: bool = False  # its values depend on a graph input
    from_file: bool = False  # its values depend on nothing but constants of the file
    is_input: bool = False
    is_leaf: bool = False  # an initializer, a Constant or a constant ConstantOfShape
    is_initializer: bool = False
    zeros: bool = False  # a leaf of nothing but zeros, as far as the file shows it
    declared: str = ""  # "PARAMETER" or "BUFFER" if the file records which
    producer: Call | None = None
    constant: bool = False  # alive all step and never trained; set by `assemble`
    source: object = None  # of a leaf: the tensor of the file, or the ConstantOfShape, that holds its values

    def __post_init__(self) -> None:
        if not self.strides:
            self.strides = row_major(self.shape)

    @property
    def owner(self) -> Value:
        """The value in whose memory this one lives."""
        return self if self.view_of is None else self.view_of


def inputs_behind(value: Value) -> list[str]:
    """Names of the graph inputs that the values of a tensor depend on, nearest first."""
    seen, found, queue = {id(value)}, list[str](), [value]
    for current in queue:
        if current.is_input:
            found.append(current.name)
        for source in () if current.producer is None else current.producer.data_inputs:
            if id(source) not in seen:
                seen.add(id(source))
                queue.append(source)
    return found


@dataclass(slots=True, eq=False)
class Call:
    """One node with its values; an absent optional input is None."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...] = ()
    attributes: dict[str, object] = field(default_factory=dict)
    view: View = View.NONE
    deterministic: bool = True
    scope: str = ""
    charged: bool = False  # an unknown op, charged with all of its inputs and outputs
    copied: tuple[tuple[int, int], ...] = ()  # (input, bytes) of those that the op copies into a dense layout first
    parts: tuple[Call, ...] = ()  # the calls of the file that a fused call stands for, in their order
    pieces: tuple[Call, ...] = ()  # the calls of the file that it is the sum of, where it is no fused call
    node: NodePath = ()  # its node in the file; () where the reader has inserted the call
    before: tuple[NodePath, ...] = ()  # nodes on sequences that it needs, and that take tensors out of its result
    after: tuple[NodePath, ...] = ()
    replaced: Given = field(default_factory=dict)  # inputs at another batch

    def stand_for(self, calls: Iterable[Call]) -> Call:
        """Note the calls that this one is read for, as they are now; returns itself."""
        self.parts = tuple(replace(call) for call in calls)
        return self

    @property
    def nodes(self) -> tuple[NodePath, ...]:
        """The nodes of the file that run for this call alone."""
        return (*self.before, *((self.node,) if self.node else ()), *self.after)

    @property
    def leaves(self) -> tuple[Call, ...]:
        """The calls of the file that this one stands for, by itself in most cases."""
        inner = self.parts or self.pieces
        return tuple(leaf for call in inner for leaf in call.leaves) if inner else (self,)

    @property
    def data_inputs(self) -> tuple[Value, ...]:
        """The inputs whose values matter; Shape, Size and EyeLike read the type alone."""
        if self.domain == "" and self.op_type in ("Shape", "Size", "EyeLike"):
            return ()
        return tuple([value for value in self.inputs if value is not None])

    def known(self, position: int) -> np.ndarray[Any, Any] | None:
        """The values of one input, None if they are not known."""
        value = self.inputs[position] if position < len(self.inputs) else None
        return None if value is None else value.known

    def integers(self, name: str, position: int) -> tuple[int, ...] | None:
        """A list of integers that is an attribute in old opsets and an input in new ones; None if absent."""
        listed = self.attributes.get(name)
        if isinstance(listed, tuple):
            return tuple(int(entry) for entry in listed)
        known = self.known(position)
        return None if known is None else tuple(int(entry) for entry in known.ravel())
