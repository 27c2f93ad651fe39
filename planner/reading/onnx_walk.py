"""The one pass over the nodes of a file: values with static shapes, known constants, views and calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from json import dumps as quoted

from ..errors import InvalidModelError, UnsupportedOpError
from .consistency import REMEDY, check_call, shape_text
from .retarget import Rebatch
from .shapes import (
    MAX_NBYTES,
    Array,
    Inferred,
    NodeProto,
    ShapeRules,
    TensorProto,
    attributes_of,
    constant_tensor,
    contents,
    dtype_name,
    keeps_contents,
)
from .values import Call, Value
from .views import mark_view

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


class Walk:
    """Visits nodes in topological order; ``values`` grows from inputs and leaves to every value of the file."""

    def __init__(
        self, rules: ShapeRules, values: dict[str, Value], used: frozenset[str], opset: int, rebatch: Rebatch
    ) -> None:
        self.values = values
        self.calls: list[Call] = []
        self.inference_form: dict[str, int] = {"BatchNormalization": 0, "Dropout": 0}
        self._pieces: dict[str, list[Value]] = {}  # the parts of a SplitToSequence
        self._unnamed: set[int] = set()  # parts that no SequenceAt has named yet
        self._rules = rules
        self._used = used
        self._opset = opset
        self._rebatch = rebatch

    def visit(self, node: NodeProto, name: str) -> None:
        """Read one node whose inputs have all been made."""
        if node.domain == "ai.onnx":
            copy = type(node)()
            copy.CopyFrom(node)
            copy.domain, node = "", copy
        where = f"node {quoted(name)} ({quoted(node.op_type)[1:-1]})"
        if node.op_type in _CONTROL_FLOW or any(a.HasField("g") or a.graphs for a in node.attribute):
            raise UnsupportedOpError(f"{where} is control flow", remedy="export the model with its loops unrolled")
        self._rules.check_arity(node, where)
        if node.op_type == "Constant" and not node.domain:
            self._constant(node, where)
        elif node.op_type == "SplitToSequence":
            self._split_to_sequence(node, name, where)
        elif node.op_type == "SequenceAt":
            self._sequence_at(node, name, where)
        else:
            self._tensor_node(node, name, where)

    def _tensor_node(self, node: NodeProto, name: str, where: str) -> None:
        node = self._normalised(node, where)
        call = Call(name, node.op_type, node.domain, self._inputs(node, where), scope=scope_of(node))
        call.attributes = attributes_of(node)
        call.deterministic = bool(node.domain) or node.op_type not in (_RANDOM | {"Dropout"})
        if node.op_type == "Dropout" and not node.domain:
            self._dropout(node, call, where)
        elif (
            node.op_type == "BatchNormalization"
            and not node.domain
            and _is_inference_batch_norm(node, call, self._opset)
        ):
            self.inference_form["BatchNormalization"] += 1
        node, known = self._rebatch.apply(node, call)
        inferred = self._rules.infer(node, call, known, where)
        self._finish(node, call, inferred, where)

    def _inputs(self, node: NodeProto, where: str) -> tuple[Value | None, ...]:
        for name in node.input:
            if name in self._pieces:
                raise UnsupportedOpError(
                    f"{where} takes a sequence of tensors",
                    remedy="only a sequence made by SplitToSequence and read at constant positions can be planned",
                )
        return tuple(self.values[name] if name else None for name in node.input)

    def _normalised(self, node: NodeProto, where: str) -> NodeProto:
        """A copy to work on: CastLike becomes Cast, and every output has a name."""
        copy = type(node)()
        copy.CopyFrom(node)
        if node.op_type == "CastLike" and not node.domain:
            like = self._inputs(node, where)[1]
            assert like is not None
            copy.op_type = "Cast"
            del copy.input[1:]
            copy.attribute.append(self._rules.integer_attribute("to", self._rules.number(like.dtype)))
        if node.op_type == "BatchNormalization" and self._opset >= 14:
            missing = 3 - len(node.output) if attributes_of(node).get("training_mode", 0) else 0
            copy.output.extend([""] * missing)
        for position, output in enumerate(copy.output):
            if not output:
                copy.output[position] = self._fresh(f"{node.output[0] or node.output[-1]}#{position}")
        return copy

    def _used_outputs(self, node: NodeProto, where: str) -> int:
        """How many outputs remain without the unused optional ones at the end."""
        optional = self._rules.optional_outputs(node, where)
        count = len(node.output)
        while count > 1 and optional[min(count, len(optional)) - 1] and node.output[count - 1] not in self._used:
            count -= 1
        return count

    def _dropout(self, node: NodeProto, call: Call, where: str) -> None:
        """A Dropout that drops nothing is an Identity; any other is charged as in training."""
        ratio = call.known(1)
        dropped = float(ratio.ravel()[0]) if ratio is not None else call.attributes.get("ratio", 0.5)
        if dropped == 0 and self._used_outputs(node, where) == 1:
            node.op_type = call.op_type = "Identity"
            del node.input[1:]
            del node.output[1:]
            del node.attribute[:]
            call.inputs, call.attributes, call.deterministic = call.inputs[:1], {}, True
            return
        training = call.known(2)
        if self._opset >= 7 and (training is None or not training.any()):
            self.inference_form["Dropout"] += 1

    def _finish(self, node: NodeProto, call: Call, inferred: Mapping[str, Inferred], where: str) -> None:
        """Make the outputs of a call: contents where they can be known, then layout, then the checks."""
        arrays = self._known_outputs(node, call, inferred, where)
        inputs = call.data_inputs
        from_file = call.deterministic and all(value.from_file for value in call.inputs if value is not None)
        outputs = []
        for position, name in enumerate(node.output[: self._used_outputs(node, where)]):
            dtype, shape = inferred[name]
            array = arrays[position] if arrays is not None else None
            if shape is None and array is not None:
                shape = array.shape
            if shape is None and name not in self._used:
                shape = (0,)  # an output that the file leaves out; it only holds its place
            if shape is None:
                raise UnsupportedOpError(
                    f"{where}: the shape of its output {quoted(name)} depends on data",
                    remedy="only models whose shapes follow from the shapes of their inputs can be planned",
                )
            value = self._value(name, dtype, shape, where)
            if array is not None and array.shape == shape:
                value.known = array
            value.producer = call
            value.from_input = any(value.from_input for value in inputs) or not call.deterministic
            value.from_file = from_file
            outputs.append(value)
        call.outputs = tuple(outputs)
        if call.op_type == "ConstantOfShape" and not call.domain and outputs[0].from_file:
            outputs[0].is_leaf, outputs[0].producer = True, None
            return
        mark_view(call)
        check_call(call, where)
        self.calls.append(call)

    def _known_outputs(
        self, node: NodeProto, call: Call, inferred: Mapping[str, Inferred], where: str
    ) -> list[Array] | None:
        if not call.domain and call.op_type in ("Shape", "Size"):
            return [self._rules.measured(call)]
        return self._rules.compute(node, call, inferred, where) if call.deterministic else None

    def _value(self, name: str, dtype: str, shape: tuple[int, ...], where: str) -> Value:
        if any(size < 0 for size in shape):
            raise InvalidModelError(f"{where} makes {quoted(name)} of shape {shape_text(shape)}", remedy=REMEDY)
        value = Value(name, dtype, shape)
        if value.nbytes >= MAX_NBYTES:
            raise InvalidModelError(f"{where} makes {quoted(name)} of {value.nbytes} bytes", remedy=REMEDY)
        self.values[name] = value
        return value

    def _constant(self, node: NodeProto, where: str) -> None:
        leaf(self.values, node.output[0], constant_tensor(node, where), where)

    def _fresh(self, name: str) -> str:
        while name in self.values or name in self._used:
            name += "_"
        return name

    def _split_to_sequence(self, node: NodeProto, name: str, where: str) -> None:
        """Becomes a Split: torch's exporter writes chunk and split as a sequence read at constant positions."""
        call = Call(name, "Split", "", self._inputs(node, where), scope=scope_of(node))
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
            part = self._value(self._fresh(f"{node.output[0]}.{index}"), data.dtype, shape, where)
            part.producer, part.from_input, part.from_file = call, data.from_input, data.from_file
            parts.append(part)
        call.outputs = tuple(parts)
        mark_view(call)
        self.calls.append(call)
        pieces = [self._squeezed(part, axis, call) for part in parts] if squeeze else parts
        self._unnamed.update(id(piece) for piece in pieces)
        self._pieces[node.output[0]] = pieces

    def _part_sizes(self, call: Call, length: int, where: str) -> list[int]:
        if len(call.inputs) < 2:
            sizes = [1] * min(length, 2**20)
        else:
            split = call.known(1)
            if split is None:
                raise UnsupportedOpError(f"{where}: its split is not constant", remedy="export with constant sizes")
            sizes = [int(size) for size in split.ravel()]
            if split.ndim == 0:
                step = max(sizes[0], 1)
                count = min(-(-length // step), 2**20)
                sizes = [min(step, length - start * step) for start in range(count)]
        if sum(sizes) != length or min(sizes, default=0) < 0:
            raise InvalidModelError(f"{where}: parts {shape_text(sizes[:8])} do not add up to {length}", remedy=REMEDY)
        return sizes

    def _squeezed(self, part: Value, axis: int, split: Call) -> Value:
        shape = part.shape[:axis] + part.shape[axis + 1 :]
        value = self._value(self._fresh(f"{part.name}_squeezed"), part.dtype, shape, split.name)
        call = Call(f"{split.name}_{part.name}", "Squeeze", "", (part,), (value,), {"axes": (axis,)})
        value.producer, value.from_input, value.from_file = call, part.from_input, part.from_file
        mark_view(call)
        self.calls.append(call)
        return value

    def _sequence_at(self, node: NodeProto, name: str, where: str) -> None:
        sequence, position = node.input
        pieces, index = self._pieces.get(sequence), self.values[position].known if position in self.values else None
        if pieces is None or index is None:
            raise UnsupportedOpError(
                f"{where} reads a sequence that is not a SplitToSequence at a constant position",
                remedy="export the model without sequences of tensors",
            )
        at = int(index.ravel()[0])
        if not -len(pieces) <= at < len(pieces):
            raise InvalidModelError(f"{where} reads part {at} of {len(pieces)}", remedy=REMEDY)
        piece = pieces[at]
        if node.output[0] not in self.values:
            if id(piece) in self._unnamed:
                self._unnamed.discard(id(piece))
                piece.name = node.output[0]
            self.values[node.output[0]] = piece


def leaf(values: dict[str, Value], name: str, tensor: TensorProto, where: str) -> Value:
    """Enter an initializer or a Constant; its contents are decoded only when they are small and in the file."""
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise InvalidModelError(f"{where} has shape {shape_text(shape)}", remedy=REMEDY)
    value = Value(name, dtype_name(tensor.data_type, where), shape, from_file=True, is_leaf=True)
    if value.nbytes >= MAX_NBYTES:
        raise InvalidModelError(f"{where} has {value.nbytes} bytes", remedy=REMEDY)
    if tensor.data_location == 0 and keeps_contents(value.dtype, value.numel):
        value.known = contents(tensor, where)
    values[name] = value
    return value


def _is_inference_batch_norm(node: NodeProto, call: Call, opset: int) -> bool:
    if opset >= 14:
        return not call.attributes.get("training_mode", 0)
    return len(node.output) == 1 if opset >= 7 else bool(call.attributes.get("is_test", 0))


def scope_of(node: NodeProto) -> str:
    """The module path that torch's exporter recorded for a node, or nothing."""
    recorded = {entry.key: entry.value for entry in node.metadata_props}
    scopes: Iterable[object] = ()
    text = recorded.get("pkg.torch.onnx.name_scopes", "")
    if text and len(text) < 10_000:
        try:
            parsed = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            parsed = ()
        scopes = parsed if isinstance(parsed, list) else ()
    elif "namespace" in recorded:
        scopes = [part.split(":")[0].strip() for part in recorded["namespace"].split("/")]
    modules = [scope for scope in scopes if isinstance(scope, str)][:-1]
    return modules[-1] if modules else ""
