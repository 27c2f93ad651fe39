"""The nodes, views and constants of a plan, run twice with nothing kept between, make what the whole file makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ogc_plan.planner.model import load_model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.plan_file.writer import to_json
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.conformance.numpy_executor import constant, key

Array = np.ndarray[Any, Any]
ROWS, WIDTH = 4, 6


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def gelu_as_five_nodes() -> list[NodeProto]:
    nodes = [node("Div", "m root", "a"), node("Erf", "a", "b"), node("Add", "b one", "c"), node("Mul", "m c", "d")]
    return [*nodes, node("Mul", "d half", "y")]


def views_of_views() -> list[NodeProto]:
    nodes = [node("Transpose", "m", "a"), node("Reshape", "a flat", "b"), node("Split", "b", "c d", num_outputs=2)]
    return [*nodes, node("Relu", "c", "e"), node("Mul", "e d", "y")]


def shape_of_an_activation() -> list[NodeProto]:
    nodes = [node("Shape", "m", "s"), node("Gather", "s zero", "n"), node("Unsqueeze", "n axes", "k")]
    nodes += [node("Concat", "k minus", "t", axis=0), node("Relu", "m", "r"), node("Reshape", "r t", "y")]
    return nodes


def a_sequence() -> list[NodeProto]:
    nodes = [node("SplitToSequence", "m three", "q", axis=1), node("SequenceAt", "q zero", "a")]
    nodes += [node("SequenceAt", "q last", "b"), node("Mul", "a b", "y")]
    return nodes


FILES: list[Callable[[], list[NodeProto]]] = [gelu_as_five_nodes, views_of_views, shape_of_an_activation, a_sequence]
CONSTANTS = {
    "w": np.random.default_rng(0).normal(size=(WIDTH, WIDTH)).astype(np.float32),
    "root": np.float32(1.4142135), "one": np.float32(1), "half": np.float32(0.5), "flat": np.array([ROWS * WIDTH]),
    "zero": np.array(0), "last": np.array(-1), "axes": np.array([0]), "minus": np.array([-1]), "three": np.array(3),
}  # fmt: skip


def written(path: Path, nodes: list[NodeProto]) -> onnx.ModelProto:
    """A file with a product before the nodes, and the constants that they read."""
    read = {name for one in nodes for name in one.input} | {"w"}
    graph = helper.make_graph(
        [node("MatMul", "x w", "m"), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (ROWS, WIDTH))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items() if name in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return model


def made_by_nodes(path: Path, model: onnx.ModelProto, x: Array) -> Array:
    """``y`` by the plan of a file: its second computation, from storages that were all freed."""
    document = json.loads(json.dumps(to_json(plan(load_model(path), "100%", strategy="keep-all"))))
    execution, nodes = document["execution"], model.graph.node
    fixed = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | {"x": x}
    fixed |= {entry["name"]: constant(entry, fixed.get(entry["name"])) for entry in execution["constants"]}

    def run(place: Any, values: dict[str, Any]) -> None:
        one = nodes[key(place)[0]]
        infos = [[helper.make_empty_tensor_value_info(name) for name in names] for names in (one.input, one.output)]
        alone = helper.make_model(helper.make_graph([one], "n", *infos), opset_imports=model.opset_import)
        results = ReferenceEvaluator(alone).run(None, {name: values[name] for name in one.input})
        values.update(zip(one.output, results, strict=True))

    for place in execution["prepare"]:
        run(place, fixed)
    for _ in range(2):
        values = dict(fixed)
        for op, form in zip(document["ops"], execution["ops"], strict=True):
            for place in form["nodes"] if op["writes"] else ():
                run(place, values)
            for storage, more in zip(document["storages"], execution["storages"], strict=True):
                for place in more.get("views", ()) if storage["name"] in op["writes"] else ():
                    run(place, values)
    result: Array = values["y"]
    return result


@pytest.mark.parametrize("nodes", FILES, ids=lambda nodes: nodes.__name__)
def test_the_result_is_that_of_the_whole_file(nodes: Callable[[], list[NodeProto]], tmp_path: Path) -> None:
    model = written(tmp_path / "m.onnx", nodes())
    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.array_equal(made_by_nodes(tmp_path / "m.onnx", model, x), wanted)


def test_the_five_nodes_of_a_gelu_are_one_op(tmp_path: Path) -> None:
    written(tmp_path / "m.onnx", gelu_as_five_nodes())
    execution = load_model(tmp_path / "m.onnx").training.execution
    assert execution is not None
    assert [op.nodes for op in execution.ops] == [((0,),), tuple((at,) for at in range(1, 6))]
