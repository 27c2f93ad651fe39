"""model.onnx -> Graph: what is read, what is assumed, and how broken files are refused."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.errors import (
    InvalidModelError,
    ModelError,
    OgcPlanError,
    StorageError,
    UnboundDimensionError,
    UnsupportedOpError,
    UsageError,
)
from ogc_plan.planner.graph import Graph, Role
from ogc_plan.planner.onnx_import.reader import read_onnx
from onnx import helper

from tests.files.onnx_models import INT64, model, node, op, read, save, storage_name, tensor

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_FILES = sorted(LIGHT.glob("*.onnx"))
RELU = [node("Relu", "x", "y")]


def shape_of(graph: Graph, op_type: str) -> tuple[int, ...]:
    return graph.tensors[op(graph, op_type).outputs[0]].shape


# --- real files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LIGHT_FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("batch", [None, 64])
def test_every_activation_of_a_caffe2_model_leads_with_the_batch(path: Path, batch: int | None) -> None:
    graph = read_onnx(path, batch=batch)
    assert {t.shape[0] for t in graph.tensors if t.role is Role.ACTIVATION} == {batch or 1}


def test_the_dense_layer_of_resnet_takes_the_new_batch() -> None:
    graph = read_onnx(LIGHT / "light_resnet50.onnx", batch=64)
    data = op(graph, "Gemm").inputs[0]
    assert graph.tensors[data or 0].shape == (64, 2048)


def test_resnet_has_its_25_557_032_parameters() -> None:
    graph = read_onnx(LIGHT / "light_resnet50.onnx")
    parameters = {t.storage for t in graph.tensors if t.role is Role.PARAMETER}
    assert sum(graph.storages[s].nbytes for s in parameters) == 4 * 25_557_032


def test_running_statistics_are_buffers() -> None:
    graph = read_onnx(LIGHT / "light_resnet50.onnx")
    norms = [made for made in graph.ops if made.op_type == "BatchNormalization"]
    assert {graph.tensors[made.inputs[slot] or 0].role for made in norms for slot in (3, 4)} == {Role.BUFFER}


def test_a_file_of_1746_nodes_is_read_in_well_under_two_seconds() -> None:
    start = time.perf_counter()
    read_onnx(LIGHT / "light_densenet121.onnx", batch=64)
    assert time.perf_counter() - start < 2


def test_a_file_of_10000_nodes_is_read_in_seconds(tmp_path: Path) -> None:
    nodes = [node("Relu", f"v{i}" if i else "x", f"v{i + 1}") for i in range(9_999)]
    path = save(model([*nodes, node("Exp", "v9999", "y")], {"x": [2, 4]}), tmp_path)
    start = time.perf_counter()
    read_onnx(path)
    assert time.perf_counter() - start < 10


def test_nothing_of_the_planner_imports_onnx_before_a_file_is_read() -> None:
    code = "import sys, ogc_plan.planner.model; sys.exit('onnx' in sys.modules or 'networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- files that cannot be read ----------------------------------------------------------------------------------------


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        read_onnx(tmp_path / "none.onnx")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a folder"):
        read_onnx(tmp_path)


def test_a_name_with_a_zero_byte() -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        read_onnx("a\0b.onnx")


def test_a_device_is_not_opened() -> None:
    with pytest.raises(StorageError, match="not a regular file"):
        read_onnx("/dev/zero")


GARBAGE = {
    "empty": (b"", "empty"),
    "text": (b"hello, this is not a model\n" * 20, "not an ONNX model"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "not an ONNX model"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(range(256)), "not an ONNX model"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00", "not an ONNX model"),
    "random": (bytes(np.random.default_rng(0).integers(0, 256, 5000, np.uint8)), "not an ONNX model"),
    "a model without a graph": (onnx.ModelProto(ir_version=10).SerializeToString(), "holds no graph"),
    "a model with an empty graph": (
        helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString(),
        "holds no graph",
    ),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_file_that_is_no_model(tmp_path: Path, kind: str) -> None:
    content, message = GARBAGE[kind]
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(InvalidModelError, match=message):
        read_onnx(tmp_path / "model.onnx")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    content = LIGHT_FILES[-1].read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InvalidModelError):
        read_onnx(tmp_path / "model.onnx")


def test_a_damaged_file_gives_one_line_or_a_graph(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    content = np.frombuffer((LIGHT / "light_squeezenet.onnx").read_bytes(), np.uint8)
    path, lines = tmp_path / "model.onnx", []
    for _ in range(300):
        damaged = content.copy()
        damaged[generator.integers(0, len(content), 3)] = generator.integers(0, 256, 3)
        path.write_bytes(damaged.tobytes())
        try:
            read_onnx(path)
        except OgcPlanError as error:
            lines.append(str(error))
    assert lines
    assert not any("\n" in line for line in lines)


# --- graphs that contradict themselves --------------------------------------------------------------------------------

X = {"x": [2, 4]}
INVALID = {
    "an undeclared input": (model([node("Add", "x z", "y")], X), 'reads "z", which nothing makes'),
    "an output that nothing makes": (model(RELU, X, "y z"), 'nothing makes the output "z"'),
    "no outputs": (model(RELU, X, ""), "has no outputs"),
    "a value made twice": (model([*RELU, *RELU], X), '"y" is made twice'),
    "a node that makes an input": (model([node("Relu", "x", "x")], X, "x"), '"x" is made twice'),
    "a cycle": (
        model([node("Add", "x b", "a"), node("Relu", "a", "b", node_name="back")], X, "b"),
        'cycle through node "',
    ),
    "two initializers of one name": (model(RELU, X), "two initializers"),
    "two inputs of one name": (model(RELU, X), 'two inputs "x"'),
    "too few inputs": (model([node("Add", "x", "y")], X), "has 1 inputs; 2 to 2"),
    "shapes that do not broadcast": (model([node("Add", "x w", "y")], X, weights={"w": (3,)}), "ncompatible dim"),
    "a reshape that loses elements": (
        model([node("Reshape", "x s", "y", node_name="view")], X, constants={"s": [3, 2]}),
        r'node "view" \(Reshape\) turns \[2, 4\] \(8 elements\) into \[3, 2\] \(6 elements\)',
    ),
    "channels": (
        model([node("Conv", "x w", "y")], {"x": [1, 3, 8, 8]}, weights={"w": (4, 5, 3, 3)}),
        "3 channels do not fit weights",
    ),
    "a kernel larger than its data": (
        model([node("MaxPool", "x", "y", kernel_shape=[9, 9])], {"x": [1, 1, 4, 4]}),
        r"of shape \[1, 1, -4, -4\]",
    ),
    "a scale of another size": (
        model([node("LayerNormalization", "x w", "y")], X, weights={"w": (5,)}),
        "with a scale of shape",
    ),
    "an initial state of another batch": (
        model(
            [node("LSTM", "x w r _ _ h", "y", hidden_size=4)],
            {"x": [5, 8, 3]},
            weights={"w": (1, 16, 3), "r": (1, 16, 4), "h": (1, 2, 4)},
        ),
        "with an initial state of shape",
    ),
    "an index of two sizes": (
        model([node("Einsum", "x w", "y", equation="ij,jk->ik")], X, weights={"w": (5, 6)}),
        "index j of both 4 and 5",
    ),
    "a tensor of more than 2^60 bytes": (
        model([node("Expand", "x s", "y")], {"x": [1, 1]}, constants={"s": [2**40, 2**40]}),
        "bytes",
    ),
    "a part that does not exist": (
        model([node("SplitToSequence", "x", "s"), node("SequenceAt", "s i", "y")], X, constants={"i": 9}),
        "reads part 9 of 2",
    ),
}
INVALID["two initializers of one name"][0].graph.initializer.extend(
    [onnx.numpy_helper.from_array(np.zeros(2), "w"), onnx.numpy_helper.from_array(np.zeros(2), "w")]
)
INVALID["two inputs of one name"][0].graph.input.append(INVALID["two inputs of one name"][0].graph.input[0])


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_graph_with(tmp_path: Path, what: str) -> None:
    proto, message = INVALID[what]
    with pytest.raises(InvalidModelError, match=message):
        read(proto, tmp_path)


def test_a_reshape_that_loses_elements_points_at_the_options(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError) as caught:
        read(INVALID["a reshape that loses elements"][0], tmp_path)
    assert "--batch" in caught.value.remedy
    assert "--shape" in caught.value.remedy


UNSUPPORTED = {
    "an unknown domain": (
        model([node("FusedMatMul", "x x", "y", domain="com.microsoft")], X),
        'domain "com.microsoft"',
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
    "a shape that depends on data": (
        model([node("NonZero", "x", "i", node_name="find"), node("Cast", "i", "y", to=1)], X),
        r'node "find" \(NonZero\): the shape of its output "i" depends on data',
    ),
    "strings": (model([node("Constant", "", "s", value_string="a"), node("Identity", "s", "y")], X), "value_string"),
    "an opset of the future": (model(RELU, X, opset=999), "up to"),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_unsupported(tmp_path: Path, what: str) -> None:
    proto, message = UNSUPPORTED[what]
    with pytest.raises(UnsupportedOpError, match=message):
        read(proto, tmp_path)


def test_a_domain_imported_twice_in_two_versions(tmp_path: Path) -> None:
    proto = model(RELU, X)
    proto.opset_import.append(helper.make_opsetid("ai.onnx", 12))
    with pytest.raises(InvalidModelError, match="imported as 21 and 12"):
        read(proto, tmp_path)


# --- functions of the file --------------------------------------------------------------------------------------------


def function(name: str, calls: list[onnx.NodeProto]) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["d"], calls, imports)


def test_functions_are_inlined(tmp_path: Path) -> None:
    twice = function("twice", [node("Relu", "a", "b"), node("Tanh", "b", "d")])
    graph = read(model([node("twice", "x", "y", domain="own")], X, functions=[twice]), tmp_path)
    assert [made.op_type for made in graph.ops] == ["Relu", "Tanh"]


def test_a_function_bomb_is_refused_at_once(tmp_path: Path) -> None:
    levels = [function("f0", [node("Relu", "a", "b"), node("Relu", "b", "d")])]
    for k in range(1, 26):
        calls = [node(f"f{k - 1}", "a", "b", domain="own"), node(f"f{k - 1}", "b", "d", domain="own")]
        levels.append(function(f"f{k}", calls))
    start = time.perf_counter()
    with pytest.raises(UnsupportedOpError, match="expand to 67108864 nodes"):
        read(model([node("f25", "x", "y", domain="own")], X, functions=levels), tmp_path)
    assert time.perf_counter() - start < 1


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    endless = function("again", [node("again", "a", "d", domain="own")])
    with pytest.raises(InvalidModelError, match="calls itself"):
        read(model([node("again", "x", "y", domain="own")], X, functions=[endless]), tmp_path)


# --- dimensions -------------------------------------------------------------------------------------------------------

TOKENS = model(
    [node("Gather", "w tokens", "h"), node("MatMul", "h v", "y")],
    {"tokens": ["batch", "seq"]},
    weights={"w": (50, 8), "v": (8, 3)},
    input_type=INT64,
)


def test_an_unbound_dimension_names_itself_its_input_and_the_option(tmp_path: Path) -> None:
    with pytest.raises(UnboundDimensionError) as caught:
        read(TOKENS, tmp_path, dims={"batch": 2})
    assert caught.value.message == 'dimension "seq" of input "tokens" is not bound'
    assert caught.value.remedy == "pass --dim seq=512"


def test_bound_dimensions_reach_the_outputs(tmp_path: Path) -> None:
    assert shape_of(read(TOKENS, tmp_path, dims={"batch": 2, "seq": 7}), "MatMul") == (2, 7, 3)


def test_bound_dimensions_are_recorded_and_assumed(tmp_path: Path) -> None:
    graph = read(TOKENS, tmp_path, dims={"seq": 7, "batch": 2})
    assert graph.dims == (("batch", 2), ("seq", 7))
    assert 'dimension "batch" is bound to 2' in graph.assumed


def test_the_batch_option_binds_a_symbolic_batch(tmp_path: Path) -> None:
    assert shape_of(read(TOKENS, tmp_path, batch=4, dims={"seq": 7}), "MatMul") == (4, 7, 3)


def test_a_whole_shape_binds_the_symbols_it_covers(tmp_path: Path) -> None:
    graph = read(TOKENS, tmp_path, inputs={"tokens": (4, 9)})
    assert graph.dims == (("batch", 4), ("seq", 9))


BAD_OPTIONS = {
    "an unknown dimension": ({"dims": {"sequence": 3}}, 'no dimension "sequence"'),
    "an unknown input": ({"inputs": {"token": (1, 2)}}, 'no input "token"'),
    "another rank": ({"inputs": {"tokens": (1, 2, 3)}}, "has 2 dimensions"),
    "zero": ({"dims": {"seq": 0}}, "is 0"),
    "a negative batch": ({"batch": -1}, "the batch is -1"),
    "two values for one dimension": ({"batch": 3, "dims": {"batch": 2, "seq": 1}}, "but it is bound to 2"),
    "a shape and a dimension that disagree": ({"inputs": {"tokens": (1, 2)}, "dims": {"seq": 3}}, "bound to 3"),
    "a shape and a batch that disagree": ({"inputs": {"tokens": (1, 2)}, "batch": 3}, "contradicts"),
}


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_an_option_with(tmp_path: Path, what: str) -> None:
    options, message = BAD_OPTIONS[what]
    with pytest.raises(UsageError, match=message):
        read(TOKENS, tmp_path, **options)


def test_an_unknown_dimension_lists_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(TOKENS, tmp_path, dims={"sequence": 3})
    assert caught.value.remedy == 'its symbolic dimensions are "batch", "seq"'


@pytest.mark.parametrize("unknown", [None, 0, -1])
def test_a_dimension_without_a_name_asks_for_the_whole_shape(tmp_path: Path, unknown: int | None) -> None:
    with pytest.raises(UnboundDimensionError) as caught:
        read(model(RELU, {"x": [unknown, 3, 224]}), tmp_path)
    assert "--shape x=64x3x224" in caught.value.remedy


def test_the_batch_option_fills_a_leading_dimension_without_a_name(tmp_path: Path) -> None:
    assert shape_of(read(model(RELU, {"x": [None, 3]}), tmp_path, batch=8), "Relu") == (8, 3)


def test_an_input_without_a_shape_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(UnboundDimensionError, match='input "x" has no shape'):
        read(model(RELU, {"x": None}), tmp_path)


def test_initializers_listed_as_inputs_are_not_inputs(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], X, weights={"w": (4, 3)})
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, ["unbound", 3]))
    graph = read(proto, tmp_path)
    assert [graph.tensors[i].name for i in graph.inputs] == ["x"]


# --- a new batch in a file of fixed batch -----------------------------------------------------------------------------


def rebatched(tmp_path: Path, shape: list[int], nodes: list[onnx.NodeProto], batch: int, **constants: object) -> Graph:
    return read(model(nodes, {"x": shape}, constants=constants), tmp_path, batch=batch)


def test_a_reshape_of_an_activation_takes_the_new_batch(tmp_path: Path) -> None:
    graph = rebatched(tmp_path, [2, 3, 4], [node("Reshape", "x s", "y")], 8, s=[2, 12])
    assert shape_of(graph, "Reshape") == (8, 12)


def test_a_batch_folded_into_the_leading_dimension_grows(tmp_path: Path) -> None:
    nodes = [node("Reshape", "x s", "h"), node("Relu", "h", "y")]
    assert shape_of(rebatched(tmp_path, [2, 3, 4], nodes, 8, s=[6, 4]), "Relu") == (24, 4)


def test_the_change_of_a_target_is_assumed(tmp_path: Path) -> None:
    graph = rebatched(tmp_path, [2, 3, 4], [node("Reshape", "x s", "y")], 8, s=[2, 12])
    assert graph.assumed == (
        "1 constant Reshape or Expand targets are changed from batch 2 to 8, e.g. [2, 12] to [8, 12]",
    )


def test_a_reshape_of_a_weight_keeps_its_target(tmp_path: Path) -> None:
    nodes = [node("Reshape", "w s", "v"), node("MatMul", "x v", "y")]
    proto = model(nodes, {"x": [2, 2]}, weights={"w": (6,)}, constants={"s": [2, 3]})
    assert tensor(read(proto, tmp_path, batch=8), "v").shape == (2, 3)


def test_an_expand_of_an_activation_takes_the_new_batch(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", "x a", "h", keepdims=0), node("Expand", "h s", "e"), node("Add", "e x", "y")]
    assert shape_of(rebatched(tmp_path, [2, 3, 4], nodes, 8, a=[0], s=[2, 3, 4]), "Expand") == (8, 3, 4)


def test_a_target_computed_from_shapes_is_left_alone(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s", end=1),
        node("Concat", "s rest", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    assert rebatched(tmp_path, [2, 3, 4], nodes, 3, rest=[-1]).assumed == ()


def test_a_target_that_cannot_take_the_new_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"into \[3, 2, 4\]"):
        rebatched(tmp_path, [2, 3, 4], [node("Reshape", "x s", "y")], 8, s=[3, 2, 4])


def test_a_whole_shape_changes_the_batch_too(tmp_path: Path) -> None:
    proto = model([node("Reshape", "x s", "y")], {"x": [2, 3, 4]}, constants={"s": [2, 12]})
    assert shape_of(read(proto, tmp_path, inputs={"x": (8, 3, 4)}), "Reshape") == (8, 12)


def test_a_reshape_of_opset_1_takes_the_new_batch(tmp_path: Path) -> None:
    proto = model([node("Reshape", "x", "y", shape=[2, -1])], {"x": [2, 3, 4]}, opset=1)
    assert shape_of(read(proto, tmp_path, batch=8), "Reshape") == (8, 12)


def test_every_input_that_leads_with_the_old_batch_changes(tmp_path: Path) -> None:
    proto = model([node("Add", "x m", "h"), node("Mul", "h q", "y")], {"q": [4], "x": [2, 4], "m": [2, 1]})
    graph = read(proto, tmp_path, batch=8)
    assert [graph.tensors[i].shape for i in graph.inputs] == [(4,), (8, 4), (8, 1)]


# --- shape arithmetic -------------------------------------------------------------------------------------------------


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


def test_arithmetic_that_fails_is_named(tmp_path: Path) -> None:
    nodes = [node("Gather", "s far", "n", node_name="pick"), node("Expand", "x n", "y")]
    with pytest.raises(InvalidModelError, match='node "pick"'):
        read(model(nodes, X, constants={"s": [1, 2], "far": [7, 7]}), tmp_path)


def test_values_in_external_files_are_not_opened(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], X, weights={"w": (4, 3)})
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../etc/none")
    assert tensor(read(proto, tmp_path), "w").nbytes == 48


# --- roles ------------------------------------------------------------------------------------------------------------

ROLES = {
    "a matrix": ([node("MatMul", "x w", "y")], {"w": (4, 3)}, Role.PARAMETER),
    "a factor": ([node("Mul", "x w", "y")], {"w": (4,)}, Role.PARAMETER),
    "a scalar factor": ([node("Mul", "x w", "y")], {"w": ()}, Role.BUFFER),
    "a subtrahend": ([node("Sub", "x w", "y")], {"w": (4,)}, Role.BUFFER),
    "a slope": ([node("PRelu", "x w", "y")], {"w": (4,)}, Role.PARAMETER),
    "a clip bound": ([node("Clip", "x w", "y")], {"w": ()}, Role.BUFFER),
    "a matrix behind views": (
        [node("Transpose", "w", "a"), node("Unsqueeze", "a zero", "b"), node("MatMul", "x b", "y")],
        {"w": (3, 4)},
        Role.PARAMETER,
    ),
    "a matrix behind a cast": (
        [node("Cast", "w", "a", to=11), node("Cast", "a", "b", to=1), node("Mul", "w x", "c"), node("Add", "b c", "y")],
        {"w": (2, 4)},
        Role.PARAMETER,
    ),
}


@pytest.mark.parametrize("what", ROLES)
def test_the_role_of(tmp_path: Path, what: str) -> None:
    nodes, weights, role = ROLES[what]
    graph = read(model(nodes, X, weights=weights, constants={"zero": [0]}), tmp_path)
    owners = [t for t in graph.tensors if graph.storages[t.storage].name == "w"]
    assert {t.role for t in owners} == {role}


def test_ops_on_parameters_alone_stay_and_make_activations(tmp_path: Path) -> None:
    nodes = [node("Mul", "w two", "a"), node("MatMul", "x a", "y")]
    graph = read(model(nodes, X, weights={"w": (4, 3)}, constants={"two": np.float32(2)}), tmp_path)
    assert tensor(graph, "a").role is Role.ACTIVATION


def test_ops_on_buffers_alone_vanish(tmp_path: Path) -> None:
    nodes = [node("Sqrt", "w", "a"), node("Div", "x a", "y")]
    graph = read(model(nodes, X, weights={"w": (4,)}), tmp_path)
    assert ([made.op_type for made in graph.ops], tensor(graph, "a").role) == (["Div"], Role.BUFFER)


def test_what_the_exporter_recorded_beats_the_rules(tmp_path: Path) -> None:
    proto = model([node("Mul", "x w", "h"), node("Sub", "h v", "y")], X, weights={"w": (4,), "v": (4,)})
    for name, kind in (("w", "BUFFER"), ("v", "PARAMETER")):
        entry = proto.graph.value_info.add(name=name)
        entry.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value=kind)
    graph = read(proto, tmp_path)
    assert (tensor(graph, "w").role, tensor(graph, "v").role) == (Role.BUFFER, Role.PARAMETER)


# --- ops --------------------------------------------------------------------------------------------------------------


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


def test_a_mask_that_is_read_stays(tmp_path: Path) -> None:
    nodes = [node("Dropout", "x", "h mask"), node("Cast", "mask", "m", to=1), node("Add", "h m", "y")]
    assert len(op(read(model(nodes, X), tmp_path), "Dropout").outputs) == 2


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_ops_are_not_deterministic(tmp_path: Path, op_type: str) -> None:
    assert not op(read(model([node(op_type, "x", "y")], X), tmp_path), op_type).deterministic


def test_inference_forms_are_assumed_to_train(tmp_path: Path) -> None:
    nodes = [node("BatchNormalization", "x a b c d", "h"), node("Dropout", "h", "y")]
    graph = read(model(nodes, X, weights=dict.fromkeys("abcd", (4,))), tmp_path)
    assert graph.assumed == (
        "1 BatchNormalization in inference form are charged as in training",
        "1 Dropout in inference form are charged as in training",
    )


def test_training_forms_need_no_assumption(tmp_path: Path) -> None:
    nodes = [
        node("BatchNormalization", "x a b c d", "h m v", training_mode=1),
        node("Dropout", "h r t", "y"),
    ]
    constants = {"r": np.float32(0.1), "t": True}
    graph = read(model(nodes, X, weights=dict.fromkeys("abcd", (4,)), constants=constants), tmp_path)
    assert graph.assumed == ()


def test_a_batch_normalization_keeps_only_the_output_that_is_read(tmp_path: Path) -> None:
    nodes = [node("BatchNormalization", "x a b c d", "y m v", training_mode=1)]
    graph = read(model(nodes, X, weights=dict.fromkeys("abcd", (4,))), tmp_path)
    assert len(op(graph, "BatchNormalization").outputs) == 1


def test_an_absent_output_before_a_used_one_is_made(tmp_path: Path) -> None:
    nodes = [node("LSTM", "x w r", "_ y", hidden_size=4)]
    graph = read(model(nodes, {"x": [5, 2, 3]}, weights={"w": (1, 16, 3), "r": (1, 16, 4)}), tmp_path)
    assert [graph.tensors[o].shape for o in op(graph, "LSTM").outputs] == [(5, 1, 2, 4), (1, 2, 4)]


def test_attributes_are_plain_values(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "y", pads=[1, 1, 1, 1], auto_pad="NOTSET")]
    conv = op(read(model(nodes, {"x": [1, 3, 8, 8]}, weights={"w": (4, 3, 3, 3)}), tmp_path), "Conv")
    assert conv.attributes == (("auto_pad", "NOTSET"), ("pads", (1, 1, 1, 1)))


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


@pytest.mark.parametrize("opset", [1, 6, 7, 9, 11, 13, 18, 21, 23])
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


@pytest.mark.parametrize("what", [*INVALID, *UNSUPPORTED])
def test_a_model_error_says_what_to_do(tmp_path: Path, what: str) -> None:
    proto, _ = {**INVALID, **UNSUPPORTED}[what]
    with pytest.raises(ModelError) as caught:
        read(proto, tmp_path)
    assert caught.value.remedy


def test_a_storage_is_named_after_its_first_tensor(tmp_path: Path) -> None:
    graph = read(model([node("Relu", "x", "h"), node("Flatten", "h", "y")], {"x": [2, 3, 4]}), tmp_path)
    assert storage_name(graph, "y") == "h"


def test_saving_and_reading_twice_gives_the_same_graph(tmp_path: Path) -> None:
    path = save(TOKENS, tmp_path)
    dims = {"batch": 2, "seq": 3}
    assert read_onnx(path, dims=dims) == read_onnx(path, dims=dims)
