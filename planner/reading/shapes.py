"""Shapes and small constants, one node at a time, through the onnx library.

Every input of a node has a static shape by the time the node is reached, so one pass suffices: infer
the outputs of the node, and where all of its inputs are known compute them too. Nothing is computed
before its size is known, so a Range to 2^40 costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from json import dumps as quoted
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TypeProto, defs, numpy_helper, shape_inference
from onnx import FunctionProto as FunctionProto
from onnx import GraphProto as GraphProto
from onnx import ModelProto as ModelProto
from onnx import NodeProto as NodeProto
from onnx import TensorProto as TensorProto
from onnx import ValueInfoProto as ValueInfoProto

from ..errors import InvalidModelError, UnsupportedOpError
from ..graph import ITEM_BITS
from .consistency import REMEDY, shape_text
from .data_shapes import Inferred as Inferred
from .data_shapes import Partial
from .exclusions import CHARGE
from .missed_shapes import missed_shape
from .values import Call

KNOWN_LIMIT = 2**16  # elements; longer constants stay unknown
KNOWN_FLOAT_LIMIT = 2**10  # weights are never decoded, scales and shape arithmetic in floats are
MAX_NBYTES = 2**60

Array = np.ndarray[Any, Any]

_DTYPES = {
    number: {"float": "float32", "double": "float64"}.get(name.lower(), name.lower())
    for name, number in TensorProto.DataType.items()
}
_NUMBERS = {name: number for number, name in _DTYPES.items()}

_COMPUTED = frozenset(
    "Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Clip Compress Concat ConstantOfShape CumSum Div"
    " Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less"
    " LessOrEqual Log Max Min Mod Mul Neg NonZero Not OneHot Or Pad Pow Range Reciprocal ReduceMax ReduceMean"
    " ReduceMin ReduceProd ReduceSum Relu Reshape Round ScatterElements ScatterND Sign Slice Split Sqrt Squeeze Sub"
    " Tile TopK Transpose Trilu Unsqueeze Where Xor".split()
)
_BOUNDED_BY_INPUT = frozenset({"Compress", "NonZero"})
_SINGLE = defs.OpSchema.FormalParameterOption.Single
_SAME_AS_FIRST = frozenset(
    "Abs Add BatchNormalization Ceil Clip Div Dropout Elu Exp Floor GroupNormalization HardSigmoid"
    " InstanceNormalization LeakyRelu Log MeanVarianceNormalization Mul Neg PRelu Reciprocal Relu Selu Sigmoid Sqrt"
    " Sub Tanh".split()
)  # ops that some opset gives no shape inference, legacy broadcasting included
_LIKE_NEXT_OPSET = frozenset({"Concat", "Gemm", "GRU", "LpPool", "Max", "Mean", "Min", "Split", "Sum"})


def dtype_name(number: int, where: str) -> str:
    """The name of an ONNX element type; UnsupportedOpError where it is not a number type."""
    name = _DTYPES.get(number, str(number))
    if name not in ITEM_BITS:
        raise UnsupportedOpError(f"{where} has element type {name}", remedy="only numeric tensors can be planned")
    return str(name)


def keeps_contents(dtype: str, numel: int) -> bool:
    """Whether a constant of this size is worth knowing."""
    return numel <= (KNOWN_FLOAT_LIMIT if dtype.startswith(("float", "bfloat", "complex")) else KNOWN_LIMIT)


def contents(tensor: TensorProto, where: str) -> Array:
    """The elements of a small tensor of the file."""
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:
        raise InvalidModelError(
            f"{where} cannot be decoded: {first_line(error)}", remedy="export the model again"
        ) from None


def first_line(error: BaseException) -> str:
    """What the library said, in one line of bounded length."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 300 else text[:297] + "..."


def attributes_of(node: NodeProto) -> dict[str, object]:
    """The attributes as plain numbers, strings and tuples; a tensor only where it is small."""
    result: dict[str, object] = {}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            numel = prod(attribute.t.dims)
            if numel <= 64 and attribute.t.data_type in _DTYPES and attribute.t.data_location == TensorProto.DEFAULT:
                array = contents(attribute.t, f"attribute {quoted(attribute.name)}")
                result[attribute.name] = tuple(array.ravel().tolist())
        elif attribute.type in (
            AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING,
            AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS,
        ):  # fmt: skip
            result[attribute.name] = _plain(onnx.helper.get_attribute_value(attribute))
    return result


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, int | float | str):
        return value
    assert isinstance(value, Sequence)
    return tuple(_plain(entry) for entry in value)


def since_version(op_type: str, opset: int) -> int | None:
    """The opset in which a standard op got the definition that ``opset`` uses, None where it has none."""
    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except defs.SchemaError:
        return None


