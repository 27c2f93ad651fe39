"""--batch on files of a fixed batch: every constant that has the batch changes, and no time axis does."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from ogc_plan.planner.errors import (
    UsageError,
)
from ogc_plan.planner.graph import Graph

from tests.files.onnx_models import model, node, read, shape_of, tensor

WEIGHTS = {"w": (1, 16, 5), "r": (1, 16, 4)}


def lstm(shape: list[int | str | None], states: str = "", **inputs: list[int | str | None]) -> onnx.ModelProto:
    nodes = [node("LSTM", f"x w r {states}", "y", hidden_size=4)]
    return model(nodes, {"x": shape, **inputs}, weights=WEIGHTS)


def remedy(proto: onnx.ModelProto, folder: Path) -> str:
    with pytest.raises(UsageError, match=r'batch=8 changes the leading dimension of input "x", .* reads as time') as e:
        read(proto, folder, batch=8)
    return e.value.remedy


def test_the_remedy_gives_the_shape_with_the_batch_second(tmp_path: Path) -> None:
    assert remedy(lstm([6, 2, 5]), tmp_path) == "pass --shape x=6x8x5 in place of --batch"


def test_the_remedy_has_a_length_where_the_file_has_none(tmp_path: Path) -> None:
    assert remedy(lstm(["time", 2, 5]), tmp_path) == "pass --shape x=64x8x5 in place of --batch"


def test_the_remedy_shapes_states_that_are_inputs_too(tmp_path: Path) -> None:
    proto = lstm([6, 2, 5], "_ _ h", h=[1, 2, 4])
    assert remedy(proto, tmp_path) == "pass --shape x=6x8x5 --shape h=1x8x4 in place of --batch"


def test_a_state_that_the_file_fixes_asks_for_another_export(tmp_path: Path) -> None:
    nodes = [node("LSTM", "x w r _ _ h", "y", hidden_size=4)]
    proto = model(nodes, {"x": [6, 2, 5]}, weights={**WEIGHTS, "h": (1, 2, 4)})
    assert remedy(proto, tmp_path) == 'export the model at batch 8: its initial state "h" fixes 2'


def test_what_the_remedy_says_works(tmp_path: Path) -> None:
    graph = read(lstm([6, 2, 5], "_ _ h", h=[1, 2, 4]), tmp_path, inputs={"x": (6, 8, 5), "h": (1, 8, 4)})
    assert tensor(graph, "y").shape == (6, 1, 8, 4)


def test_a_batch_that_is_transposed_after_time_is_taken(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("LSTM", "t w r", "y", hidden_size=4)]
    graph = read(model(nodes, {"x": [2, 6, 5]}, weights=WEIGHTS), tmp_path, batch=8)
    assert tensor(graph, "y").shape == (6, 1, 8, 4)


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
    assert graph.assumed == ("batch 2 becomes 8 in constants of the file (1 in all), e.g. [2, 12] to [8, 12]",)


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
    with pytest.raises(UsageError, match=r"cannot be changed to 8: .* into \[3, 2, 4\]"):
        rebatched(tmp_path, [2, 3, 4], [node("Reshape", "x s", "y")], 8, s=[3, 2, 4])


def test_every_input_that_leads_with_the_old_batch_changes(tmp_path: Path) -> None:
    proto = model([node("Add", "x m", "h"), node("Mul", "h q", "y")], {"q": [4], "x": [2, 4], "m": [2, 1]})
    graph = read(proto, tmp_path, batch=8)
    assert [graph.tensors[i].shape for i in graph.inputs] == [(4,), (8, 4), (8, 1)]
