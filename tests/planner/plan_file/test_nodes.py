"""What a plan says of the nodes of its file suffices to run them: every name that a node reads is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ogc_plan.planner.errors import PlanFormatError, PlanMismatchError
from ogc_plan.planner.graph import Execution, NodePath
from ogc_plan.planner.model import Model, load_model
from ogc_plan.planner.pipeline import plan, verify
from ogc_plan.planner.plan_file.reader import loads
from ogc_plan.planner.plan_file.writer import to_json
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.files.annotated_files import residual_network
from tests.files.onnx_files import RESNET50, write_perceptron
from tests.files.plan_schemas import errors_of_schema

LIGHT = RESNET50.parent
TYPE_ALONE = {("CastLike", 1), ("Shape", 0), ("Size", 0)}


def execution_of(model: Model) -> Execution:
    assert model.training.execution is not None
    return model.training.execution


def at(model: ModelProto, place: NodePath) -> NodeProto:
    node, inner = model.graph.node[int(place[0])], place[1:]
    functions = {f"{function.domain}::{function.name}": function for function in model.functions}
    while inner:
        name, index = str(inner[0]), int(inner[1])
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        node, inner = (functions.get(name) or branches[name]).node[index], inner[2:]
    return node


def missing(path: Path, model: Model) -> Iterator[str]:
    """Names that the nodes of a step read before anything makes them; functions' names are not looked at."""
    file, execution, training = onnx.load(path, load_external_data=False), execution_of(model), model.training
    have = {"", *(entry.name for entry in (*file.graph.initializer, *file.graph.input, *execution.constants))}
    have.update(name for node in file.graph.node if node.op_type == "Constant" for name in node.output)
    given = {(entry.node, entry.input) for entry in execution.replaced}

    def run(place: NodePath) -> Iterator[str]:
        node = at(file, place)
        for position, name in enumerate(node.input):
            if name not in have and (place, position) not in given and (node.op_type, position) not in TYPE_ALONE:
                yield f"{node.op_type} {place} reads {name}"
        have.update(node.output)

    for place in execution.prepare:
        yield from run(place)
    for op, nodes in zip(training.ops, execution.ops, strict=True):
        for place in nodes.nodes if op.writes else ():
            yield from run(place)
        for storage in op.writes:
            for place in execution.storages[storage].views:
                yield from run(place)
    yield from (f"output {output.name}" for output in file.graph.output if output.name not in have)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("name", ["resnet50", "inception_v2", "shufflenet"])
def test_every_node_finds_what_it_reads(name: str, batch: int | None) -> None:
    path = LIGHT / f"light_{name}.onnx"
    assert list(missing(path, load_model(path, batch=batch))) == []


