"""The declared inputs of a graph, and every name that a user may give a shape to."""

from __future__ import annotations

from json import dumps as quoted

from ...errors import InvalidModelError, UnsupportedOpError
from ..document.protobuf import GraphProto, ValueInfoProto, dtype_name
from ..document.subgraphs import all_nodes, constant_names
from ..document.unsupported_ops import EXPORT_AGAIN
from ..values.value_table import ValueTable
from .input_binding import DeclaredInput


def read_inputs(graph: GraphProto, constants: frozenset[str], table: ValueTable) -> list[DeclaredInput]:
    """The inputs that are not initializers; files of IR version 3 list those, too.

    An input that is no tensor of numbers is refused if a node reads it.
    """
    declared: list[DeclaredInput] = []
    for entry in graph.input:
        if entry.name in constants:
            continue
        try:
            declared.append(DeclaredInput(entry.name, _input_dtype(entry), _dims(entry)))
        except UnsupportedOpError as error:
            table.refused[entry.name] = error
    return declared


def _input_dtype(entry: ValueInfoProto) -> str:
    where = f"input {quoted(entry.name)}"
    kind = entry.type.WhichOneof("value")
    if kind is None or (kind == "tensor_type" and not entry.type.tensor_type.elem_type):
        raise InvalidModelError(f"{where} has no type", remedy=EXPORT_AGAIN)
    if kind != "tensor_type":
        raise UnsupportedOpError(f"{where} is a {kind.removesuffix('_type')}", remedy="only tensors can be planned")
    return dtype_name(entry.type.tensor_type.elem_type, where)


def _dims(entry: ValueInfoProto) -> tuple[int | str | None, ...] | None:
    """The declared dimensions; exporters write 0, -1 or "?" for an unknown size."""
    if not entry.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        (None if dim.dim_param in ("", "?") else dim.dim_param)
        if dim.WhichOneof("value") != "dim_value"
        else (dim.dim_value if dim.dim_value > 0 else None)
        for dim in entry.type.tensor_type.shape.dim
    )


def tensor_names(graph: GraphProto) -> frozenset[str]:
    """The names of all values in the graph and its subgraphs."""
    names = {name for node in all_nodes(graph.node) for name in (*node.input, *node.output)}
    return frozenset(names | {entry.name for entry in graph.input} | constant_names(graph))
