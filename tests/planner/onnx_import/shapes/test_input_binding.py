"""Dimensions of inputs: bound by name, by batch or by a whole shape, or refused with the option to pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from ogc_plan.planner.errors import (
    UnboundDimensionError,
    UsageError,
)
from onnx import helper

from tests.files.onnx_models import INT64, model, node, read, shape_of

RELU = [node("Relu", "x", "y")]
X = {"x": [2, 4]}

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


def test_bound_dimensions_are_recorded_and_assumed(tmp_path: Path) -> None:
    graph = read(TOKENS, tmp_path, dims={"seq": 7, "batch": 2})
    assert graph.dims == (("batch", 2), ("seq", 7))
    assert 'dimension "batch" is bound to 2' in graph.assumed


def test_the_batch_option_binds_a_symbolic_batch(tmp_path: Path) -> None:
    assert shape_of(read(TOKENS, tmp_path, batch=4, dims={"seq": 7}), "MatMul") == (4, 7, 3)


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
    assert "--shape x=8x3x224" in caught.value.remedy


@pytest.mark.parametrize(
    ("size", "says"), [(0, r"\(8x0\) is 0, which"), (-1, r"\(8x-1\) is -1, which"), (None, "neither")]
)
def test_a_size_that_is_no_size_is_quoted(tmp_path: Path, size: int | None, says: str) -> None:
    with pytest.raises(UnboundDimensionError, match=says):
        read(model(RELU, {"x": [8, size]}), tmp_path)


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


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        (["?", "?"], "pass --shape x=8x512 with your sizes"),
        (["?", "n"], "pass --shape x=8x512 with your sizes"),
        (["N", "sequence length"], "pass --dim N=8 --dim 'sequence length=512'"),
    ],
)
def test_the_remedy_for_unbound_dimensions_can_be_typed(
    tmp_path: Path, shape: list[int | str | None], remedy: str
) -> None:
    with pytest.raises(UnboundDimensionError) as caught:
        read(model(RELU, {"x": shape}), tmp_path)
    assert caught.value.remedy == remedy
