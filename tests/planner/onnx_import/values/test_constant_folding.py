"""Shape arithmetic is folded while the file is read, and nothing large is computed."""

from __future__ import annotations

from pathlib import Path

import onnx
from ogc_plan.planner.graph import Role

from tests.files.onnx_models import model, node, read, tensor

X = {"x": [2, 4]}


def test_shape_arithmetic_leaves_no_ops(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis", "n1"),
        node("Concat", "n1 rest", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    proto = model(nodes, {"x": [2, 3, 4]}, constants={"zero": 0, "axis": [0], "rest": [-1]})
    graph = read(proto, tmp_path)
    assert [(made.op_type, graph.tensors[made.outputs[0]].shape) for made in graph.ops] == [("Reshape", (2, 12))]


def test_a_range_to_2_to_the_40_costs_nothing(tmp_path: Path) -> None:
    nodes = [node("Range", "a b c", "r"), node("ReduceSum", "r", "s", keepdims=0), node("Cast", "s", "f", to=1)]
    proto = model([*nodes, node("Add", "x f", "y")], X, constants={"a": 0, "b": 2**40, "c": 1})
    graph = read(proto, tmp_path)
    assert (tensor(graph, "f").role, [made.op_type for made in graph.ops]) == (Role.BUFFER, ["Add"])


def test_a_huge_constant_is_a_leaf_of_its_size(tmp_path: Path) -> None:
    nodes = [node("ConstantOfShape", "s", "w"), node("MatMul", "x w", "y")]
    graph = read(model(nodes, {"x": [2, 2**20]}, constants={"s": [2**20, 2**20]}), tmp_path)
    assert (tensor(graph, "w").role, tensor(graph, "w").nbytes) == (Role.PARAMETER, 2**42)


def test_values_in_external_files_are_not_opened(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], X, weights={"w": (4, 3)})
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../etc/none")
    assert tensor(read(proto, tmp_path), "w").nbytes == 48


def test_many_elements_are_gathered_while_the_file_is_read(tmp_path: Path) -> None:
    """The library's own evaluator takes at most 32; exports of BERT gather as many positions as tokens."""
    constants = {"table": [list(range(64))], "places": [list(range(63, 13, -1))]}
    nodes = [node("GatherElements", "table places", "p", axis=1), node("Gather", "p zero", "r", axis=0)]
    nodes += [node("Gather", "r last", "n", axis=0), node("Unsqueeze", "n zeros", "s"), node("Tile", "x s", "y")]
    proto = model(nodes, {"x": [2]}, constants={**constants, "zero": 0, "last": -1, "zeros": [0]})
    assert tensor(read(proto, tmp_path), "y").shape == (28,)
