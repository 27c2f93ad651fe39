"""Attributes of nodes."""

from __future__ import annotations

from ....planner.onnx_import.document.protobuf import NodeProto, TensorProto

_FLOAT, _INT, _STRING, _FLOATS, _INTS, _STRINGS, _TENSOR = 1, 2, 3, 6, 7, 8, 4  # AttributeProto.AttributeType


def put_attribute(node: NodeProto, key: str, value: object) -> None:
    """Give a node an attribute: a number, a text, a tensor, or a list of numbers or texts."""
    entry = node.attribute.add(name=key)
    if isinstance(value, TensorProto):
        entry.type = _TENSOR
        entry.t.CopyFrom(value)
    elif isinstance(value, bool | int):
        entry.type, entry.i = _INT, int(value)
    elif isinstance(value, float):
        entry.type, entry.f = _FLOAT, value
    elif isinstance(value, str):
        entry.type, entry.s = _STRING, value.encode()
    else:
        assert isinstance(value, tuple | list)
        if all(isinstance(one, int) for one in value):
            entry.type = _INTS
            entry.ints.extend(value)
        elif all(isinstance(one, str) for one in value):
            entry.type = _STRINGS
            entry.strings.extend(one.encode() for one in value)
        else:
            entry.type = _FLOATS
            entry.floats.extend(float(one) for one in value)
