"""Forms that published files have and exports of our own have not: pieced weights, dimensions called "?"."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ogc_plan.planner.errors import UnboundDimensionError
from ogc_plan.planner.graph import Graph, Role
from ogc_plan.planner.onnx_import.reader import read_onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper, save

SLICED = [
    helper.make_node("Slice", ["w", "zero", "two", "zero"], ["head"], name="head"),
    helper.make_node("Slice", ["w", "two", "four", "zero"], ["tail"], name="tail"),
    helper.make_node("Concat", ["tail", "head"], ["swapped"], name="swap", axis=0),
]
LEAVES = {
    "w": np.zeros((4, 4), np.float32),
    "half": np.zeros((4, 4), np.float16),
    "zero": np.array([0]),
    "two": np.array([2]),
    "four": np.array([4]),
}


def graph_of(folder: Path, nodes: Sequence[NodeProto], shape: Sequence[int | str] = (8, 4)) -> Graph:
    """The graph of nodes from ``x`` to ``y`` over the leaves."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    leaves = [numpy_helper.from_array(array, name) for name, array in LEAVES.items()]
    model = helper.make_model(
        helper.make_graph(list(nodes), "net", ends[:1], ends[1:], leaves), opset_imports=[helper.make_opsetid("", 17)]
    )
    save(model, folder / "net.onnx")
    return read_onnx(folder / "net.onnx")


def parameters(graph: Graph) -> set[str]:
    """The names of the parameters; a piece of one has its role, but is made by an op."""
    made = {output for op in graph.ops for output in op.outputs}
    return {t.name for i, t in enumerate(graph.tensors) if t.role is Role.PARAMETER and i not in made}


def test_a_weight_put_together_from_slices_is_a_parameter(tmp_path: Path) -> None:
    layer = helper.make_node("MatMul", ["x", "swapped"], ["y"], name="layer")
    assert parameters(graph_of(tmp_path, [*SLICED, layer])) == {"w"}


def test_a_weight_stored_in_half_precision_and_cast_is_a_parameter(tmp_path: Path) -> None:
    cast = helper.make_node("Cast", ["half"], ["full"], name="cast", to=TensorProto.FLOAT)
    layer = helper.make_node("MatMul", ["x", "full"], ["y"], name="layer")
    assert parameters(graph_of(tmp_path, [cast, layer])) == {"half"}


def test_a_computed_table_is_no_parameter(tmp_path: Path) -> None:
    table = helper.make_node("Sin", ["w"], ["table"], name="table")
    layer = helper.make_node("MatMul", ["x", "table"], ["y"], name="layer")
    assert parameters(graph_of(tmp_path, [table, layer])) == set()


def test_an_addend_put_together_from_slices_is_a_parameter_when_in_doubt(tmp_path: Path) -> None:
    crossed = helper.make_node("MatMul", ["x", "w"], ["scores"], name="crossed")
    masked = helper.make_node("Add", ["scores", "mask"], ["y"], name="masked")
    pieces = [
        helper.make_node("Slice", ["half", "zero", "two", "zero"], ["piece"], name="piece"),
        helper.make_node("Concat", ["piece"] * 4, ["rows"], name="rows", axis=0),
        helper.make_node("Cast", ["rows"], ["mask"], name="mask", to=TensorProto.FLOAT),
    ]
    assert parameters(graph_of(tmp_path, [*pieces, crossed, masked])) == {"w", "half"}


def test_a_dimension_called_with_a_question_mark_has_no_name(tmp_path: Path) -> None:
    layer = helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")
    with pytest.raises(UnboundDimensionError, match="neither a size nor a name"):
        graph_of(tmp_path, [layer], ["?", "?"])


def test_the_remedy_for_a_nameless_dimension_can_be_typed(tmp_path: Path) -> None:
    layer = helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")
    with pytest.raises(UnboundDimensionError) as caught:
        graph_of(tmp_path, [layer], ["?", "n"])
    assert "--shape x=64x64 " in caught.value.remedy


def test_the_remedy_for_symbols_binds_all_of_them_at_once(tmp_path: Path) -> None:
    layer = helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")
    with pytest.raises(UnboundDimensionError) as caught:
        graph_of(tmp_path, [layer], ["N", "sequence length"])
    assert caught.value.remedy == "pass --dim N=8 --dim 'sequence length=512'"
