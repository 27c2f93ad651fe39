"""What inference cannot know: shapes that depend on data, bound by name; ops of other domains, charged on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.errors import UnsupportedOpError, UsageError
from ogc_plan.planner.graph import Graph, Role
from onnx import TensorProto, helper

from tests.files.onnx_models import model, node, op, read, tensor

X = {"x": [2, 4]}

# --- shapes that depend on data ---------------------------------------------------------------------------------------

FIND = [node("NonZero", "x", "i", node_name="find"), node("Cast", "i", "y", to=1)]
LARGEST = [node("Cast", "x", "z", to=7), node("ReduceMax", "z", "m", keepdims=0)]
DEPENDENT = {
    "NonZero": (FIND, "i", "2x?", (2, 5)),
    "Compress": ([node("Greater", "r r", "c"), node("Compress", "x c", "y", axis=0)], "y", "?x4", (1, 4)),
    "Unique": ([node("Unique", "x", "y")], "y", "?", (7,)),
    "a mask of unknown depth": (
        [node("Cast", "r", "n", to=7), node("ReduceMax", "n", "d"), node("OneHot", "k d v", "y")],
        "y",
        "3x?",
        (3, 10),
    ),
    "Reshape": ([node("Cast", "r", "s", to=7), node("Reshape", "x s", "y")], "y", "?x?", (4, 2)),
    "Expand": ([node("Cast", "f", "s", to=7), node("Expand", "w4 s", "y")], "y", "?x?x4x4", (2, 1, 4, 4)),
    "Range": ([*LARGEST, node("Range", "zero m one", "q"), node("Cast", "q", "y", to=1)], "q", "?", (6,)),
    "Slice": ([node("Cast", "r", "s", to=7), node("Slice", "x zeros s", "y")], "y", "?x?", (1, 2)),
    "Tile": ([node("Cast", "r", "s", to=7), node("Tile", "x s", "y")], "y", "?x?", (2, 8)),
    "Pad": ([node("Cast", "f", "s", to=7), node("Pad", "x s", "y")], "y", "?x?", (3, 5)),
    "TopK": ([*LARGEST, node("Reshape", "m one1", "k1"), node("TopK", "x k1", "y _", axis=1)], "y", "?x?", (2, 3)),
    "Resize": ([node("Resize", "w4 _ f", "y")], "y", "?x?x?x?", (1, 1, 8, 8)),
    "ConstantOfShape": ([node("Cast", "r", "s", to=7), node("ConstantOfShape", "s", "y")], "y", "?x?", (2, 4)),
}
INPUTS = {**X, "r": [2], "f": [4]}
CONSTANTS = {"v": np.float32([0, 1]), "k": [0, 1, 2], "zero": 0, "one": 1, "zeros": [0, 0], "one1": [1]}


def dependent(what: str) -> onnx.ModelProto:
    return model(DEPENDENT[what][0], INPUTS, weights={"w4": (1, 1, 4, 4)}, constants=CONSTANTS)


@pytest.mark.parametrize("what", DEPENDENT)
def test_a_shape_that_depends_on_data_asks_for_its_sizes(tmp_path: Path, what: str) -> None:
    _, name, pattern, _ = DEPENDENT[what]
    with pytest.raises(UnsupportedOpError) as caught:
        read(dependent(what), tmp_path)
    example = "2x4" if what == "Reshape" else pattern.replace("?", "64")  # 64x64 would not hold its elements
    assert caught.value.remedy == f"pass --shape {name}={example} with its sizes, to plan for one shape"


@pytest.mark.parametrize("what", DEPENDENT)
def test_a_shape_that_depends_on_data_is_bound(tmp_path: Path, what: str) -> None:
    _, name, _, shape = DEPENDENT[what]
    assert tensor(read(dependent(what), tmp_path, inputs={name: shape}), name).shape == shape


def test_a_bound_shape_is_assumed(tmp_path: Path) -> None:
    graph = read(dependent("NonZero"), tmp_path, inputs={"i": (2, 5)})
    assert graph.assumed == ('the shape of "i", which depends on data, is bound to [2, 5]',)


WRONG = {
    "of another number of dimensions": ({"i": (5,)}, r'shape \[5\], but node "find" \(NonZero\) makes it \[2, \?\]'),
    "of more dimensions": ({"i": (2, 5, 1)}, r"makes it \[2, \?\]"),
    "of another known size": ({"i": (3, 5)}, r"makes it \[2, \?\]"),
    "of a tensor of known shape": ({"i": (2, 5), "y": (2, 6)}, r"but it always has shape \[2, 5\]"),
    "of no tensor": ({"j": (2, 5)}, 'no input "j", and no tensor either'),
    "of a tensor that no output needs": ({"i": (2, 5), "dead": (1,)}, "no tensor that an output depends on"),
    "of a constant": ({"i": (2, 5), "w": (3,)}, r"always has shape \[4\]"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_shape(tmp_path: Path, what: str) -> None:
    shapes, message = WRONG[what]
    nodes = [*FIND, node("Relu", "x", "dead")]
    with pytest.raises(UsageError, match=message):
        read(model(nodes, X, weights={"w": (4,)}), tmp_path, inputs=shapes)


def test_a_wrong_name_lists_what_can_be_bound(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(dependent("NonZero"), tmp_path, inputs={"j": (2, 5)})
    assert (
        caught.value.remedy
        == 'shapes can be given to "x", "r", "f", and to a tensor inside whose shape depends on data'
    )


# --- ops of other domains ---------------------------------------------------------------------------------------------

FUSED = node("FusedMatMul", "x w", "h", node_name="fused", domain="com.microsoft")


def contrib(
    dims: list[int | str | None] | None = None, kind: int = TensorProto.FLOAT, *, declared: bool = True
) -> onnx.ModelProto:
    proto = model([FUSED, node("Relu", "h", "y")], {"x": ["n", 4]}, weights={"w": (4, 3)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    if declared:
        proto.graph.value_info.append(helper.make_tensor_value_info("h", kind, dims))
    return proto


def charged(proto: onnx.ModelProto, folder: Path, **options: object) -> Graph:
    return read(proto, folder, charge_unknown=True, **{"dims": {"n": 2}, **options})


def test_an_op_of_another_domain_is_refused_with_the_option_that_charges(tmp_path: Path) -> None:
    refusal = r'node "fused" \(FusedMatMul\) is an op of "com.microsoft", so this is a file that ONNX Runtime'
    with pytest.raises(UnsupportedOpError, match=refusal) as caught:
        read(contrib(["n", 3]), tmp_path, dims={"n": 2})
    assert "--charge-unknown" in caught.value.remedy


@pytest.mark.parametrize(
    ("declared", "bound"),
    [(["n", 3], {}), (None, {"h": (2, 3)}), ([9, 3], {"h": (2, 3)})],
    ids=["declared", "bound", "declared and bound"],
)
def test_a_charged_op_has_the_bound_shape_or_the_declared_one(
    tmp_path: Path, declared: list[int | str | None] | None, bound: dict[str, tuple[int, ...]]
) -> None:
    assert tensor(charged(contrib(declared), tmp_path, inputs=bound), "h").shape == (2, 3)


def test_a_charged_op_saves_all_of_its_inputs_and_outputs(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "p"), node("Fused", "p w", "h", domain="own"), node("Neg", "h", "y")]
    proto = model(nodes, X, weights={"w": (4, 3)})
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, 3]))
    training = derive_backward(charged(proto, tmp_path, dims={}))
    (fused,) = [made for made in training.ops if made.op_type == "Fused"]
    assert fused.backward is not None
    assert {training.storages[s].name for s in fused.backward.reads} == {"p", "h"}


def test_a_charged_op_may_be_random_and_its_weights_are_trained(tmp_path: Path) -> None:
    graph = charged(contrib(["n", 3]), tmp_path)
    assert (op(graph, "FusedMatMul").deterministic, tensor(graph, "w").role) == (False, Role.PARAMETER)
    (note,) = [note for note in graph.assumed if "charged" in note]
    assert note.startswith("1 FusedMatMul of com.microsoft is charged as asked: all inputs and outputs held")


def test_an_integer_output_of_a_charged_op_needs_no_gradient(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "p"), node("Sampled", "p", "h", domain="own"), node("Cast", "h", "y", to=1)]
    proto = model(nodes, X)
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.INT64, [2, 3]))
    assert derive_backward(charged(proto, tmp_path, dims={})).backward_order == ()


def test_a_shape_that_is_not_declared_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match='the shape of its output "h" is not declared by the file') as caught:
        charged(contrib(["n", None]), tmp_path)
    assert caught.value.remedy == "pass --shape h=2x64 with its sizes, to plan for one shape"


def test_an_undeclared_element_type_is_assumed_to_be_that_of_the_widest_floating_input(tmp_path: Path) -> None:
    graph = charged(contrib(declared=False), tmp_path, inputs={"h": (2, 3)})
    assert tensor(graph, "h").dtype == "float32"
    assert [sentence for sentence in graph.assumed if "does not declare" in sentence] == [
        "1 output of FusedMatMul that the file does not declare is taken as float32, as its inputs are"
    ]


def test_a_new_batch_changes_a_declared_shape(tmp_path: Path) -> None:
    proto = model([node("Fused", "x", "h", domain="own"), node("Relu", "h", "y")], X)
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [2, 3]))
    assert tensor(charged(proto, tmp_path, dims={}, batch=8), "h").shape == (8, 3)


REFUSED = {
    "ai.onnx.ml": ("Scaler", "is classical machine learning"),
    "ai.onnx.preview": ("FlexAttention", "is a preview"),
    "ai.onnx.preview.training": ("Adam", "is an optimizer step"),
}


@pytest.mark.parametrize("domain", REFUSED)
def test_an_op_is_refused_with_the_reason_of_its_domain(tmp_path: Path, domain: str) -> None:
    op_type, message = REFUSED[domain]
    proto = model([node(op_type, "x", "y", domain=domain)], X)
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(UnsupportedOpError, match=message):
        read(proto, tmp_path)


BODY = helper.make_graph([], "b", [], [])


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (node("Loop", "n _ x", "y", body=BODY), "is a loop"),
        (node("Beam", "x", "y", decoder=BODY, domain="own"), "carries a graph of its own"),
    ],
    ids=["loop", "unknown op with a graph"],
)
def test_control_flow_cannot_be_charged(tmp_path: Path, made: onnx.NodeProto, reason: str) -> None:
    with pytest.raises(UnsupportedOpError, match=reason):
        charged(model([made], X, constants={"n": 3}), tmp_path, dims={})
