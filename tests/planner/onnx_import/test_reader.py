"""model.onnx -> Graph: what is read, what is assumed, and how a contradiction is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ogc_plan.planner.errors import (
    InvalidModelError,
    UnsupportedOpError,
)
from ogc_plan.planner.graph import Role
from ogc_plan.planner.model import load_model
from ogc_plan.planner.onnx_import.reader import read_onnx
from onnx import helper

from tests.files.onnx_models import model, node, op, read, save, shape_of

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_FILES = sorted(LIGHT.glob("*.onnx"))
RELU = [node("Relu", "x", "y")]
X = {"x": [2, 4]}


@pytest.mark.parametrize("path", LIGHT_FILES, ids=lambda path: path.stem)
def test_every_activation_of_a_caffe2_model_leads_with_the_batch(path: Path) -> None:
    graph = read_onnx(path, batch=64)
    assert {t.shape[0] for t in graph.tensors if t.role is Role.ACTIVATION} == {64}


def test_resnet_has_its_25_557_032_parameters() -> None:
    graph = read_onnx(LIGHT / "light_resnet50.onnx")
    parameters = {t.storage for t in graph.tensors if t.role is Role.PARAMETER}
    assert sum(graph.storages[s].nbytes for s in parameters) == 4 * 25_557_032


def test_running_statistics_are_buffers() -> None:
    graph = read_onnx(LIGHT / "light_resnet50.onnx")
    norms = [made for made in graph.ops if made.op_type == "BatchNormalization"]
    assert {graph.tensors[made.inputs[slot] or 0].role for made in norms for slot in (3, 4)} == {Role.BUFFER}


def test_a_file_of_10000_nodes_is_read_in_seconds(tmp_path: Path) -> None:
    nodes = [node("Relu", f"v{i}" if i else "x", f"v{i + 1}") for i in range(9_999)]
    path = save(model([*nodes, node("Exp", "v9999", "y")], {"x": [2, 4]}), tmp_path)
    start = time.process_time()
    read_onnx(path)
    assert time.process_time() - start < 10


def test_nothing_of_the_planner_imports_onnx_before_a_file_is_read() -> None:
    code = "import sys, ogc_plan.planner.model; sys.exit('onnx' in sys.modules or 'networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


INVALID = {
    "an undeclared input": (model([node("Add", "x z", "y")], X), 'reads "z", which nothing makes'),
    "an output that nothing makes": (model(RELU, X, "y z"), 'nothing makes the output "z"'),
    "no outputs": (model(RELU, X, ""), "has no outputs"),
    "a value made twice": (model([*RELU, *RELU], X), 'two values have the name "y"'),
    "a node that makes an input": (model([node("Relu", "x", "x")], X, "x"), 'two values have the name "x"'),
    "a cycle": (
        model([node("Add", "x b", "a"), node("Relu", "a", "b", node_name="back")], X, "b"),
        'cycle through node "',
    ),
    "two initializers of one name": (model(RELU, X), "two initializers"),
    "too few inputs": (model([node("Add", "x", "y")], X), "has 1 input; 2 are allowed"),
    "shapes that do not broadcast": (model([node("Add", "x w", "y")], X, weights={"w": (3,)}), "ncompatible dim"),
    "a reshape that loses elements": (
        model([node("Reshape", "x s", "y", node_name="view")], X, constants={"s": [3, 2]}),
        r'node "view" \(Reshape\) turns \[2, 4\] \(8 elements\) into \[3, 2\] \(6 elements\)',
    ),
    "channels": (
        model([node("Conv", "x w", "y")], {"x": [1, 3, 8, 8]}, weights={"w": (4, 5, 3, 3)}),
        "3 channels do not fit weights",
    ),
    "an attribute of a function": (
        model([node("LeakyRelu", "x", "y", alpha=0.5)], X),
        'attribute "alpha" refers to one of a function',
    ),
    "a kernel larger than its data": (
        model([node("MaxPool", "x", "y", kernel_shape=[9, 9])], {"x": [1, 1, 4, 4]}),
        r"of shape \[1, 1, -4, -4\]",
    ),
    "an initial state of another batch": (
        model(
            [node("LSTM", "x w r _ _ h", "y", hidden_size=4)],
            {"x": [5, 8, 3]},
            weights={"w": (1, 16, 3), "r": (1, 16, 4), "h": (1, 2, 4)},
        ),
        "with an initial state of shape",
    ),
    "a tensor of more than 2^60 bytes": (
        model([node("Expand", "x s", "y")], {"x": [1, 1]}, constants={"s": [2**40, 2**40]}),
        "bytes",
    ),
}
INVALID["an attribute of a function"][0].graph.node[0].attribute[0].ref_attr_name = "slope"
INVALID["two initializers of one name"][0].graph.initializer.extend(
    [onnx.numpy_helper.from_array(np.zeros(2), "w"), onnx.numpy_helper.from_array(np.zeros(2), "w")]
)


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_graph_with(tmp_path: Path, what: str) -> None:
    proto, message = INVALID[what]
    with pytest.raises(InvalidModelError, match=message) as caught:
        read(proto, tmp_path)
    assert caught.value.remedy


def test_a_reshape_that_loses_elements_points_at_the_options(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError) as caught:
        read(INVALID["a reshape that loses elements"][0], tmp_path)
    assert "--batch" in caught.value.remedy
    assert "--shape" in caught.value.remedy


UNSUPPORTED = {
    "an unknown domain": (
        model([node("FusedMatMul", "x x", "y", domain="com.microsoft")], X),
        "is a file that ONNX Runtime has optimised",
    ),
    "an unknown op": (model([node("Frobnicate", "x", "y")], X), "is not an op of opset 21"),
    "an op newer than its opset": (model([node("Gelu", "x", "y")], X, opset=13), "is not an op of opset 13"),
    "a sequence read as a tensor": (
        model([node("SplitToSequence", "x", "s"), node("Relu", "s", "y")], X),
        'takes "s", a sequence of tensors',
    ),
    "a position that is not constant": (
        model([node("SplitToSequence", "x", "s"), node("ArgMax", "x", "i"), node("SequenceAt", "s i", "y")], X),
        'position "i" depends on data',
    ),
    "strings": (model([node("Constant", "", "s", value_string="a"), node("Identity", "s", "y")], X), "value_string"),
    "an opset of the future": (model(RELU, X, opset=999), "up to"),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_unsupported(tmp_path: Path, what: str) -> None:
    proto, message = UNSUPPORTED[what]
    with pytest.raises(UnsupportedOpError, match=message) as caught:
        read(proto, tmp_path)
    assert caught.value.remedy


def test_a_domain_imported_twice_in_two_versions(tmp_path: Path) -> None:
    proto = model(RELU, X)
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 12))
    with pytest.raises(InvalidModelError, match="imported as 21 and 12"):
        read(proto, tmp_path)


def test_an_unsorted_file_is_sorted(tmp_path: Path) -> None:
    graph = read(model([node("Tanh", "h", "y"), node("Relu", "x", "h")], X), tmp_path)
    assert [made.op_type for made in graph.ops] == ["Relu", "Tanh"]


def test_dead_nodes_are_dropped_and_counted(tmp_path: Path) -> None:
    graph = read(model([*RELU, node("Tanh", "x", "z"), node("Frobnicate", "z", "u")], X), tmp_path)
    assert ([made.op_type for made in graph.ops], graph.assumed) == (
        ["Relu"],
        ("2 nodes that reach no output are dropped",),
    )


def test_a_node_that_only_lends_its_shape_is_dropped(tmp_path: Path) -> None:
    nodes = [node("Tanh", "x", "h"), node("Shape", "h", "s"), node("Reshape", "x s", "y")]
    assert [made.op_type for made in read(model(nodes, X), tmp_path).ops] == ["Reshape"]


def test_nodes_without_a_name_of_their_own_get_one(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "a", node_name="Relu_0"),
        node("Relu", "a", "b"),
        node("Tanh", "b", "c", node_name="twin"),
        node("Tanh", "c", "y", node_name="twin"),
    ]
    names = [made.name for made in read(model(nodes, X), tmp_path).ops]
    assert names == ["Relu_0", "Relu_1", "Tanh_0", "Tanh_1"]


def test_a_dropout_stays_random_without_its_unused_mask(tmp_path: Path) -> None:
    dropout = op(read(model([node("Dropout", "x", "y mask")], X), tmp_path), "Dropout")
    assert (dropout.deterministic, len(dropout.outputs)) == (False, 1)


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_ops_are_not_deterministic(tmp_path: Path, op_type: str) -> None:
    assert not op(read(model([node(op_type, "x", "y")], X), tmp_path), op_type).deterministic


def test_inference_forms_are_assumed_to_train(tmp_path: Path) -> None:
    nodes = [node("BatchNormalization", "x a b c d", "h"), node("Dropout", "h", "y")]
    graph = read(model(nodes, X, weights=dict.fromkeys("abcd", (4,))), tmp_path)
    assert graph.assumed == (
        "1 BatchNormalization in inference form is charged as in training",
        "1 Dropout in inference form is charged as in training",
    )


def test_training_forms_need_no_assumption(tmp_path: Path) -> None:
    nodes = [
        node("BatchNormalization", "x a b c d", "h m v", training_mode=1),
        node("Dropout", "h r t", "y"),
    ]
    constants = {"r": np.float32(0.1), "t": True}
    graph = read(model(nodes, X, weights=dict.fromkeys("abcd", (4,)), constants=constants), tmp_path)
    assert graph.assumed == ()


def test_an_absent_output_before_a_used_one_is_made(tmp_path: Path) -> None:
    nodes = [node("LSTM", "x w r", "_ y", hidden_size=4)]
    graph = read(model(nodes, {"x": [5, 2, 3]}, weights={"w": (1, 16, 3), "r": (1, 16, 4)}), tmp_path)
    assert [graph.tensors[o].shape for o in op(graph, "LSTM").outputs] == [(5, 1, 2, 4), (1, 2, 4)]


SCOPES = {
    ("pkg.torch.onnx.name_scopes", "['', 'h.0', 'h.0.attn', 'add']"): "h.0.attn",
    ("pkg.torch.onnx.name_scopes", "['', 'add']"): "",
    ("pkg.torch.onnx.name_scopes", "__import__('os')"): "",
    ("pkg.torch.onnx.name_scopes", "(" * 5000): "",
    ("namespace", ": GPT/h.0: Block/h.0.attn: Attention/add: aten.add"): "h.0.attn",
}


@pytest.mark.parametrize("recorded", SCOPES)
def test_the_scope_of_a_node(tmp_path: Path, recorded: tuple[str, str]) -> None:
    proto = model(RELU, X)
    proto.graph.node[0].metadata_props.add(key=recorded[0], value=recorded[1])
    assert op(read(proto, tmp_path), "Relu").scope == SCOPES[recorded]


def test_weights_and_names_do_not_count_in_the_fingerprint(tmp_path: Path) -> None:
    first = model([node("MatMul", "x w", "y")], X, weights={"w": (4, 3)})
    second = model([node("MatMul", "x v", "y", node_name="other")], X, weights={"v": (4, 3)})
    second.graph.initializer[0].raw_data = b"\1" * 48
    assert read(first, tmp_path).fingerprint == read(second, tmp_path).fingerprint


@pytest.mark.parametrize(
    ("declared", "says"),
    [([2, 4], "[2, 4], its ops make [2, 3]"), (["n", 5], "[n, 5], its ops"), ([2], "[2], its ops"), ([2, 3], "")],
    ids=str,
)
def test_an_output_that_is_declared_otherwise_than_its_ops_make_it_is_said(
    tmp_path: Path, declared: Any, says: str
) -> None:
    proto = model([node("MatMul", "x w", "y")], {"x": [2, 4]}, weights={"w": (4, 3)})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, declared))
    assert [says in note for note in read(proto, tmp_path).assumed] == [True] * bool(says)


def test_a_shape_given_by_hand_overrides_a_declared_output(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], {"x": [2, 4]})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [2, 4]))
    assert shape_of(read(proto, tmp_path, inputs={"x": (3, 5)}), "Relu") == (3, 5)


@pytest.mark.parametrize("opset", [1, 6, 7, 13, 23])
def test_a_small_classifier_reads_at_opset(tmp_path: Path, opset: int) -> None:
    legacy = {"is_test": 0} if opset < 7 else {}
    gemm = {"broadcast": 1} if opset < 7 else {}
    nodes = [
        node("Conv", "x k", "c", kernel_shape=[3, 3]),
        node("BatchNormalization", "c s b m v", "n", **legacy),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Dropout", "p", "d", **legacy),
        node("Concat", "d d", "e", axis=1),
        node("Flatten", "e", "f"),
        node("Gemm", "f w bias", "g", **gemm),
        node("Softmax", "g", "y", axis=1),
    ]
    weights = {"k": (4, 3, 3, 3), **dict.fromkeys("sbmv", (4,)), "w": (72, 10), "bias": (10,)}
    graph = read(model(nodes, {"x": [2, 3, 8, 8]}, weights=weights, opset=opset), tmp_path)
    assert shape_of(graph, "Softmax") == (2, 10)


def test_a_file_of_views_alone_is_told_that_it_needs_no_plan(tmp_path: Path) -> None:
    path = save(model([node("Transpose", "x", "y", perm=[1, 0])], {"x": [2, 4]}), tmp_path)
    with pytest.raises(UnsupportedOpError, match=r"its outputs are views of its inputs \(Transpose\)"):
        load_model(path)


def test_running_statistics_that_are_weights_too_are_told(tmp_path: Path) -> None:
    nodes = [node("Identity", "b", "mean"), node("BatchNormalization", "x w b mean variance", "y")]
    graph = read(model(nodes, {"x": [2, 4, 3]}, weights=dict.fromkeys(("w", "b", "variance"), (4,))), tmp_path)
    assert any("1 BatchNormalization has weights as running statistics" in told for told in graph.assumed)