def _lenient_schema(op_type: str, opset: int, domain: str) -> defs.OpSchema:
    """The definition at an opset, or the one beside it that files really follow.

    Exporters leave out the roi of a Resize two opsets before they may, and write Upsample and Scatter in
    opsets that have dropped them.
    """
    if (op_type, domain) == ("Resize", "") and opset in (11, 12):
        opset = 13
    schema = defs.get_schema(op_type, opset, domain)
    if schema.deprecated:
        with suppress(defs.SchemaError):
            return defs.get_schema(op_type, schema.since_version - 1, domain)
    return schema


class ShapeRules:
    """Shape inference and evaluation of single nodes under the opsets of one model."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = dict(opsets)
        self._imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._schemas: dict[tuple[str, str], defs.OpSchema | None] = {}
        self._attributes: dict[tuple[str, str], dict[str, int]] = {}
        self._types: dict[tuple[str, tuple[int, ...]], TypeProto] = {}

    def find_schema(self, node: NodeProto) -> defs.OpSchema | None:
        """The definition of a node's op, None where the library has none at the file's opset."""
        key = node.domain, node.op_type
        if key not in self._schemas:
            self._schemas[key] = None
            if node.domain in self._opsets:
                with suppress(defs.SchemaError):
                    self._schemas[key] = _lenient_schema(node.op_type, self._opsets[node.domain], node.domain)
        return self._schemas[key]

    def schema(self, node: NodeProto, where: str) -> defs.OpSchema:
        """The definition of a node's op. Raises UnsupportedOpError where there is none."""
        found = self.find_schema(node)
        if found is not None:
            return found
        if node.domain not in self._opsets:
            reason = f"is of the unknown domain {quoted(node.domain)}"
        else:
            domain = f" of domain {quoted(node.domain)}" if node.domain else ""
            reason = f"is not an op{domain} of opset {self._opsets[node.domain]}"
        raise UnsupportedOpError(f"{where} {reason}", remedy=f"export the model with standard ONNX ops, or {CHARGE}")

    def optional_outputs(self, node: NodeProto, where: str) -> tuple[bool, ...]:
        """For each formal output whether it may be left out."""
        optional = defs.OpSchema.FormalParameterOption.Optional
        return tuple(output.option == optional for output in self.schema(node, where).outputs)

    def integer_attribute(self, name: str, value: int) -> AttributeProto:
        """An attribute for a node that the reader rewrites."""
        return onnx.helper.make_attribute(name, value)

    def number(self, dtype: str) -> int:
        """The ONNX element type of a dtype."""
        return int(_NUMBERS[dtype])

    def measured(self, call: Call) -> Array:
        """What Shape or Size returns, from the shape of its input alone."""
        value = call.inputs[0]
        assert value is not None
        if call.op_type == "Size":
            return np.asarray(value.numel, np.int64)
        start, end = call.attributes.get("start", 0), call.attributes.get("end")
        assert isinstance(start, int)
        assert end is None or isinstance(end, int)
        return np.asarray(value.shape[start:end], np.int64)

    def check_node(self, node: NodeProto, where: str) -> None:
        """Refuse a node that does not fit its op's definition before the library looks at it, which trusts it."""
        schema = self.schema(node, where)
        for what, count, low, high in (
            ("inputs", len(node.input), schema.min_input, schema.max_input),
            ("outputs", len(node.output), schema.min_output, schema.max_output),
        ):
            if not low <= count <= high:
                allowed = f"at least {low}" if high > 2**20 else f"{low} to {high}"
                raise InvalidModelError(f"{where} has {count} {what}; {allowed} are allowed", remedy=REMEDY)
        if node.input and not node.input[0] and schema.inputs[0].option == _SINGLE:
            raise InvalidModelError(f"{where} leaves out its input {quoted(schema.inputs[0].name)}", remedy=REMEDY)
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
                    f"{where} has {len(node.output)} outputs and num_outputs {attribute.i}", remedy=REMEDY
                )

    def infer(self, node: NodeProto, call: Call, known: Mapping[int, Array], where: str) -> dict[str, Inferred]:
        """Element type and shape of each named output; a shape is None where it depends on data.

        ``known`` overrides the contents of inputs by position. A Range of one-element vectors, which the
        library itself writes for AffineGrid, is one of scalars.
        """
        schema = self.schema(node, where)
        if not schema.has_type_and_shape_inference_function:
            return self._without_rule(node, call, where)
        types: dict[str, TypeProto] = {}
        data: dict[str, TensorProto] = {}
        for position, (name, value) in enumerate(zip(node.input, call.inputs, strict=True)):
            if value is None:
                continue
            array = known.get(position, value.known)
            scalar = node.op_type == "Range" and value.shape == (1,)
            types[name] = self._type(value.dtype, () if scalar else value.shape)
            if scalar and array is not None:
                array = array.reshape(())
            if array is not None and (not value.is_float or array.size <= 64):
                data[name] = numpy_helper.from_array(array)
        try:
            inferred = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=self._imports)
        except Exception as error:
            text = first_line(error).replace("[ShapeInferenceError] ", "").replace("[TypeInferenceError] ", "")
            shown = ", ".join(shape_text(value.shape) for value in call.inputs if value is not None)
            raise InvalidModelError(f"{where} with inputs {shown}: {text}", remedy=REMEDY) from None
        result: dict[str, Inferred] = {}
        for name in node.output:
            if name not in inferred or not inferred[name].HasField("tensor_type"):
                raise UnsupportedOpError(
                    f"{where} makes {quoted(name)}, which is not a tensor of known type",
                    remedy="export the model without sequences and optional values",
                )
            tensor = inferred[name].tensor_type
            dtype = dtype_name(tensor.elem_type, f"{where}, output {quoted(name)},")
            result[name] = Inferred(dtype, _partial_shape(tensor))
        if any(output.shape is None for output in result.values()) and not node.domain:
            dims = missed_shape(call)
            if dims is not None:
                result[node.output[0]] = Inferred(result[node.output[0]].dtype, dims)
        return result

    def _without_rule(self, node: NodeProto, call: Call, where: str) -> dict[str, Inferred]:
        """Ops to which their opset gives no inference; most are of opset 1, and most keep their shape."""
        first = next((value for value in call.inputs if value is not None), None)
        if first is not None and node.op_type in _SAME_AS_FIRST:
            return dict.fromkeys(node.output, Inferred(first.dtype, first.shape))
        target = call.attributes.get("shape")
        if first is not None and node.op_type == "Reshape" and isinstance(target, tuple):
            sizes = [size or first.shape[axis] for axis, size in enumerate(target)]
            rest = first.numel // max(prod(size for size in sizes if size != -1), 1)
            shape = tuple(rest if size == -1 else size for size in sizes)
            return {node.output[0]: Inferred(first.dtype, shape)}
        for version in range(self._opsets[node.domain] + 1, defs.onnx_opset_version() + 1):
            schema = defs.get_schema(node.op_type, version, node.domain)
            if schema.has_type_and_shape_inference_function and node.op_type in _LIKE_NEXT_OPSET:
                if node.op_type == "Concat" and "axis" not in call.attributes:
                    node.attribute.append(self.integer_attribute("axis", 1))
                return ShapeRules({**self._opsets, node.domain: version}).infer(node, call, {}, where)
        raise UnsupportedOpError(
            f"{where} has no shape inference at opset {self._opsets[node.domain]}",
            remedy="convert the model to a newer opset",
        )

    def compute(self, node: NodeProto, call: Call, inferred: Mapping[str, Inferred], where: str) -> list[Array] | None:
        """The contents of all outputs, or None where an input is unknown or an output is large."""
        if node.op_type not in _COMPUTED or node.domain:
            return None
        if any(value is not None and value.known is None for value in call.inputs):
            return None
        for output in inferred.values():
            shape = output.shape
            if shape is None and node.op_type not in _BOUNDED_BY_INPUT:
                return None
            if shape is not None and not keeps_contents(output.dtype, prod(shape)):
                return None
        from onnx.reference import ReferenceEvaluator

        graph = GraphProto(name="one")
        graph.node.append(node)
        graph.input.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
        feeds = {name: value.known for name, value in zip(node.input, call.inputs, strict=True) if value is not None}
        if node.op_type == "Range":
            feeds = {name: np.reshape(array, ()) for name, array in feeds.items() if array is not None}
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(graph, opsets=self._opsets).run(None, feeds)
        except Exception as error:
            raise InvalidModelError(f"{where} cannot be computed: {first_line(error)}", remedy=REMEDY) from None
        return [np.asarray(result) for result in results]

    def _type(self, dtype: str, shape: tuple[int, ...]) -> TypeProto:
        if (dtype, shape) not in self._types:
            self._types[dtype, shape] = onnx.helper.make_tensor_type_proto(_NUMBERS[dtype], shape)
        return self._types[dtype, shape]


