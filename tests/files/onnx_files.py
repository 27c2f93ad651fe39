"""Small ONNX files for tests, written with the onnx library."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RESNET50 = Path(os.path.dirname(onnx.__file__), "backend/test/data/light/light_resnet50.onnx")
"""Shipped with the onnx package: the whole ResNet-50 graph without its weights."""


def write_perceptron(
    path: Path, *, layers: int = 6, width: int = 32, weight_prefix: str = "w", op: str = "Relu"
) -> Path:
    """``x[batch, width]`` -> (Gemm, activation, Dropout) x ``layers`` -> ``y``; module scopes are recorded."""
    nodes, weights, value = [], [], "x"
    for i in range(layers):
        weights.append(numpy_helper.from_array(np.zeros((width, width), np.float32), f"{weight_prefix}{i}"))
        steps = [
            helper.make_node("Gemm", [value, f"{weight_prefix}{i}"], [f"g{i}"], name=f"gemm{i}"),
            helper.make_node(op, [f"g{i}"], [f"r{i}"], name=f"act{i}"),
            helper.make_node("Dropout", [f"r{i}"], [f"d{i}"], name=f"drop{i}"),
        ]
        for node in steps:
            entry = node.metadata_props.add()
            entry.key, entry.value = "pkg.torch.onnx.name_scopes", f"['', 'layer{i}', '{node.name}']"
        nodes += steps
        value = f"d{i}"
    nodes.append(helper.make_node("Identity", [value], ["y"], name="last"))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
        weights,
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, producer_name="test", ir_version=9), path)
    return path
