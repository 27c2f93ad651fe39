"""If with a condition that is known while the file is read, and every other kind of control flow refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.errors import InvalidModelError, UnsupportedOpError
from ogc_plan.planner.graph import Graph, Role, View
from onnx import TensorProto, helper, numpy_helper

from tests.files.onnx_models import model, node, op, read, tensor

X = {"x": [2, 4]}


def body(
    nodes: Sequence[onnx.NodeProto], outputs: str, *, weights: Mapping[str, Sequence[int]] | None = None
) -> onnx.GraphProto:
    """A branch; its outputs need no type of their own."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()]
    initializers = [
        numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in (weights or {}).items()
    ]
    return helper.make_graph(list(nodes), "body", [], values, initializers)


def choice(
    condition: str, outputs: str, then: onnx.GraphProto, other: onnx.GraphProto, name: str = ""
) -> onnx.NodeProto:
    return node("If", condition, outputs, then_branch=then, else_branch=other, node_name=name)


RELU, TANH = body([node("Relu", "x", "a")], "a"), body([node("Tanh", "x", "a")], "a")
SHAPE_IS_TWO = [node("Shape", "x", "s", end=1), node("Equal", "s two", "c")]


def types(graph: Graph) -> list[str]:
    return [made.op_type for made in graph.ops]


@pytest.mark.parametrize(("taken", "expected"), [(True, ["Relu"]), (False, ["Tanh"])])
def test_a_constant_condition_takes_one_branch(tmp_path: Path, taken: bool, expected: list[str]) -> None:
    assert types(read(model([choice("c", "y", RELU, TANH)], X, constants={"c": taken}), tmp_path)) == expected


@pytest.mark.parametrize(("batch", "expected"), [(2, ["Relu"]), (3, ["Tanh"])])
def test_a_condition_that_follows_from_shapes_takes_one_branch(tmp_path: Path, batch: int, expected: list[str]) -> None:
    proto = model([*SHAPE_IS_TWO, choice("c", "y", RELU, TANH)], {"x": ["n", 4]}, constants={"two": [2]})
    assert types(read(proto, tmp_path, dims={"n": batch})) == expected


UNKNOWN, READS_F = body([node("Frobnicate", "x", "a")], "a"), body([node("Relu", "f", "a")], "a")
ADDS, TWICE = body([node("Add", "h x", "a")], "a"), body([node("Relu", "x", "a")], "a a")
NESTED = body([node("Relu", "x", "h"), choice("d", "b", body([node("Exp", "h", "a")], "a"), TANH)], "b")
TAKEN = {
    "reads a node that comes later": ([choice("c", "y", ADDS, TANH), node("Relu", "x", "h")], ["Relu", "Add"]),
    "has an if": ([choice("c", "y", NESTED, TANH)], ["Relu", "Exp"]),
    "gives one value twice": ([choice("c", "p q", TWICE, TWICE), node("Add", "p q", "y")], ["Relu", "Identity", "Add"]),
    "is not the invalid one": ([choice("c", "y", RELU, UNKNOWN)], ["Relu"]),
    "does not read an invalid node": ([node("Frobnicate", "x", "f"), choice("c", "y", RELU, READS_F)], ["Relu"]),
}


@pytest.mark.parametrize("branch", TAKEN)
def test_the_ops_of_a_branch_that(tmp_path: Path, branch: str) -> None:
    nodes, expected = TAKEN[branch]
    assert types(read(model(nodes, X, constants={"c": True, "d": True}), tmp_path)) == expected


def test_names_of_a_branch_do_not_collide_with_those_around_it(tmp_path: Path) -> None:
    inner = body([node("Tanh", "x", "h"), node("Exp", "h", "a")], "a")
    nodes = [node("Relu", "x", "h"), choice("c", "z", inner, RELU), node("Add", "h z", "y")]
    graph = read(model(nodes, X, constants={"c": True}), tmp_path)
    names = [graph.tensors[made.outputs[0]].name for made in graph.ops]
    assert names == ["h", "h_", "z", "y"]


def test_two_ifs_with_equal_branches_make_values_and_calls_of_different_names(tmp_path: Path) -> None:
    inner = body([node("Relu", "x", "h", node_name="n"), node("Exp", "h", "a", node_name="m")], "a")
    nodes = [choice("c", "p", inner, TANH, "one"), choice("c", "q", inner, TANH, "two"), node("Add", "p q", "y")]
    graph = read(model(nodes, X, constants={"c": True}), tmp_path)
    assert [made.name for made in graph.ops] == ["n", "m", "two.n", "two.m", "Add_0"]


def test_weights_of_a_branch_are_parameters(tmp_path: Path) -> None:
    inner = body([node("MatMul", "x w", "a")], "a", weights={"w": (4, 3)})
    graph = read(model([choice("c", "y", inner, TANH)], X, constants={"c": True}), tmp_path)
    assert tensor(graph, "w").role is Role.PARAMETER


