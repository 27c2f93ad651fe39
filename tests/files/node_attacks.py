"""Single nodes that fit their op's definition by name and type, and nowhere else: ranks, sizes, axes, constants."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

NUMBERS = (-(2**63), -(2**31), -100, -3, -2, -1, 0, 1, 2, 3, 4, 64, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
SMALL = (0, 1, 2, 3, -1)
SIZES = (0, 1, 2, 3, 4, 5, 8, 2**31, 2**40)
FRACTIONS = (0.0, 1.0, 2.0, 0.5, -1.0, float("nan"), float("inf"), 1e30, 1e-30)
LENGTHS = (0, 1, 2, 2, 3, 4, 4, 5, 8, 1000)
TEXTS = (
    b"",
    b"\xff",
    b"VALID",
    b"SAME_UPPER",
    b"linear",
    b"cubic",
    b"DCR",
    b"....",
    b"->",
    b"ij,jk->ik",
    b"i" * 10_000,
)
TYPES = (1, 1, 1, 1, 7, 7, 6, 9, 10, 11, 16, 2, 3)
_NAMES = AttributeProto.AttributeType


@cache
def _schemas() -> tuple[defs.OpSchema, ...]:
    found = (schema for schema in defs.get_all_schemas_with_history() if not schema.deprecated)
    return tuple(sorted(found, key=lambda schema: (schema.name, schema.domain, schema.since_version)))


def attack(generator: Random) -> ModelProto:
    """A model of one node of any op and opset, mostly behind a weight."""
    schema = generator.choice(_schemas())
    node = NodeProto(op_type=schema.name, domain=schema.domain)
    shape = _sizes(generator)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    constants = [TensorProto(name="layer.weight", data_type=TensorProto.FLOAT, dims=shape)]
    first = helper.make_node("Mul", ["x", "layer.weight"], ["i0"]) if generator.random() < 0.8 else None
    for position in range(generator.randint(schema.min_input, min(schema.max_input, schema.min_input + 6))):
        name = f"i{position}" if position == 0 or generator.random() < 0.9 else ""
        node.input.append(name)
        if position == 0 and first is not None:
            continue
        if position and name and generator.random() < 0.6:
            constants.append(numpy_helper.from_array(_constant(generator), name))
        elif name:
            dims = shape if generator.random() < 0.7 else _sizes(generator)
            inputs.append(helper.make_tensor_value_info(name, generator.choice(TYPES), dims))
    count = max(1, generator.randint(schema.min_output, min(schema.max_output, schema.min_output + 4)))
    node.output.extend(f"o{position}" for position in range(count))
    for name, entry in schema.attributes.items():
        if entry.required or generator.random() < 0.6:
            _fill(node.attribute.add(name=name, type=int(entry.type.value)), generator)
    outputs = [helper.make_tensor_value_info("o0", TensorProto.FLOAT, None)]
    opsets = [helper.make_opsetid(schema.domain, schema.since_version)]
    opsets += [helper.make_opsetid("", 21)] if schema.domain else []
    return helper.make_model(
        helper.make_graph([*([first] if first else []), node], "t", inputs, outputs, constants), opset_imports=opsets
    )


def _sizes(generator: Random) -> list[int]:
    return [
        generator.choice(SIZES if generator.random() < 0.3 else (1, 2, 4)) for _ in range(generator.choice(LENGTHS[:8]))
    ]


def _number(generator: Random) -> int:
    return generator.choice(generator.choice((NUMBERS, SMALL)))


def _constant(generator: Random) -> np.ndarray:
    shape = (generator.choice(LENGTHS[:9]),) if generator.random() < 0.8 else (2, 2)
    kind = generator.choice((np.int64, np.int64, np.float32, bool))
    pick = (lambda: generator.choice(FRACTIONS)) if kind is np.float32 else (lambda: _number(generator))
    return np.array([pick() for _ in range(int(np.prod(shape)))]).astype(kind).reshape(shape)


def _fill(attribute: AttributeProto, generator: Random) -> None:
    length = generator.choice(LENGTHS)
    if attribute.type == _NAMES.INT:
        attribute.i = _number(generator)
    elif attribute.type == _NAMES.FLOAT:
        attribute.f = generator.choice(FRACTIONS)
    elif attribute.type == _NAMES.STRING:
        attribute.s = generator.choice(TEXTS)
    elif attribute.type == _NAMES.INTS:
        attribute.ints.extend(_number(generator) for _ in range(length))
    elif attribute.type == _NAMES.FLOATS:
        attribute.floats.extend(generator.choice(FRACTIONS) for _ in range(length))
    elif attribute.type == _NAMES.STRINGS:
        attribute.strings.extend(generator.choice(TEXTS) for _ in range(length))
    elif attribute.type == _NAMES.TENSOR:
        attribute.t.data_type = generator.choice(TYPES)
        attribute.t.dims.extend(_sizes(generator))
        attribute.t.raw_data = bytes(generator.choice((0, 1, 4, 8, 16)))
