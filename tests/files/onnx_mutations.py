"""Damaged ONNX files: random changes of nodes, names, attributes, tensors and types anywhere in a model."""

from __future__ import annotations

import random
from collections.abc import Callable

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

NUMBERS = (-(2**63), -(2**31), -3, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**40, 2**63 - 1)
WORDS = ("", "x", "y", "VALID", "ij,jk->ik", "constant", "com.microsoft", "ai.onnx", 'a"b', "a\nb", "é")
OPS = "Relu If Loop Conv Reshape SplitToSequence SequenceAt Range Gemm Einsum Resize LSTM".split()


def mutate(model: ModelProto, seed: int) -> ModelProto:
    """A copy of ``model`` with one to four changes."""
    generator = random.Random(seed)
    damaged = ModelProto()
    damaged.CopyFrom(model)
    for _ in range(generator.randint(1, 4)):
        generator.choice(_CHANGES)(damaged, generator)
    return damaged


def _graphs(model: ModelProto) -> list[GraphProto]:
    found = [model.graph]
    for graph in found:
        found += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return found


def _node(model: ModelProto, generator: random.Random) -> NodeProto | None:
    nodes = list(generator.choice(_graphs(model)).node)
    nodes += [node for function in model.functions for node in function.node]
    return generator.choice(nodes) if nodes else None


def _value(model: ModelProto, generator: random.Random) -> str:
    node = _node(model, generator)
    names = [*node.input, *node.output] if node is not None else []
    return generator.choice([*names, *WORDS])


def _rewire(model: ModelProto, generator: random.Random) -> None:
    node = _node(model, generator)
    listed = None if node is None else generator.choice([node.input, node.output])
    if listed:
        listed[generator.randrange(len(listed))] = _value(model, generator)


def _count(model: ModelProto, generator: random.Random) -> None:
    node = _node(model, generator)
    if node is not None:
        listed = generator.choice([node.input, node.output])
        if listed and generator.random() < 0.6:
            del listed[generator.randrange(len(listed))]
        else:
            listed.append(_value(model, generator))


def _nodes(model: ModelProto, generator: random.Random) -> None:
    graph = generator.choice(_graphs(model))
    if not graph.node:
        return
    at = generator.randrange(len(graph.node))
    if generator.random() < 0.5:
        del graph.node[at]
    else:
        copy = NodeProto()
        copy.CopyFrom(graph.node[at])
        copy.output[:] = [name + "'" for name in copy.output]
        graph.node.append(copy)


def _op(model: ModelProto, generator: random.Random) -> None:
    node = _node(model, generator)
    if node is not None:
        node.op_type = generator.choice(OPS)
        node.domain = generator.choice(("", "", "", "ai.onnx", "ai.onnx.ml", "own"))


def _attribute(model: ModelProto, generator: random.Random) -> None:
    node = _node(model, generator)
    if node is None or not node.attribute:
        return
    at = generator.randrange(len(node.attribute))
    if generator.random() < 0.2:
        del node.attribute[at]
        return
    _change_attribute(node.attribute[at], generator)


def _change_attribute(attribute: AttributeProto, generator: random.Random) -> None:
    how = generator.randrange(7)
    if how == 0:
        attribute.i = generator.choice(NUMBERS)
    elif how == 1:
        attribute.f = generator.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
    elif how == 2:
        attribute.s = generator.choice((b"", b"\xff\xfe", b"VALID", b"linear"))
    elif how == 3 and attribute.ints:
        attribute.ints[generator.randrange(len(attribute.ints))] = generator.choice(NUMBERS)
    elif how == 4:
        attribute.ints.append(generator.choice(NUMBERS))
    elif how == 5:
        attribute.type = generator.choice(AttributeProto.AttributeType.values())
    else:
        del attribute.ints[:]


def _tensor(model: ModelProto, generator: random.Random) -> None:
    graph = generator.choice(_graphs(model))
    tensors = list(graph.initializer) + [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    if not tensors:
        return
    tensor = generator.choice(tensors)
    how = generator.randrange(5)
    if how == 0:
        tensor.data_type = generator.choice([*TensorProto.DataType.values(), 99])
    elif how == 1 and tensor.dims:
        tensor.dims[generator.randrange(len(tensor.dims))] = generator.choice(NUMBERS)
    elif how == 2:
        tensor.dims.append(generator.choice(NUMBERS))
    elif how == 3:
        tensor.raw_data = bytes(generator.randrange(256) for _ in range(generator.randrange(20)))
    else:
        del tensor.dims[:]


def _type(model: ModelProto, generator: random.Random) -> None:
    graph = generator.choice(_graphs(model))
    entries = [*graph.input, *graph.output, *graph.value_info]
    if not entries:
        return
    entry = generator.choice(entries)
    how = generator.randrange(4)
    if how == 0:
        entry.type.tensor_type.elem_type = generator.choice([*TensorProto.DataType.values(), 99])
    elif how == 1:
        entry.type.tensor_type.shape.dim.add().dim_value = generator.choice(NUMBERS)
    elif how == 2:
        entry.type.CopyFrom(TypeProto())
    else:
        entry.name = _value(model, generator)


def _version(model: ModelProto, generator: random.Random) -> None:
    if model.opset_import:
        model.opset_import[0].version = generator.choice((-1, 0, 1, 5, 6, 7, 8, 9, 10, 11, 13, 17, 18, 21, 24, 26, 999))


_CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _rewire, _rewire, _count, _nodes, _op, _attribute, _attribute, _attribute, _tensor, _tensor, _type, _version,
)  # fmt: skip
