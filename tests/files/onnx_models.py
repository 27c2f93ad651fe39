"""Small ONNX files for tests of the reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from ogc_plan.planner.graph import Graph, Op, Tensor
from ogc_plan.planner.onnx_import.reader import read_onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64


def node(op_type: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """A node; names are separated by blanks, ``_`` is an absent input or output."""
    names = [["" if name == "_" else name for name in text.split()] for text in (inputs, outputs)]
    label = attributes.pop("node_name", "")
    domain = attributes.pop("domain", "")
    return helper.make_node(op_type, names[0], names[1], name=str(label), domain=str(domain), **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None] | None],
    outputs: str = "y",
    *,
    weights: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    input_type: int = FLOAT,
    opset: int = 21,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of float inputs, float weights by shape and constants by value."""
    initializers = [
        numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in (weights or {}).items()
    ]
    initializers += [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, input_type, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs.split()],
        initializers,
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in {function.domain for function in functions}]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def save(proto: onnx.ModelProto, folder: Path) -> Path:
    """Write a model without checking it."""
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def read(proto: onnx.ModelProto, folder: Path, **options: object) -> Graph:
    """Write and read a model."""
    return read_onnx(save(proto, folder), **options)  # type: ignore[arg-type]


def tensor(graph: Graph, name: str) -> Tensor:
    """The tensor of that name."""
    return next(tensor for tensor in graph.tensors if tensor.name == name)


def op(graph: Graph, op_type: str) -> Op:
    """The only op of that type."""
    (found,) = [op for op in graph.ops if op.op_type == op_type]
    return found


def storage_name(graph: Graph, name: str) -> str:
    """The name of the storage in which a tensor lives."""
    return graph.storages[tensor(graph, name).storage].name


def shape_of(graph: Graph, op_type: str) -> tuple[int, ...]:
    """The shape of the first output of the only op of that type."""
    return graph.tensors[op(graph, op_type).outputs[0]].shape


def unknown_op(folder: Path) -> Path:
    """A file with an op of the unknown domain `acme`, whose output's type is declared."""
    nodes = [node("MatMul", "x w", "h"), node("Mystery", "h", "y", domain="acme")]
    proto = model(nodes, {"x": (4, 8)}, weights={"w": (8, 8)})
    proto.opset_import.append(helper.make_opsetid("acme", 1))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 8)))
    return save(proto, folder)


def with_folded_norm() -> onnx.ModelProto:
    """A convolution into which tf2onnx folded a batch norm."""
    weights = {"block/Conv2D_weights_fused_bn": (8, 3, 1, 1), "block/Conv2D_bias_fused_bn": (8,)}
    return model([node("Conv", " ".join(("x", *weights)), "y")], {"x": (2, 3, 4, 4)}, weights=weights)