def branching(path: Path, nodes: list[NodeProto], **more: Any) -> Path:
    """A file of a product, and whatever ``nodes`` make ``y`` of its result ``m``."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 6))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    constants = {"w": np.zeros((6, 6), np.float32), "yes": np.array(True), "two": np.array([3, 3])}
    first = helper.make_node("MatMul", ["x", "w"], ["m"], name="product")
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([first, *nodes], "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9, **more), path)
    return path


def relu(source: str, result: str) -> NodeProto:
    return helper.make_node("Relu", [source], [result])


def branch(nodes: list[NodeProto], output: str) -> Any:
    return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


def test_a_node_in_a_branch_has_the_branch_in_its_place(tmp_path: Path) -> None:
    branches = {"then_branch": branch([relu("m", "r")], "r"), "else_branch": branch([], "m")}
    path = branching(tmp_path / "m.onnx", [helper.make_node("If", ["yes"], ["y"], **branches)])
    assert execution_of(load_model(path)).ops[1].nodes == ((1, "then_branch", 0),)


def test_what_a_branch_passes_on_is_a_view_by_the_if(tmp_path: Path) -> None:
    branches = {"then_branch": branch([], "m"), "else_branch": branch([relu("m", "r")], "r")}
    path = branching(tmp_path / "m.onnx", [helper.make_node("If", ["yes"], ["y"], **branches)])
    assert execution_of(load_model(path)).storages[0].views == ((1,),)


def test_a_node_in_a_function_in_a_function_has_both_in_its_place(tmp_path: Path) -> None:
    opset = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    inner = helper.make_function("local", "Inner", ["a"], ["b"], [relu("a", "b")], opset)
    call = helper.make_node("Inner", ["h"], ["b"], domain="local")
    outer = helper.make_function("local", "Outer", ["a"], ["b"], [relu("a", "h"), call], opset)
    node = helper.make_node("Outer", ["m"], ["y"], domain="local")
    path = branching(tmp_path / "m.onnx", [node], functions=[inner, outer])
    places = [op.nodes for op in execution_of(load_model(path)).ops[1:]]
    assert places == [((1, "local::Outer", 0),), ((1, "local::Outer", 1, "local::Inner", 0),)]


def test_a_tensor_taken_from_a_split_sequence_is_a_view_by_both_nodes(tmp_path: Path) -> None:
    split = helper.make_node("SplitToSequence", ["m", "two"], ["s"], axis=1)
    first = [
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("SequenceAt", ["s", "zero"], ["p"]),
    ]
    path = branching(tmp_path / "m.onnx", [split, *first, relu("p", "y")])
    assert list(missing(path, load_model(path))) == []


def test_views_of_a_parameter_are_prepared_in_their_order(tmp_path: Path) -> None:
    turned = helper.make_node("Transpose", ["w"], ["t"])
    again = helper.make_node("Transpose", ["t"], ["u"])
    path = branching(tmp_path / "m.onnx", [turned, again, helper.make_node("MatMul", ["m", "u"], ["y"])])
    assert execution_of(load_model(path)).prepare == ((1,), (2,))


def test_the_gradient_of_a_turned_parameter_belongs_to_the_parameter(tmp_path: Path) -> None:
    turned = helper.make_node("Transpose", ["w"], ["t"])
    model = load_model(branching(tmp_path / "m.onnx", [turned, helper.make_node("MatMul", ["m", "t"], ["y"])]))
    assert [gradient.tensor for gradient in model.training.gradients if gradient.parameter] == ["w"]


def test_the_shape_of_an_activation_is_given(tmp_path: Path) -> None:
    shape = helper.make_node("Shape", ["m"], ["s"])
    path = branching(tmp_path / "m.onnx", [shape, relu("m", "r"), helper.make_node("Reshape", ["r", "s"], ["y"])])
    found = [(entry.name, entry.data) for entry in execution_of(load_model(path)).constants]
    assert found == [("s", (4, 6))]


def test_a_reshape_at_another_batch_is_given_and_its_shape_not_read(tmp_path: Path) -> None:
    flat, shapes = helper.make_node("Reshape", ["m", "sizes"], ["v"]), {"value_ints": [8, 3]}
    sizes = helper.make_node("Constant", [], ["sizes"], **shapes)
    model = load_model(branching(tmp_path / "m.onnx", [sizes, flat, relu("v", "y")]), batch=8)
    assert [(entry.node, entry.input, entry.data) for entry in execution_of(model).replaced] == [((2,), 1, (16, 3))]


def test_an_inserted_cast_stands_for_no_node(tmp_path: Path) -> None:
    mask = [helper.make_node("Cast", ["m"], ["b"], to=TensorProto.BOOL), helper.make_node("Mul", ["b", "m"], ["y"])]
    model = load_model(branching(tmp_path / "m.onnx", mask))
    nodes = {op.op_type: form.nodes for op, form in zip(model.training.ops, execution_of(model).ops, strict=True)}
    assert (nodes["Cast"], nodes["Mul"]) == ((), ((2,),))


def test_hidden_buffers_have_a_form(tmp_path: Path) -> None:
    model = load_model(write_perceptron(tmp_path / "m.onnx", layers=1), dims={"batch": 5})
    masks = [form for form in execution_of(model).storages if form.hidden]
    assert [(form.hidden, form.shape, form.dtype) for form in masks] == [("mask", (5, 32), "bool")]


def test_the_form_of_every_storage_has_its_bytes() -> None:
    model = load_model(LIGHT / "light_densenet121.onnx", batch=2)
    sizes = {"float32": 4, "int64": 8, "bool": 1, "uint8": 1}
    forms = [int(np.prod(form.shape)) * sizes[form.dtype] for form in execution_of(model).storages]
    assert forms == [storage.nbytes for storage in model.training.storages]


def test_the_nodes_of_an_annotated_file_are_those_that_record_an_op() -> None:
    from ogc_plan.planner.plan_file.nodes import recorded_nodes

    assert [op.nodes for op in recorded_nodes(["", "b", "a", "b"], ["a", "b", "c"]).ops] == [((2,),), ((1,), (3,)), ()]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return to_json(plan(load_model(LIGHT / "light_shufflenet.onnx", batch=2), "100%", strategy="keep-all"))


def test_the_schema_accepts_it(document: dict[str, Any]) -> None:
    assert errors_of_schema(json.loads(json.dumps(document))) == []


def test_it_is_read_back_as_written(document: dict[str, Any]) -> None:
    assert to_json(loads(json.dumps(document).encode(), "p")) == document


def test_a_plan_without_a_file_is_of_version_1() -> None:
    from ogc_plan.planner.model import from_annotation

    made = to_json(plan(from_annotation(residual_network(), name="n"), "100%", strategy="keep-all"))
    assert (made["version"], "execution" in made) == (1, False)


def test_a_plan_that_ties_its_ops_to_other_nodes_is_refused() -> None:
    model = load_model(RESNET50, batch=2)
    made = plan(model, "100%", strategy="keep-all")
    execution = execution_of(model)
    other = replace(execution, ops=(execution.ops[1], *execution.ops[1:]))
    with pytest.raises(PlanMismatchError, match="other nodes"):
        verify(replace(made, graph=replace(made.graph, execution=other)), model)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("ops", [], "key 'ops' has 0 entries"),
        ("storages", [{"shape": [1], "dtype": "float32"}], "key 'storages' has 1 entries"),
        ("gradients", ["a"], "key 'gradients' has 1 entries"),
        ("prepare", ["first"], "impossible node"),
        ("prepare", [[1, "f"]], "impossible node"),
        ("constants", [{"name": "c", "dtype": "float31", "shape": [1], "data": [0]}], "unknown type 'float31'"),
        ("constants", [{"name": "c", "dtype": "int64", "shape": [-1], "data": [0]}], "list of integers in 'shape'"),
        ("constants", [{"name": "c", "dtype": "int64", "shape": [1], "data": ["0"]}], "list of numbers"),
        ("replaced", [{"node": 0, "input": None, "data": []}], "impossible 'input'"),
        ("replaced", [{"node": 0, "input": 1, "data": [], "more": 1}], "key 'more' is unknown"),
        ("more", [], "key 'more' is unknown"),
    ],
)
def test_a_damaged_entry_is_named(document: dict[str, Any], key: str, value: Any, says: str) -> None:
    changed = {**document, "execution": {**document["execution"], key: value}}
    with pytest.raises(PlanFormatError, match=says):
        loads(json.dumps(changed).encode(), "p")
