"""The values that a file carries itself: initializers and Constants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quoted

from ...errors import InvalidModelError, UnsupportedOpError
from ..document.protobuf import MAX_NBYTES, GraphProto, TensorProto, dtype_name
from ..document.unsupported_ops import EXPORT_AGAIN
from .consistency import shape_text
from .constant_folding import contents, keeps_contents
from .value_table import ValueTable, check_rank
from .values import Value

_NOT_ZERO = re.compile(rb"[^\0]")
_RECORDED_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def enter_leaves(table: ValueTable, graph: GraphProto, names: Mapping[str, str]) -> None:
    """Enter the initializers of a graph, with what torch's exporter recorded about each.

    ``names`` renames them. One that cannot be planned, such as a string, is refused if a node reads it.
    """
    recorded = {
        entry.name: property.value
        for entry in (*graph.value_info, *graph.initializer)
        for property in entry.metadata_props
        if property.key == _RECORDED_KIND
    }
    for tensor in graph.initializer:
        name = names.get(tensor.name, tensor.name)
        try:
            value = leaf(table, name, tensor, f"initializer {quoted(tensor.name)}")
        except UnsupportedOpError as error:
            table.refused[name] = error
            continue
        value.is_initializer = True
        kind = recorded.get(tensor.name, "")
        value.declared = kind if kind in ("PARAMETER", "BUFFER") else ("BUFFER" if kind else "")
    for sparse in graph.sparse_initializer:
        name = names.get(sparse.values.name, sparse.values.name)
        dtype = dtype_name(sparse.values.data_type, f"initializer {quoted(sparse.values.name)}")
        table.values[name] = Value(name, dtype, tuple(sparse.dims), from_file=True, is_leaf=True, source=sparse)


def leaf(table: ValueTable, name: str, tensor: TensorProto, where: str) -> Value:
    """Enter an initializer or a Constant; its values are decoded only if they are few and in the file."""
    check_rank(tensor.dims, where)
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise InvalidModelError(f"{where} has shape {shape_text(shape)}", remedy=EXPORT_AGAIN)
    value = Value(name, dtype_name(tensor.data_type, where), shape, from_file=True, is_leaf=True, source=tensor)
    if value.nbytes >= MAX_NBYTES:
        raise InvalidModelError(f"{where} has {value.nbytes} bytes", remedy=EXPORT_AGAIN)
    if _has_contents(tensor):
        if keeps_contents(value.dtype, value.numel):
            value.known = contents(tensor, where)
        value.zeros = bool(tensor.raw_data) and _NOT_ZERO.search(tensor.raw_data) is None
    table.values[name] = value
    return value


def _has_contents(tensor: TensorProto) -> bool:
    """Whether the values are in the file; some files are passed on without their weights."""
    if tensor.data_location != 0:
        return False
    fields = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    return bool(tensor.raw_data) or any(fields) or 0 in tensor.dims