def _partial_shape(tensor: TypeProto.Tensor) -> Partial:
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.WhichOneof("value") == "dim_value" else None for dim in tensor.shape.dim)


def constant_tensor(node: NodeProto, where: str) -> TensorProto:
    """The tensor that a Constant node holds, whichever attribute it uses."""
    found: list[AttributeProto] = [attribute for attribute in node.attribute if attribute.name.startswith("value")]
    if len(found) != 1:
        raise InvalidModelError(f"{where} has {len(found)} values; one is needed", remedy="export the model again")
    attribute = found[0]
    kinds = {
        "value_int": (TensorProto.INT64, [attribute.i], ()),
        "value_ints": (TensorProto.INT64, list(attribute.ints), (len(attribute.ints),)),
        "value_float": (TensorProto.FLOAT, [attribute.f], ()),
        "value_floats": (TensorProto.FLOAT, list(attribute.floats), (len(attribute.floats),)),
    }
    if attribute.name == "value" and attribute.type == AttributeProto.TENSOR:
        return attribute.t
    if attribute.name not in kinds:
        raise UnsupportedOpError(f"{where} holds {attribute.name}", remedy="only numeric tensors can be planned")
    number, entries, shape = kinds[attribute.name]
    return onnx.helper.make_tensor("value", number, shape, entries)