def test_a_branch_without_nodes_gives_a_value_from_outside(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "h"), choice("c", "z", body([], "h"), TANH), node("Exp", "z", "y")]
    graph = read(model(nodes, X, constants={"c": True}), tmp_path)
    assert op(graph, "Identity").view is View.WHOLE


INNER, OUTER = body([node("Shape", "x", "a")], "a"), body([], "t")


@pytest.mark.parametrize(("before", "branch"), [([], INNER), ([node("Shape", "x", "t")], OUTER)], ids=["in", "before"])
def test_shape_arithmetic_in_or_before_an_if_is_folded(
    tmp_path: Path, before: list[onnx.NodeProto], branch: onnx.GraphProto
) -> None:
    nodes = [*before, choice("c", "s", branch, branch), node("Reshape", "w s", "v"), node("Mul", "x v", "y")]
    graph = read(model(nodes, X, weights={"w": (8,)}, constants={"c": True}), tmp_path)
    assert tensor(graph, "v").shape == (2, 4)


def test_an_if_in_a_branch_reads_the_branch_and_not_what_has_its_name_outside(tmp_path: Path) -> None:
    deep = body([node("Exp", "h", "a")], "a")
    inner = body([node("Tanh", "x", "h"), choice("d", "b", deep, TANH)], "b")
    nodes = [node("Relu", "x", "h"), choice("c", "z", inner, TANH), node("Add", "h z", "y")]
    graph = read(model(nodes, X, constants={"c": True, "d": True}), tmp_path)
    assert graph.tensors[op(graph, "Exp").inputs[0] or 0].name == "h_"


def test_a_refused_node_that_the_taken_branch_reads_is_named(tmp_path: Path) -> None:
    nodes = [node("Frobnicate", "x", "f", node_name="bad"), choice("c", "y", READS_F, RELU)]
    with pytest.raises(UnsupportedOpError, match='node "bad"'):
        read(model(nodes, X, constants={"c": True}), tmp_path)


def test_an_if_inside_a_function(tmp_path: Path) -> None:
    inner = [choice("flag", "d", body([node("Relu", "a", "r")], "r"), body([node("Exp", "a", "e")], "e"))]
    imports = [helper.make_opsetid("", 21)]
    chosen = helper.make_function("own", "chosen", ["a", "flag"], ["d"], inner, imports)
    proto = model([node("chosen", "x c", "y", domain="own")], X, constants={"c": False}, functions=[chosen])
    assert types(read(proto, tmp_path)) == ["Exp"]


def test_a_function_called_in_a_branch(tmp_path: Path) -> None:
    called = helper.make_function("own", "f", ["a"], ["d"], [node("Relu", "a", "d")], [helper.make_opsetid("", 21)])
    inner = body([node("f", "x", "a", domain="own")], "a")
    proto = model([choice("c", "y", inner, TANH)], X, constants={"c": True}, functions=[called])
    assert types(read(proto, tmp_path)) == ["Relu"]


# --- what is refused --------------------------------------------------------------------------------------------------

