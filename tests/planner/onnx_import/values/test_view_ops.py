"""Views have PyTorch's semantics: what shares memory, and with which strides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.graph import Role, View
from ogc_plan.planner.onnx_import.values.values import Call, Value
from ogc_plan.planner.onnx_import.values.view_ops import mark_view, reshaped

from tests.files.onnx_models import INT64, model, node, op, read, storage_name, tensor

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=0, max_size=4)


@st.composite
def layouts(draw: st.DrawFn) -> torch.Tensor:
    """A tensor that was permuted, sliced and expanded."""
    value = torch.empty(draw(SHAPES))
    value = value.permute(draw(st.permutations(range(value.dim()))))
    if value.dim() and draw(st.booleans()):
        axis = draw(st.integers(0, value.dim() - 1))
        step = draw(st.integers(1, 2))
        value = value[(slice(None),) * axis + (slice(None, None, step),)]
    if draw(st.booleans()):
        value = value.expand([draw(st.integers(2, 3)) if size == 1 else size for size in value.shape])
    return value


@given(layouts(), st.data())
@settings(max_examples=400, deadline=None)
def test_a_reshape_is_a_view_exactly_where_torch_makes_one(value: torch.Tensor, data: st.DataObject) -> None:
    cuts, rest = [], value.numel()
    while rest > 1:
        cut = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        cuts.append(cut)
        rest //= cut
        if len(cuts) == 5:
            break
    target = (*cuts, rest)
    try:
        expected = value.view(target).stride()
    except RuntimeError:
        expected = None
    assert reshaped(tuple(value.shape), value.stride(), target) == expected


PIECES = {
    "Identity": (node("Identity", "h", "v"), {}, View.WHOLE),
    "Reshape": (node("Reshape", "h s", "v"), {"s": [8, 3]}, View.WHOLE),
    "Flatten": (node("Flatten", "h", "v"), {}, View.WHOLE),
    "Transpose": (node("Transpose", "h", "v", perm=[2, 0, 1]), {}, View.WHOLE),
    "default Transpose": (node("Transpose", "h", "v"), {}, View.WHOLE),
    "Unsqueeze": (node("Unsqueeze", "h s", "v"), {"s": [0]}, View.WHOLE),
    "Cast to the same type": (node("Cast", "h", "v", to=1), {}, View.WHOLE),
    "CastLike of the same type": (node("CastLike", "h x", "v"), {}, View.WHOLE),
    "Dropout of nothing": (node("Dropout", "h r", "v"), {"r": 0.0}, View.WHOLE),
    "Expand": (node("Expand", "h s", "v"), {"s": [5, 2, 3, 4]}, View.PART),
    "Split": (node("Split", "h", "v w", axis=2, num_outputs=2), {}, View.PART),
    "Slice": (node("Slice", "h a b c", "v"), {"a": [1], "b": [9], "c": [2]}, View.PART),
    "Gather of one": (node("Gather", "h s", "v", axis=1), {"s": 1}, View.PART),
    "Slice backwards": (node("Slice", "h a b c d", "v"), {"a": [3], "b": [-9], "c": [2], "d": [-1]}, View.NONE),
    "Gather of several": (node("Gather", "h s", "v", axis=1), {"s": [1]}, View.NONE),
    "Cast to another type": (node("Cast", "h", "v", to=10), {}, View.NONE),
    "Concat": (node("Concat", "h x", "v", axis=0), {}, View.NONE),
    "Dropout": (node("Dropout", "h", "v"), {}, View.NONE),
    "Tile": (node("Tile", "h s", "v"), {"s": [1, 1, 1]}, View.NONE),
}


@pytest.mark.parametrize("piece", PIECES)
def test_the_kind_of_view_and_a_view_lives_in_the_storage_of_its_base(tmp_path: Path, piece: str) -> None:
    made, constants, expected = PIECES[piece]
    nodes = [node("Relu", "x", "h"), made, node("Tanh", "v", "y")]
    graph = read(model(nodes, {"x": [2, 3, 4]}, constants=_arrays(constants)), tmp_path)
    assert (graph.ops[1].view, storage_name(graph, "v")) == (expected, "v" if expected is View.NONE else "h")


def _arrays(constants: dict[str, object]) -> dict[str, object]:
    return {
        name: np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        for name, value in constants.items()
    }


CHAINS = {
    "a transposed tensor": ([node("Transpose", "h", "a", perm=[0, 2, 1])], View.NONE),
    "a tensor transposed and back": (
        [node("Transpose", "h", "t", perm=[0, 2, 1]), node("Transpose", "t", "a", perm=[0, 2, 1])],
        View.WHOLE,
    ),
    "the last part of a split": ([node("Split", "h", "p a", axis=2, num_outputs=2)], View.NONE),
    "the first part along the leading axis": ([node("Split", "h", "a q", axis=0, num_outputs=2)], View.WHOLE),
    "an elementwise result of a transposed tensor": (
        [node("Transpose", "h", "t", perm=[0, 2, 1]), node("Sigmoid", "t", "a")],
        View.NONE,
    ),
    "a matrix product of a transposed tensor": (
        [node("Transpose", "h", "t", perm=[0, 2, 1]), node("MatMul", "t h", "a")],
        View.WHOLE,
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_flattening(tmp_path: Path, chain: str) -> None:
    nodes, expected = CHAINS[chain]
    last = node("Reshape", "a all", "v", node_name="flat")
    proto = model(
        [node("Relu", "x", "h"), *nodes, last, node("Tanh", "v", "y")], {"x": [2, 3, 4]}, constants={"all": [-1]}
    )
    graph = read(proto, tmp_path)
    assert next(made for made in graph.ops if made.name == "flat").view is expected


def test_a_reshape_that_copies_gives_its_output_a_storage_of_its_own(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "h"), node("Transpose", "h", "t"), node("Reshape", "t s", "v"), node("Tanh", "v", "y")]
    assert storage_name(read(model(nodes, {"x": [2, 3]}, constants={"s": [6]}), tmp_path), "v") == "v"


def test_a_view_of_a_weight_is_a_parameter_in_the_storage_of_the_weight(tmp_path: Path) -> None:
    nodes = [node("Transpose", "w", "wt"), node("MatMul", "x wt", "y")]
    graph = read(model(nodes, {"x": [2, 3]}, weights={"w": (5, 3)}), tmp_path)
    assert (tensor(graph, "wt").role, storage_name(graph, "wt")) == (Role.PARAMETER, "w")


def test_a_partial_view_of_a_weight_stays_an_op(tmp_path: Path) -> None:
    nodes = [node("Split", "w", "a b", num_outputs=2), node("MatMul", "x a", "y")]
    graph = read(model(nodes, {"x": [2, 3]}, weights={"w": (6, 4)}), tmp_path)
    assert (op(graph, "Split").view, tensor(graph, "a").role) == (View.PART, Role.PARAMETER)


def test_a_split_sequence_is_a_partial_view(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "h"), node("SplitToSequence", "h k", "s", axis=-1)]
    nodes += [node("SequenceAt", "s one", "p"), node("Relu", "p", "y")]
    graph = read(model(nodes, {"x": [2, 6]}, constants={"k": 3, "one": -1}), tmp_path)
    assert (op(graph, "Split").view, storage_name(graph, "p")) == (View.PART, "h")


def test_a_cast_takes_no_second_input(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "i", to=INT64), node("CastLike", "x i", "c"), node("Cast", "c", "y", to=1)]
    graph = read(model(nodes, {"x": [2]}), tmp_path)
    assert [(made.op_type, len(made.inputs)) for made in graph.ops] == [("Cast", 1), ("Cast", 1)]


def test_attention_writes_its_output_in_the_memory_order_of_the_query() -> None:
    query = torch.empty(2, 8, 3, 4, 16)[:, :, 0].transpose(1, 2)  # heads sliced out of a fused projection
    measured = torch.nn.functional.scaled_dot_product_attention(query, query, query).stride()
    source = Value("q", "float32", tuple(query.shape), query.stride())
    call = Call("a", "Attention", "", (source, source, source), (Value("y", "float32", tuple(query.shape)),))
    mark_view(call)
    assert call.outputs[0].strides == measured
