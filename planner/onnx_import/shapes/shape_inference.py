"""Element types and shapes, one node at a time, through the onnx library.

Nodes come in topological order, so every input of a node has a static shape and one pass suffices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from json import dumps as quoted
from math import prod

import onnx
from onnx import AttributeProto, TypeProto, defs, numpy_helper, shape_inference

from ...errors import InvalidModelError, UnsupportedOpError
from ...units import counted
from ..document.protobuf import DTYPES, NodeProto, TensorProto, dtype_name
from ..document.unsupported_ops import CHARGE
from ..values.consistency import REMEDY, check_axes, shape_text
from ..values.constant_folding import Array, all_that_counts, first_line
from ..values.values import Call, Inferred, Partial
from .element_types import Formals, StandIns, attribute_of_type, dtypes, not_taken, stand_ins
from .extra_shape_inference import missed_shape, run_shape
from .runtime_ops import is_charged_by_itself, origin

_NUMBERS = {name: number for number, name in DTYPES.items()}

_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_SAME_AS_FIRST = frozenset(
    "Abs Add BatchNormalization Ceil Clip Div Dropout Elu Exp Floor GroupNormalization HardSigmoid"
    " InstanceNormalization LeakyRelu Log MeanVarianceNormalization Mul Neg PRelu Reciprocal Relu Selu Sigmoid Sqrt"
    " Sub Tanh".split()
)  # ops that some opset gives no shape inference, legacy broadcasting included
_LIKE_NEXT_OPSET = frozenset(
    {"Concat", "Gemm", "GreaterOrEqual", "GRU", "LessOrEqual", "LpPool", "Max", "Mean", "Min", "Split", "Sum"}
)


def _lenient_schema(op_type: str, opset: int, domain: str) -> defs.OpSchema:
    """The definition at an opset, or that of a near one if files follow that.

    Exporters leave out the roi of a Resize two opsets before it is allowed, and write Upsample and Scatter in opsets
    that have dropped them.
    """
    if (op_type, domain) == ("Resize", "") and opset in (11, 12):
        opset = 13
    schema = defs.get_schema(op_type, opset, domain)
    if schema.deprecated:
        with suppress(defs.SchemaError):
            return defs.get_schema(op_type, schema.since_version - 1, domain)
    return schema


def _formals(schema: defs.OpSchema) -> Formals:
    last = schema.inputs[-1] if schema.inputs else None
    inputs, outputs = (tuple(entry.type_str for entry in entries) for entries in (schema.inputs, schema.outputs))
    allowed = {text: dtypes([text]) for text in (*inputs, *outputs)}  # where it is no type variable
    allowed |= {entry.type_param_str: dtypes(entry.allowed_type_strs) for entry in schema.type_constraints}
    return Formals(inputs, outputs, last is not None and last.option == _VARIADIC and last.is_homogeneous, allowed)


class ShapeRules:
    """Shape inference of single nodes under the opsets of one model.

    ``off_schema`` lists calls with an element type that their definition does not allow, and that type.
    """

    def __init__(self, opsets: Mapping[str, int], nodes: Sequence[NodeProto] = ()) -> None:
        self.opsets = dict(opsets)
        self._nodes = nodes  # of the whole graph, by which an error says what the file is
        self._imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._schemas: dict[tuple[str, str], defs.OpSchema | None] = {}
        self._attributes: dict[tuple[str, str], dict[str, int]] = {}
        self._types: dict[tuple[str, tuple[int, ...]], TypeProto] = {}
        self._formals: dict[tuple[str, str], Formals] = {}
        self._inferred: dict[object, tuple[Inferred, ...]] = {}  # by what `all_that_counts` says
        self.off_schema: list[tuple[Call, str]] = []

    def origin(self, domain: str) -> tuple[str, str] | None:
        """What the file is if it has ops of that domain, and what to do; None if that is not known."""
        return origin(self._nodes, domain)

    def find_schema(self, node: NodeProto) -> defs.OpSchema | None:
        """The definition of a node's op, None if the library has none at the file's opset."""
        key = node.domain, node.op_type
        if key not in self._schemas:
            self._schemas[key] = None
            if node.domain in self.opsets:
                with suppress(defs.SchemaError):
                    self._schemas[key] = _lenient_schema(node.op_type, self.opsets[node.domain], node.domain)
        return self._schemas[key]

    def schema(self, node: NodeProto, where: str) -> defs.OpSchema:
        """The definition of a node's op. Raises UnsupportedOpError if there is none."""
        found = self.find_schema(node)
        if found is not None:
            return found
        made = self.origin(node.domain)
        if made is not None:
            charged = f", or {CHARGE}" if is_charged_by_itself(node.op_type) else ""
            raise UnsupportedOpError(
                f"{where} is an op of {quoted(node.domain)}, so this is {made[0]}", remedy=made[1] + charged
            )
        if node.domain not in self.opsets:
            reason = f"is of the unknown domain {quoted(node.domain)}"
        else:
            domain = f" of domain {quoted(node.domain)}" if node.domain else ""
            reason = f"is not an op{domain} of opset {self.opsets[node.domain]}"
        raise UnsupportedOpError(f"{where} {reason}", remedy=f"export the model with standard ONNX ops, or {CHARGE}")

    def optional_outputs(self, node: NodeProto, where: str) -> tuple[bool, ...]:
        """For each formal output, whether it may be left out."""
        return tuple(output.option == _OPTIONAL for output in self.schema(node, where).outputs)

    def integer_attribute(self, name: str, value: int) -> AttributeProto:
        """An attribute for a node that the reader rewrites."""
        return onnx.helper.make_attribute(name, value)

    def number(self, dtype: str) -> int:
        """The ONNX element type of a dtype."""
        return int(_NUMBERS[dtype])

    def check_node(self, node: NodeProto, where: str) -> None:
        """Refuse a node that does not fit its op's definition; the library does not check it."""
        schema = self.schema(node, where)
        for what, count, low, high in (
            ("input", len(node.input), schema.min_input, schema.max_input),
            ("output", len(node.output), schema.min_output, schema.max_output),
        ):
            if not low <= count <= high:
                allowed = f"at least {low}" if high > 2**20 else f"{low} to {high}" if low < high else f"{low}"
                raise InvalidModelError(f"{where} has {counted(count, what)}; {allowed} are allowed", remedy=REMEDY)
        for position, name in enumerate(node.input):
            formal = None if name else schema.inputs[min(position, len(schema.inputs) - 1)]
            if formal is not None and formal.option != _OPTIONAL:
                raise InvalidModelError(f"{where} leaves out its input {quoted(formal.name)}", remedy=REMEDY)
        key = node.domain, node.op_type
        if key not in self._attributes:
            self._attributes[key] = {name: int(entry.type.value) for name, entry in schema.attributes.items()}
        for attribute in node.attribute:
            kind = self._attributes[key].get(attribute.name)
            if kind is not None and kind != attribute.type:
                name, wanted = quoted(attribute.name), AttributeProto.AttributeType.Name(kind)
                raise InvalidModelError(f"{where} has an attribute {name} that is not {wanted}", remedy=REMEDY)
            if node.op_type == "Split" and attribute.name == "num_outputs" and attribute.i != len(node.output):
                raise InvalidModelError(
                    f"{where} has {counted(len(node.output), 'output')} and num_outputs {attribute.i}", remedy=REMEDY
                )

    def infer(self, node: NodeProto, call: Call, known: Mapping[int, Array], where: str) -> dict[str, Inferred]:
        """Element type and shape of each named output; a shape is None if it depends on data.

        ``known`` overrides the values of inputs by position. A Range of one-element vectors, which the library itself
        writes for AffineGrid, is read as one of scalars.
        """
        schema = self.schema(node, where)
        check_axes(call, where)
        if not schema.has_type_and_shape_inference_function:
            return self._without_rule(node, call, where)
        like = None if known else all_that_counts(node, call)
        if like in self._inferred:
            return dict(zip(node.output, self._inferred[like], strict=True))
        op = self._formals_of(node, schema)
        stand_in = stand_ins(op, call, DTYPES.get(attribute_of_type(call), ""))
        if stand_in is not None:
            self.off_schema.append((call, stand_in.dtype))
            node = self._with_attribute(node, stand_in)
        other = {} if stand_in is None else stand_in.inputs
        shapes = {} if stand_in is None else stand_in.shapes
        types: dict[str, TypeProto] = {}
        data: dict[str, TensorProto] = {}
        for position, (name, value) in enumerate(zip(node.input, call.inputs, strict=True)):
            if value is None:
                continue
            array = known.get(position, value.known)
            scalar = node.op_type == "Range" and value.shape == (1,)
            shape = () if scalar else shapes.get(position, value.shape)
            types[name] = self._type(other.get(position, value.dtype), shape)
            if scalar and array is not None:
                array = array.reshape(())
            if array is not None and position not in other and (not value.is_float or array.size <= 64):
                data[name] = numpy_helper.from_array(array)
        try:
            inferred = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=self._imports)
        except Exception as error:
            raise self._not_inferred(node, call, op, error, where) from None
        result: dict[str, Inferred] = {}
        real = {} if stand_in is None else stand_in.outputs
        for position, name in enumerate(node.output):
            if name not in inferred or not inferred[name].HasField("tensor_type"):
                raise UnsupportedOpError(
                    f"{where} makes {quoted(name)}, which is not a tensor of known type",
                    remedy="export the model without sequences and optional values",
                )
            tensor = inferred[name].tensor_type
            dtype = dtype_name(tensor.elem_type, f"{where}, output {quoted(name)},")
            dims = _partial_shape(tensor) if node.domain else run_shape(call, known, _partial_shape(tensor))
            result[name] = Inferred(real.get(position, dtype), dims)
        if any(output.shape is None for output in result.values()) and not node.domain:
            missed = missed_shape(call)
            if missed is not None:
                result[node.output[0]] = Inferred(result[node.output[0]].dtype, missed)
        if like is not None and stand_in is None and len(result) == len(node.output):
            self._inferred[like] = tuple(result.values())
        return result

    def _formals_of(self, node: NodeProto, schema: defs.OpSchema) -> Formals:
        key = node.domain, node.op_type
        if key not in self._formals:
            self._formals[key] = _formals(schema)
        return self._formals[key]

    def _with_attribute(self, node: NodeProto, stand_in: StandIns) -> NodeProto:
        """The node, or a copy that names the replacing type."""
        if stand_in.attribute is None:
            return node
        copy = NodeProto()
        copy.CopyFrom(node)
        for attribute in copy.attribute:
            if attribute.name == stand_in.attribute[0]:
                attribute.i = _NUMBERS[stand_in.attribute[1]]
        return copy

    def _not_inferred(
        self, node: NodeProto, call: Call, op: Formals, error: Exception, where: str
    ) -> InvalidModelError:
        """The error for a node that the library refused; it names the element type if that is the cause."""
        text = first_line(error).replace("[ShapeInferenceError] ", "").replace("[TypeInferenceError] ", "")
        position = not_taken(op, call)
        if position is not None:
            value, opset = call.inputs[position], self.opsets[node.domain]
            assert value is not None
            return InvalidModelError(
                f"{where} takes the {value.dtype} {quoted(value.name)} as input {position}, which opset {opset} does "
                "not allow",
                remedy=self._remedy_of_type(node, position, value.dtype),
            )
        if "inconsistent type" in text:
            shown = ", ".join(value.dtype for value in call.inputs if value is not None)
            return InvalidModelError(
                f"{where} takes inputs of different element types: {shown}",
                remedy="export the model with a Cast in front of it",
            )
        shown = ", ".join(shape_text(value.shape) for value in call.inputs if value is not None)
        return InvalidModelError(f"{where} with inputs {shown}: {text}", remedy=REMEDY)

    def _remedy_of_type(self, node: NodeProto, position: int, dtype: str) -> str:
        """The first opset that allows the type, where a newer one does."""
        for version in range(self.opsets[node.domain] + 1, defs.onnx_opset_version() + 1 if not node.domain else 0):
            op = _formals(_lenient_schema(node.op_type, version, node.domain))
            if op.takes(op.input(position), dtype):
                return f"export the model at opset {version}, which allows it"
        return "export the model with a Cast in front of it"

    def _without_rule(self, node: NodeProto, call: Call, where: str) -> dict[str, Inferred]:
        """Infer an op for which its opset has no inference; most are of opset 1, and most keep their shape."""
        first = next((value for value in call.inputs if value is not None), None)
        if first is not None and node.op_type in _SAME_AS_FIRST:
            return dict.fromkeys(node.output, Inferred(first.dtype, first.shape))
        target = call.attributes.get("shape")
        if first is not None and node.op_type == "Reshape" and isinstance(target, tuple):
            sizes = [size or next(iter(first.shape[axis:]), 0) for axis, size in enumerate(target)]
            rest = first.numel // max(prod(size for size in sizes if size != -1), 1)
            shape = tuple(rest if size == -1 else size for size in sizes)
            return {node.output[0]: Inferred(first.dtype, shape)}
        for version in range(self.opsets[node.domain] + 1, defs.onnx_opset_version() + 1):
            schema = defs.get_schema(node.op_type, version, node.domain)
            if schema.has_type_and_shape_inference_function and node.op_type in _LIKE_NEXT_OPSET:
                if node.op_type == "Concat" and "axis" not in call.attributes:
                    node.attribute.append(self.integer_attribute("axis", 1))
                newer = ShapeRules({**self.opsets, node.domain: version})
                newer.off_schema = self.off_schema
                return newer.infer(node, call, {}, where)
        raise UnsupportedOpError(
            f"{where} has no shape inference at opset {self.opsets[node.domain]}",
            remedy="convert the model to a newer opset",
        )

    def _type(self, dtype: str, shape: tuple[int, ...]) -> TypeProto:
        if (dtype, shape) not in self._types:
            self._types[dtype, shape] = onnx.helper.make_tensor_type_proto(_NUMBERS[dtype], shape)
        return self._types[dtype, shape]


def _partial_shape(tensor: TypeProto.Tensor) -> Partial:
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.WhichOneof("value") == "dim_value" else None for dim in tensor.shape.dim)
