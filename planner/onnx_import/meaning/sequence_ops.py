"""Sequences of tensors: while the file is read they are lists of known length, and the graph has none."""

from __future__ import annotations

from collections.abc import Callable
from json import dumps as quoted

import numpy as np

from ...errors import InvalidModelError, UnsupportedOpError
from ...graph import NodePath
from ..document.exporter_records import scope_of
from ..document.protobuf import NodeProto
from ..values.consistency import REMEDY, shape_text
from ..values.constant_folding import Array, attributes_of
from ..values.value_table import ValueTable
from ..values.values import Call, Value

_MAX_LENGTH = 2**20
_REMEDY = "export the model without sequences of tensors"


class Sequences:
    """Reads the ops on sequences. Raises UnsupportedOpError for a length or a position that depends on data."""

    def __init__(self, table: ValueTable) -> None:
        self._table = table
        self._unnamed: set[int] = set()  # parts of a split that no SequenceAt has named yet
        self._made: dict[str, tuple[NodePath, ...]] = {}  # the nodes that each sequence needs
        self._readers: dict[str, Callable[[NodeProto, str, str], None]] = {
            "SplitToSequence": self._split,
            "SequenceConstruct": self._construct,
            "SequenceEmpty": self._construct,
            "SequenceInsert": self._insert,
            "SequenceErase": self._erase,
            "SequenceLength": self._length,
            "SequenceAt": self._at,
            "ConcatFromSequence": self._concat,
            "Identity": self._identity,
        }

    def read(self, node: NodeProto, name: str, where: str) -> bool:
        """Read the node if it makes or takes a sequence, and return whether it does."""
        if node.op_type not in self._readers or node.domain:
            return False
        if node.op_type == "Identity" and node.input[0] not in self._table.sequences:
            return False
        self._readers[node.op_type](node, name, where)
        path, result = self._table.node, node.output[0]
        made = tuple(path for name in node.input for path in self._made.get(name, ()))
        if result in self._table.sequences:
            self._made[result] = (*made, path)
        elif node.op_type == "ConcatFromSequence":
            self._table.calls[-1].before = made
        elif (maker := self._table.values[result].producer) is not None:
            maker.after += (*made, path)
        return True

    def _list(self, node: NodeProto, where: str) -> list[Value]:
        name = node.input[0]
        self._table.raise_refusal(name)
        found = self._table.sequences.get(name)
        if found is None:
            raise InvalidModelError(f"{where} reads {quoted(name)}, which is not a sequence", remedy=REMEDY)
        return found

    def _integer(self, node: NodeProto, slot: int, where: str) -> int | None:
        """A position, None if the node leaves it out."""
        if slot >= len(node.input) or not node.input[slot]:
            return None
        known = self._table.get(node.input[slot], where).known
        if known is None:
            raise UnsupportedOpError(
                f"{where}: its position {quoted(node.input[slot])} depends on data",
                remedy=_REMEDY,
            )
        if known.size != 1:
            raise InvalidModelError(f"{where} has {known.size} positions; one is needed", remedy=REMEDY)
        return _whole(known, "position", where)[0]

    def _construct(self, node: NodeProto, name: str, where: str) -> None:
        self._table.sequences[node.output[0]] = [self._table.get(tensor, where) for tensor in node.input]

    def _identity(self, node: NodeProto, name: str, where: str) -> None:
        self._table.sequences[node.output[0]] = self._list(node, where)

    def _insert(self, node: NodeProto, name: str, where: str) -> None:
        tensors = list(self._list(node, where))
        at = self._integer(node, 2, where)
        at = len(tensors) if at is None else at
        if not -len(tensors) <= at <= len(tensors):
            raise InvalidModelError(f"{where} inserts at {at} of {len(tensors)}", remedy=REMEDY)
        tensors.insert(at if at >= 0 else at + len(tensors), self._table.get(node.input[1], where))
        self._table.sequences[node.output[0]] = tensors

    def _erase(self, node: NodeProto, name: str, where: str) -> None:
        tensors = list(self._list(node, where))
        del tensors[self._checked(self._integer(node, 1, where), tensors, where)]
        self._table.sequences[node.output[0]] = tensors

    def _length(self, node: NodeProto, name: str, where: str) -> None:
        value = self._table.make(node.output[0], "int64", (), where)
        value.known, value.from_file, value.is_leaf = np.asarray(len(self._list(node, where)), np.int64), True, True

    def _at(self, node: NodeProto, name: str, where: str) -> None:
        tensors = self._list(node, where)
        piece = tensors[self._checked(self._integer(node, 1, where), tensors, where)]
        output = node.output[0]
        if id(piece) in self._unnamed:
            self._unnamed.discard(id(piece))
            piece.name = output
        self._table.values[output] = piece

    def _checked(self, at: int | None, tensors: list[Value], where: str) -> int:
        at = -1 if at is None else at
        if not -len(tensors) <= at < len(tensors):
            raise InvalidModelError(f"{where} reads part {at} of {len(tensors)}", remedy=REMEDY)
        return at

    def _concat(self, node: NodeProto, name: str, where: str) -> None:
        tensors, attributes = self._list(node, where), attributes_of(node)
        axis, new_axis = attributes.get("axis"), attributes.get("new_axis", 0)
        if not tensors or not isinstance(axis, int):
            reason = "an empty sequence" if not tensors else "no axis"
            raise InvalidModelError(f"{where} has {reason}", remedy=REMEDY)
        rank = len(tensors[0].shape) + (1 if new_axis else 0)
        if not -rank <= axis < rank:
            raise InvalidModelError(f"{where}: axis {axis} is outside {rank} dimensions", remedy=REMEDY)
        axis %= rank
        if new_axis:
            tensors = [self._with_axis(tensor, axis, where) for tensor in tensors]
        first = tensors[0]
        others = {(tensor.dtype, tensor.shape[:axis], tensor.shape[axis + 1 :]) for tensor in tensors}
        if len(others) > 1:
            shapes = ", ".join(shape_text(tensor.shape) for tensor in tensors[:8])
            raise InvalidModelError(f"{where} joins tensors that do not fit: {shapes}", remedy=REMEDY)
        shape = (*first.shape[:axis], sum(tensor.shape[axis] for tensor in tensors), *first.shape[axis + 1 :])
        output = self._table.make(node.output[0], first.dtype, shape, where)
        call = Call(name, "Concat", "", tuple(tensors), (output,), {"axis": axis}, scope=scope_of(node))
        self._table.add(call, where)

    def _with_axis(self, tensor: Value, axis: int, where: str) -> Value:
        shape = (*tensor.shape[:axis], 1, *tensor.shape[axis:])
        output = self._table.make(self._table.fresh(f"{tensor.name}_unsqueezed"), tensor.dtype, shape, where)
        return self._table.derive("Unsqueeze", [tensor], output, where, axes=(axis,))

    def _split(self, node: NodeProto, name: str, where: str) -> None:
        """Read the node as a Split, followed by a Squeeze of each part if the file asks for it."""
        inputs = self._table.inputs(node.input, where)
        call = Call(name, "Split", "", inputs, scope=scope_of(node))
        data = call.inputs[0]
        assert data is not None
        attributes = attributes_of(node)
        axis = attributes.get("axis", 0)
        assert isinstance(axis, int)
        if not -len(data.shape) <= axis < len(data.shape):
            raise InvalidModelError(f"{where}: axis {axis} is outside {shape_text(data.shape)}", remedy=REMEDY)
        axis %= len(data.shape)
        squeeze = len(call.inputs) < 2 and attributes.get("keepdims", 1) == 0
        sizes = self._part_sizes(call, data.shape[axis], where)
        call.inputs, call.attributes = (data,), {"axis": axis}
        parts = []
        for index, size in enumerate(sizes):
            shape = (*data.shape[:axis], size, *data.shape[axis + 1 :])
            parts.append(self._table.make(self._table.fresh(f"{node.output[0]}.{index}"), data.dtype, shape, where))
        call.outputs = tuple(parts)
        self._table.add(call, where)
        pieces = [self._squeezed(part, axis, where) for part in parts] if squeeze else parts
        self._unnamed.update(id(piece) for piece in pieces)
        self._table.sequences[node.output[0]] = pieces

    def _part_sizes(self, call: Call, length: int, where: str) -> list[int]:
        if len(call.inputs) < 2 or call.inputs[1] is None:
            sizes = [1] * min(length, _MAX_LENGTH)
        else:
            split = call.known(1)
            if split is None:
                raise UnsupportedOpError(
                    f"{where}: its split {quoted(call.inputs[1].name)} depends on data",
                    remedy="export with constant sizes",
                )
            sizes = _whole(split, "split", where)
            if split.ndim == 0:
                step = max(sizes[0], 1)
                count = min(-(-length // step), _MAX_LENGTH)
                sizes = [min(step, length - start * step) for start in range(count)]
        if sum(sizes) != length or min(sizes, default=0) < 0:
            raise InvalidModelError(f"{where}: parts {shape_text(sizes[:8])} do not add up to {length}", remedy=REMEDY)
        return sizes

    def _squeezed(self, part: Value, axis: int, where: str) -> Value:
        shape = part.shape[:axis] + part.shape[axis + 1 :]
        output = self._table.make(self._table.fresh(f"{part.name}_squeezed"), part.dtype, shape, where)
        return self._table.derive("Squeeze", [part], output, where, axes=(axis,))


def _whole(known: Array, what: str, where: str) -> list[int]:
    """The integers of an input; the library does not check its type, as it does for ops on tensors."""
    if known.dtype.kind not in "iu":
        raise InvalidModelError(f"{where}: its {what} is of type {known.dtype.name}, not whole numbers", remedy=REMEDY)
    return [int(number) for number in known.ravel()]
