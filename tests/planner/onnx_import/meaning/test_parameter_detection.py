"""Which constants are parameters: weights of layers, also pieced together, but no masks, tables or numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.graph import Role

from tests.files.onnx_models import model, node, read, tensor

CONSTANTS = {"half": np.zeros((4, 4), np.float16), "zero": [0], "two": [2], "four": [4]}
PIECED: dict[str, tuple[list[onnx.NodeProto], set[str]]] = {
    "a weight put together from slices is one": (
        [
            node("Slice", "w zero two zero", "head"),
            node("Slice", "w two four zero", "tail"),
            node("Concat", "tail head", "swapped", axis=0),
            node("MatMul", "x swapped", "y"),
        ],
        {"w"},
    ),
    "a weight stored in half precision and cast is one": (
        [node("Cast", "half", "full", to=1), node("MatMul", "x full", "y")],
        {"half"},
    ),
    "a computed table is none": ([node("Sin", "w", "table"), node("MatMul", "x table", "y")], set()),
    "an addend put together from slices is one in case of doubt": (
        [
            node("MatMul", "x w", "scores"),
            node("Slice", "half zero two zero", "piece"),
            node("Concat", "piece piece piece piece", "rows", axis=0),
            node("Cast", "rows", "mask", to=1),
            node("Add", "scores mask", "y"),
        ],
        {"w", "half"},
    ),
}


@pytest.mark.parametrize("what", PIECED)
def test_of_constants_that_ops_move(tmp_path: Path, what: str) -> None:
    nodes, expected = PIECED[what]
    graph = read(model(nodes, {"x": [8, 4]}, weights={"w": (4, 4)}, constants=CONSTANTS, opset=17), tmp_path)
    made = {output for op in graph.ops for output in op.outputs}
    found = {t.name for i, t in enumerate(graph.tensors) if t.role is Role.PARAMETER and i not in made}
    assert found == expected


X = {"x": [2, 4]}

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
    "a mask of scores": (
        [node("MatMul", "x k", "s"), node("Add", "s w", "m"), node("Softmax", "m", "y")],
        {"w": (2, 3), "k": (4, 3)},
        Role.BUFFER,
    ),
    "a bias of scores": (
        [node("MatMul", "x k", "s"), node("Add", "s w", "m"), node("Softmax", "m", "y")],
        {"w": (1, 3), "k": (4, 3)},
        Role.PARAMETER,
    ),
    "a table of biases of scores": (
        [node("MatMul", "x k", "s"), node("Gather", "w rows", "b"), node("Add", "s b", "m"), node("Softmax", "m", "y")],
        {"w": (5, 3), "k": (4, 3)},
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
    graph = read(model(nodes, X, weights=weights, constants={"zero": [0], "rows": [1, 3]}), tmp_path)
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


NORMS = {"LayerNormalization": "x {} {}", "InstanceNormalization": "x {} {}", "BatchNormalization": "x {} {} m v"}


@pytest.mark.parametrize("op_type", NORMS)
@pytest.mark.parametrize(
    ("scale", "shift", "ones", "zeros", "trained"),
    [
        ("val_3", "val_4", 1, 0, set()),
        ("/norm/Constant_output_0", "onnx::Norm_7", 1, 0, set()),
        ("norm.weight", "norm.bias", 1, 0, {"norm.weight", "norm.bias"}),
        ("val_3", "val_4", 2, 0, {"val_3"}),
        ("val_3", "val_4", 1, 1, {"val_4"}),
        ("val_3", "val_4", 0, 1, {"val_3", "val_4"}),
    ],
)
def test_ones_and_zeros_that_an_exporter_wrote_for_a_norm_without_weights_are_none(
    op_type: str, scale: str, shift: str, ones: float, zeros: float, trained: set[str], tmp_path: Path
) -> None:
    constants = {scale: np.full(4, ones, np.float32), shift: np.full(4, zeros, np.float32)}
    nodes = [node(op_type, NORMS[op_type].format(scale, shift), "y")]
    axis = {"m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)} if op_type == "BatchNormalization" else {}
    graph = read(model(nodes, {"x": [2, 4, 4]}, constants=constants | axis), tmp_path)
    assert {t.name for t in graph.tensors if t.role is Role.PARAMETER} == trained


def test_ones_that_an_exporter_named_are_a_weight_of_a_linear_layer(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x onnx::MatMul_7", "y")], X, constants={"onnx::MatMul_7": np.ones((4, 4), np.float32)}
    )
    assert tensor(read(proto, tmp_path), "onnx::MatMul_7").role is Role.PARAMETER
