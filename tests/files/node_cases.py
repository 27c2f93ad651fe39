"""The node test cases of the onnx package, rewritten so that a gradient has to flow through each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
FIXED = {("Upsample", "scales")}
"""Inputs that PyTorch takes as numbers, of ops for which onnx states no category."""
TRAINED = {("AffineGrid", "theta"), ("DFT", "input"), ("STFT", "signal")}
"""Inputs that onnx calls non-differentiable and PyTorch differentiates all the same."""
FLAT = frozenset({"Bernoulli", "DynamicQuantizeLinear", "Hardmax", "QuantizeLinear"})
"""Ops whose definition calls them differentiable although they are steps: their derivative is zero."""


@dataclass(frozen=True)
class Prepared:
    """A case as a file: ``gains`` are the names of its trained inputs, ``shapes`` the shapes of all its inputs.

    ``differentiable`` says whether the definition of the op lets a gradient reach the trained inputs, and
    ``outputs`` are the shapes of what the case returns.
    """

    model: ModelProto
    gains: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    differentiable: bool
    op_type: str


@cache
def cases() -> dict[str, TestCase]:
    """Every node test case of the installed onnx package, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def twin(name: str) -> str:
    """The name of the case with one node that an expanded case writes out."""
    return name.split("_expanded")[0]


def op_type(name: str) -> str:
    """The op that a case is about."""
    model = cases()[twin(name)].model
    assert model is not None
    return str(model.graph.node[0].op_type)


def prepare(name: str) -> Prepared:
    """The case without the shapes of its outputs, with its integers, flags and options as constants, and with
    every other floating input multiplied by a trained weight of one element."""
    case, plain = cases()[name], cases()[twin(name)].model
    assert case.model is not None
    assert case.data_sets is not None
    assert plain is not None
    op = plain.graph.node[0]
    schema = defs.get_schema(op.op_type, {e.domain: e.version for e in plain.opset_import}[op.domain], op.domain)
    categories = {given: (op.op_type, formal, category) for given, formal, category in _slots(op.input, schema.inputs)}
    model = ModelProto()
    model.CopyFrom(case.model)
    graph, kept, trained, shapes = model.graph, [], list[ValueInfoProto](), dict[str, tuple[int, ...]]()
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    for entry, given in zip(list(graph.input), case.data_sets[0][0], strict=True):
        array = numpy_helper.to_array(given) if isinstance(given, TensorProto) else given
        kind = entry.type.tensor_type.elem_type
        tensor = entry.type.HasField("tensor_type") and kind != TensorProto.STRING and not isinstance(array, list)
        if tensor and not _is_trained(kind, np.shape(array), categories.get(entry.name, ("", "", ""))):
            graph.initializer.append(numpy_helper.from_array(np.asarray(array), entry.name))
            continue
        kept.append(entry)
        if tensor and np.ndim(array):
            trained.append(entry)
        if tensor:
            shapes[entry.name] = np.shape(array)
    del graph.input[:]
    graph.input.extend(kept)
    _insert_gains(graph, trained)
    floating = any(
        category != "NonDifferentiable" and not _is_integral(output)
        for (_, _, category), output in zip(_slots(op.output, schema.outputs), plain.graph.output, strict=False)
    )
    returned = zip(graph.output, case.data_sets[0][1], strict=True)
    outputs = {entry.name: np.shape(array) for entry, array in returned if not isinstance(array, list | TensorProto)}
    gains = tuple(entry.name for entry in trained)
    return Prepared(model, gains, shapes, outputs, bool(gains) and floating and op.op_type not in FLAT, op.op_type)


def _is_integral(output: ValueInfoProto) -> bool:
    kind = output.type.sequence_type.elem_type if output.type.HasField("sequence_type") else output.type
    name = TensorProto.DataType.Name(kind.tensor_type.elem_type)
    return name.startswith(("INT", "UINT", "BOOL", "STRING"))


def _slots(names: Iterable[str], formals: Iterable[defs.OpSchema.FormalParameter]) -> Iterable[tuple[str, str, str]]:
    """Each name with the formal parameter it fills and its category; the last parameter may be repeated."""
    listed = list(formals)
    for position, name in enumerate(names):
        formal = listed[min(position, len(listed) - 1)]
        if name:
            yield name, formal.name, formal.differentiation_category.name


def _is_trained(kind: int, shape: tuple[int, ...], slot: tuple[str, str, str]) -> bool:
    op_type, formal, category = slot
    if kind not in FLOATS or (op_type, formal) in FIXED:
        return False
    if (op_type, formal) in TRAINED:
        return True
    return category == "Differentiable" or (bool(shape) and category != "NonDifferentiable")


def _insert_gains(graph: GraphProto, trained: Iterable[ValueInfoProto]) -> None:
    names = {entry.name: f"{entry.name}*gain" for entry in trained}
    for node in graph.node:
        _rename(node, names)
    nodes = []
    for entry in trained:
        gain = helper.make_tensor(f"{entry.name}.weight", entry.type.tensor_type.elem_type, [1], [1.0])
        graph.initializer.append(gain)
        product = names[entry.name]
        nodes.append(helper.make_node("Mul", [entry.name, gain.name], [product], name=f"gain of {entry.name}"))
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for position, name in enumerate(node.input):
        node.input[position] = names.get(name, name)
    for attribute in node.attribute:
        own = {name for inner in attribute.g.node for name in inner.output}
        own |= {entry.name for entry in attribute.g.input}
        for inner in attribute.g.node:
            _rename(inner, {old: new for old, new in names.items() if old not in own})
