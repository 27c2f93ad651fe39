"""Small constants of a file: they are decoded, and folded one node at a time.

No value is computed before its size is known, so a Range to 2^40 costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps as quoted
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

from ...errors import InvalidModelError, UnsupportedOpError
from ..document.unsupported_ops import EXPORT_AGAIN
from .consistency import REMEDY
from .values import Call, Inferred

KNOWN_LIMIT = 2**16  # elements; longer constants stay unknown
KNOWN_FLOAT_LIMIT = 2**10  # weights are never decoded, scales and shape arithmetic in floats are

MOST_COMPARED = 64
"""Elements of an input up to which nodes are compared by its values."""

Array = np.ndarray[Any, Any]

_COMPUTED = frozenset(
    "Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Clip Compress Concat ConstantOfShape CumSum Div"
    " Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less"
    " LessOrEqual Log Max Min Mod Mul Neg NonZero Not OneHot Or Pad Pow Range Reciprocal ReduceMax ReduceMean"
    " ReduceMin ReduceProd ReduceSum Relu Reshape Round ScatterElements ScatterND Sign Slice Split Sqrt Squeeze Sub"
    " Tile TopK Transpose Trilu Unsqueeze Where Xor".split()
)
_BOUNDED_BY_INPUT = frozenset({"Compress", "NonZero"})


def keeps_contents(dtype: str, numel: int) -> bool:
    """Whether the values of a constant of this size are kept."""
    return numel <= (KNOWN_FLOAT_LIMIT if dtype.startswith(("float", "bfloat", "complex")) else KNOWN_LIMIT)


def contents(tensor: TensorProto, where: str) -> Array:
    """The values of a small tensor of the file."""
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:
        raise InvalidModelError(f"{where} cannot be decoded: {first_line(error)}", remedy=EXPORT_AGAIN) from None


def first_line(error: BaseException) -> str:
    """The message of an error of the library, as one line of bounded length."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 300 else text[:297] + "..."


def attributes_of(node: NodeProto) -> dict[str, object]:
    """The attributes as plain numbers, strings and tuples; tensors only if they are small."""
    result: dict[str, object] = {}
    for attribute in node.attribute:
        kind = attribute.type
        if attribute.ref_attr_name:
            raise InvalidModelError(
                f"attribute {quoted(attribute.name)} refers to one of a function, outside of any", remedy=EXPORT_AGAIN
            )
        if kind == AttributeProto.INT:
            result[attribute.name] = attribute.i
        elif kind == AttributeProto.INTS:
            result[attribute.name] = tuple(attribute.ints)
        elif kind == AttributeProto.TENSOR:
            numel = prod(attribute.t.dims)
            if (
                numel <= 64
                and attribute.t.data_type in TensorProto.DataType.values()
                and attribute.t.data_location == TensorProto.DEFAULT
            ):
                array = contents(attribute.t, f"attribute {quoted(attribute.name)}")
                result[attribute.name] = tuple(array.ravel().tolist())
        elif kind in (AttributeProto.FLOAT, AttributeProto.STRING, AttributeProto.FLOATS, AttributeProto.STRINGS):
            result[attribute.name] = _plain(onnx.helper.get_attribute_value(attribute))
    return result


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, int | float | str):
        return value
    assert isinstance(value, Sequence)
    return tuple(_plain(entry) for entry in value)


def constant_tensor(node: NodeProto, where: str) -> TensorProto:
    """The tensor of a Constant node, whichever attribute it uses."""
    found: list[AttributeProto] = [attribute for attribute in node.attribute if attribute.name.startswith("value")]
    if len(found) != 1:
        raise InvalidModelError(f"{where} has {len(found)} values; one is needed", remedy=EXPORT_AGAIN)
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


def measured(call: Call) -> Array:
    """The result of Shape or Size, from the shape of its input alone."""
    value = call.inputs[0]
    assert value is not None
    if call.op_type == "Size":
        return np.asarray(value.numel, np.int64)
    start, end = call.attributes.get("start", 0), call.attributes.get("end")
    assert isinstance(start, int)
    assert end is None or isinstance(end, int)
    return np.asarray(value.shape[start:end], np.int64)


def all_that_counts(node: NodeProto, call: Call) -> object | None:
    """All that the shapes and values of a node's outputs follow from; None where that is more than a few numbers."""
    inputs: list[object] = []
    for value in call.inputs:
        if value is None or value.known is None:
            inputs.append(value and (value.dtype, value.shape))
        elif value.known.size <= MOST_COMPARED and not value.known.dtype.hasobject:  # bytes of texts are addresses
            known = value.known
            inputs.append((value.dtype, value.shape, known.dtype.str, known.shape, known.tobytes()))
        else:
            return None
    attributes = tuple([attribute.SerializeToString() for attribute in node.attribute])
    return node.domain, node.op_type, len(node.output), attributes, tuple(inputs)


def compute(
    node: NodeProto,
    call: Call,
    inferred: Mapping[str, Inferred],
    opsets: Mapping[str, int],
    where: str,
    results: dict[object, list[Array]],
) -> list[Array] | None:
    """The values of all outputs, or None if an input is unknown or an output is large.

    ``results`` has those of other nodes by what `all_that_counts` says: layers repeat.
    """
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
    like = all_that_counts(node, call)
    if like in results:
        return results[like]
    from onnx.reference import ReferenceEvaluator

    graph = GraphProto(name="one")
    graph.node.append(node)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output)
    feeds = {name: value.known for name, value in zip(node.input, call.inputs, strict=True) if value is not None}
    if node.op_type == "Range":
        feeds = {name: np.reshape(array, ()) for name, array in feeds.items() if array is not None}
    try:
        if node.op_type == "GatherElements":
            return [_gathered(call)]
        with np.errstate(all="ignore"):
            made = ReferenceEvaluator(graph, opsets=dict(opsets)).run(None, feeds)
    except Exception as error:
        raise InvalidModelError(f"{where} cannot be computed: {first_line(error)}", remedy=REMEDY) from None
    arrays = [np.asarray(result) for result in made]
    if like is not None:
        results[like] = arrays
    return arrays


def _gathered(call: Call) -> Array:
    """The result of GatherElements, for which the library's evaluator takes at most 32 positions."""
    data, indices = call.known(0), call.known(1)
    axis = call.attributes.get("axis", 0)
    assert data is not None
    assert indices is not None
    assert isinstance(axis, int)
    others = tuple(slice(size if at != axis % data.ndim else None) for at, size in enumerate(indices.shape))
    return np.take_along_axis(data[others], indices, axis)


def array_of(source: object, folder: Path, where: str) -> Array:
    """The values of a tensor of the file of any size; external data are read from ``folder``.

    Raises InvalidModelError if there are none, or they are damaged.
    """
    try:
        if isinstance(source, onnx.SparseTensorProto):
            dense = np.zeros(tuple(source.dims), numpy_helper.to_array(source.values).dtype)
            places = numpy_helper.to_array(source.indices)
            index = tuple(places.T) if places.ndim == 2 else np.unravel_index(places, dense.shape)
            dense[index] = numpy_helper.to_array(source.values)
            return dense
        assert isinstance(source, TensorProto)
        return np.asarray(numpy_helper.to_array(source, str(folder)))
    except Exception as error:
        raise InvalidModelError(
            f"{where} cannot be read: {first_line(error)}", remedy="put the file with its weights beside it"
        ) from None
