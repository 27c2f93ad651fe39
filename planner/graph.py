"""The forward graph of a model: tensors, storages, operators in topological order, and their nodes in the file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod

ITEM_BITS = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
    "float8e4m3fn": 8, "float8e4m3fnuz": 8, "float8e5m2": 8, "float8e5m2fnuz": 8, "float8e8m0": 8,
    "float4e2m1": 4, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2,
    "bool": 8, "complex64": 64, "complex128": 128,
}  # fmt: skip
_FLOATING = frozenset(dtype for dtype in ITEM_BITS if dtype.startswith(("float", "bfloat", "complex")))

ATEN_DOMAIN = "aten"
"""Domain of ops that the reader makes of recorded calls of aten for which ONNX has no op."""


class Role(Enum):
    """What a tensor is to a training step."""

    __hash__ = object.__hash__  # that of Enum is a function of Python
    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"  # constants, running statistics: held all step, never trained
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation of ``nbytes`` bytes. Views share it, and it counts once."""

    name: str
    nbytes: int


@lru_cache(maxsize=4096)
def dense_nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """The size in bytes of a tensor without gaps."""
    return (prod(shape) * ITEM_BITS[dtype] + 7) // 8


class Sized:
    """What follows from a shape and a data type."""

    __slots__ = ()
    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Dense size in bytes (a view's own size, not its storage's)."""
        return dense_nbytes(self.shape, self.dtype)

    @property
    def is_float(self) -> bool:
        """Whether the tensor can have a gradient."""
        return self.dtype in _FLOATING


@dataclass(frozen=True, slots=True)
class Tensor(Sized):
    """A value. ``storage`` indexes Graph.storages; ``shape`` is static; ``dtype`` is a key of ITEM_BITS."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: int
    role: Role


class View(Enum):
    """How an operator's outputs share the storage of its first input, with torch semantics."""

    __hash__ = object.__hash__
    NONE = "none"  # every output has its own storage
    WHOLE = "whole"  # a bijective view (Reshape, Transpose): its gradient is a view of the gradient
    PART = "part"  # Slice, Split, Expand, constant scalar Gather: the gradient needs its own memory


@dataclass(frozen=True, slots=True)
class Op:
    """An operator. Inputs and outputs index Graph.tensors; an absent optional input is None."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    attributes: tuple[tuple[str, object], ...] = ()
    view: View = View.NONE
    deterministic: bool = True
    scope: str = ""  # module path, where the producer recorded one
    copied: tuple[tuple[int, int], ...] = ()  # (input, bytes) of those that the op copies into a dense layout first

    def attribute(self, name: str, default: object = None) -> object:
        """The value of one attribute, or the default."""
        return dict(self.attributes).get(name, default)


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in topological order over tensors with static shapes.

    ``assumed`` says in sentences what the reader assumed about the file. ``recorded`` names the constants of which
    the file records whether they are parameters.
    """

    name: str
    storages: tuple[Storage, ...]
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    opset: int = 0
    producer: str = ""
    dims: tuple[tuple[str, int], ...] = ()
    assumed: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """SHA-256 over topology, attributes, shapes, dtypes and storages; weights and file names do not count."""
        digest = hashlib.sha256()
        roles = {role: role.value for role in Role}
        for tensor in self.tensors:
            as_json = f'[{[*tensor.shape]}, "{tensor.dtype}", {tensor.storage}, "{roles[tensor.role]}"]'
            digest.update(as_json.encode())
        kinds: dict[tuple[str, str, str], tuple[str, str]] = {}  # as JSON: layers repeat
        for op in self.ops:
            key = op.op_type, op.domain, repr(op.attributes)
            if key not in kinds:
                attributes = [[name, repr(value)] for name, value in sorted(op.attributes)]
                kinds[key] = f"{json.dumps(op.op_type)}, {json.dumps(op.domain)}", json.dumps(attributes)
            kind, attributes_text = kinds[key]
            inputs = str([*op.inputs]).replace("None", "null")
            copied = f", {json.dumps(op.copied)}" if op.copied else ""
            as_json = f'[{kind}, {inputs}, {[*op.outputs]}, {attributes_text}, "{op.view.value}"{copied}]'
            digest.update(as_json.encode())
        digest.update(json.dumps([self.inputs, self.outputs, self.opset]).encode())
        return digest.hexdigest()


NodePath = tuple[int | str, ...]
"""The place of a node in a file: its index in the main graph; where it is entered, the function or branch, and so on.

``(3,)``, ``(7, "pkg.onnxscript::Gelu", 2)``, ``(5, "then_branch", 0)``.
"""


@dataclass(frozen=True, slots=True)
class OpNodes:
    """The nodes that an op stands for, in the order to run them in.

    ``inputs`` are the tensors whose gradients its backward gives, one for each entry of ``gives``.
    """

    nodes: tuple[NodePath, ...] = ()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageForm:
    """What a storage holds: the shape and type of its tensor, and the nodes that make views of it.

    ``hidden`` says what a hidden buffer holds, "" for a tensor of the file.
    """

    shape: tuple[int, ...]
    dtype: str
    views: tuple[NodePath, ...] = ()
    hidden: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the file does not hold as the step needs it.

    ``data`` are its numbers in row-major order; one number fills the tensor; None: the file's own constant of that
    name, whose first entry is repeated along each dimension that has another size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: tuple[int | float | bool, ...] | None


@dataclass(frozen=True, slots=True)
class Replaced:
    """Numbers that a node reads in place of those in the file, because the plan has another batch.

    ``input`` is the position of an input, or the name of an attribute. They are int64.
    """

    node: NodePath
    input: int | str
    data: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Execution:
    """How another program runs a training graph from its ONNX file.

    ``storages`` and ``gradients`` are empty where only ``ops`` is known.

    Attributes:
        ops, storages: one entry for each op and storage of the graph.
        gradients: for each gradient the tensor that it belongs to.
        prepare: the nodes to run before the step, in order: constants, and views of parameters and inputs.
        constants: tensors that are given by the plan.
        replaced: inputs of nodes that are given by the plan.
    """

    ops: tuple[OpNodes, ...]
    storages: tuple[StorageForm, ...] = ()
    gradients: tuple[str, ...] = ()
    prepare: tuple[NodePath, ...] = ()
    constants: tuple[Constant, ...] = ()
    replaced: tuple[Replaced, ...] = ()
