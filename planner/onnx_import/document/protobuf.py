"""The protobuf messages of an ONNX file, and the names of its element types."""

from __future__ import annotations

from onnx import IR_VERSION as IR_VERSION
from onnx import FunctionProto as FunctionProto
from onnx import GraphProto as GraphProto
from onnx import ModelProto as ModelProto
from onnx import NodeProto as NodeProto
from onnx import StringStringEntryProto as StringStringEntryProto
from onnx import TensorProto as TensorProto
from onnx import ValueInfoProto as ValueInfoProto
from onnx import defs as defs
from onnx import inliner as inliner

from ...errors import UnsupportedOpError
from ...graph import ITEM_BITS

MAX_NBYTES = 2**60
"""A file with a larger tensor is invalid."""

DTYPES = {
    number: {"float": "float32", "double": "float64"}.get(name.lower(), name.lower())
    for name, number in TensorProto.DataType.items()
}
"""Element type number -> name."""


def dtype_name(number: int, where: str) -> str:
    """The name of an ONNX element type. Raises UnsupportedOpError for a type that is not numeric."""
    name = DTYPES.get(number, str(number))
    if name not in ITEM_BITS:
        raise UnsupportedOpError(f"{where} has element type {name}", remedy="only numeric tensors can be planned")
    return str(name)