LOOP = helper.make_graph(
    [node("Identity", "c", "d"), node("Relu", "v", "w")],
    "body",
    [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
    ],
    [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("w", 1, None)],
)
DATA = [node("ReduceSum", "x", "r", keepdims=0), node("Greater", "r zero", "c")]
REFUSED = {
    "a condition that follows from an input": (
        model([*DATA, choice("c", "y", RELU, TANH, "choose")], X, constants={"zero": np.float32(0)}),
        r'node "choose" \(If\): its condition "c" depends on input "x"',
    ),
    "a condition that is an input": (
        model([choice("c", "y", RELU, TANH, "choose")], {**X, "c": []}),
        r'node "choose" \(If\): its condition "c" is an input of the model',
    ),
    "a loop": (
        model([node("Loop", "n _ x", "y", body=LOOP, node_name="again")], X, constants={"n": 3}),
        r'node "again" \(Loop\) is a loop',
    ),
    "a scan": (
        model([node("Scan", "x", "y", body=LOOP, num_scan_inputs=1, node_name="again")], X),
        r'node "again" \(Scan\) is a loop',
    ),
    "a map over a sequence": (
        model([node("SplitToSequence", "x", "s"), node("SequenceMap", "s", "y", body=LOOP, node_name="each")], X),
        r'node "each" \(SequenceMap\) runs its body once per tensor',
    ),
    "an optional value": (
        model([node("Optional", "x", "o", node_name="maybe"), node("OptionalGetElement", "o", "y")], X),
        r'node "maybe" \(Optional\) works on an optional value',
    ),
    "an op with a graph of its own": (
        model([node("Relu", "x", "y", node_name="odd", extra=RELU)], X),
        r'node "odd" \(Relu\) carries a graph of its own',
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path: Path, what: str) -> None:
    proto, message = REFUSED[what]
    with pytest.raises(UnsupportedOpError, match=message):
        read(proto, tmp_path)


def test_a_loop_says_to_unroll_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        read(REFUSED["a loop"][0], tmp_path)
    assert caught.value.remedy == "export the model with its loops unrolled"


INVALID = {
    "without a branch": node("If", "c", "y", then_branch=TANH),
    "with a branch of too few outputs": choice("c", "y z", RELU, RELU),
    "without a condition": node("If", "", "y", then_branch=RELU, else_branch=RELU),
    "whose branch reads what nothing makes": choice("c", "y", RELU, body([node("Relu", "none", "a")], "a")),
    "whose branch has a cycle": choice(
        "c", "y", RELU, body([node("Relu", "p", "q"), node("Relu", "q", "p"), node("Add", "p x", "a")], "a")
    ),
}


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_if(tmp_path: Path, what: str) -> None:
    with pytest.raises(InvalidModelError):
        read(model([INVALID[what]], X, constants={"c": False}), tmp_path)


# --- sequences --------------------------------------------------------------------------------------------------------

TWO = [node("Relu", "x", "p"), node("Tanh", "x", "q"), node("SequenceConstruct", "p q", "s")]
CONSTANTS = {"zero": 0, "one": 1, "last": -1}
SEQUENCES = {
    "joined": ([*TWO, node("ConcatFromSequence", "s", "y", axis=1)], (2, 8)),
    "stacked": ([*TWO, node("ConcatFromSequence", "s", "y", axis=-1, new_axis=1)], (2, 4, 2)),
    "read at a position": ([*TWO, node("SequenceAt", "s last", "t"), node("Exp", "t", "y")], (2, 4)),
    "grown": (
        [*TWO, node("SequenceInsert", "s x zero", "t"), node("ConcatFromSequence", "t", "y", axis=0)],
        (6, 4),
    ),
    "shortened": ([*TWO, node("SequenceErase", "s", "t"), node("ConcatFromSequence", "t", "y", axis=0)], (2, 4)),
    "counted": (
        [*TWO, node("SequenceLength", "s", "n"), node("Range", "zero n one", "r"), node("Gather", "x r", "y")],
        (2, 4),
    ),
    "made of a split": (
        [node("SplitToSequence", "x", "s", axis=1), node("ConcatFromSequence", "s", "y", axis=0)],
        (8, 1),
    ),
    "empty at first": (
        [
            node("SequenceEmpty", "", "e"),
            node("SequenceInsert", "e x", "t"),
            node("SequenceAt", "t zero", "u"),
            node("Relu", "u", "y"),
        ],
        (2, 4),
    ),
}


@pytest.mark.parametrize("how", SEQUENCES)
def test_a_sequence(tmp_path: Path, how: str) -> None:
    nodes, shape = SEQUENCES[how]
    graph = read(model(nodes, X, constants=CONSTANTS), tmp_path)
    assert graph.tensors[graph.outputs[0]].shape == shape


def test_a_sequence_leaves_nothing_but_ops_on_tensors(tmp_path: Path) -> None:
    left = ["Relu", "Tanh", "Unsqueeze", "Unsqueeze", "Concat"]
    assert types(read(model(SEQUENCES["stacked"][0], X), tmp_path)) == left


def test_a_sequence_as_an_output_is_all_of_its_tensors(tmp_path: Path) -> None:
    graph = read(model(TWO, X, "s"), tmp_path)
    assert [graph.tensors[i].name for i in graph.outputs] == ["p", "q"]


BAD_SEQUENCES = {
    "an empty one joined": ([node("SequenceEmpty", "", "e"), node("ConcatFromSequence", "e", "y", axis=0)], "an empty"),
    "tensors that do not fit": (
        [node("SequenceConstruct", "x w", "s"), node("ConcatFromSequence", "s", "y", axis=0)],
        "do not fit",
    ),
    "an axis outside": ([*TWO, node("ConcatFromSequence", "s", "y", axis=5)], "axis 5"),
    "a tensor read as one": ([node("SequenceAt", "x zero", "y")], "not a sequence"),
    "a part that does not exist": ([*TWO, node("SequenceAt", "s five", "y")], "reads part 5 of 2"),
}


@pytest.mark.parametrize("what", BAD_SEQUENCES)
def test_a_bad_sequence(tmp_path: Path, what: str) -> None:
    nodes, message = BAD_SEQUENCES[what]
    with pytest.raises(InvalidModelError, match=message):
        read(model(nodes, X, weights={"w": (2, 3)}, constants={**CONSTANTS, "five": 5}), tmp_path)


def test_a_sequence_as_an_input_is_refused_by_name(tmp_path: Path) -> None:
    proto = model([node("SequenceAt", "x zero", "y")], X, constants=CONSTANTS)
    proto.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2, 4]))
    with pytest.raises(UnsupportedOpError, match='input "x" is a sequence'):
        read(proto, tmp_path)
