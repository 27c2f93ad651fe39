"""--batch on files whose recurrent layers read time first: it is never taken for the length of the sequence."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from ogc_plan.planner.errors import UsageError

from tests.files.onnx_models import model, node, read, tensor

WEIGHTS = {"w": (1, 16, 5), "r": (1, 16, 4)}


def lstm(shape: list[int | str | None], states: str = "", **inputs: list[int | str | None]) -> onnx.ModelProto:
    nodes = [node("LSTM", f"x w r {states}", "y", hidden_size=4)]
    return model(nodes, {"x": shape, **inputs}, weights=WEIGHTS)


def remedy(proto: onnx.ModelProto, folder: Path) -> str:
    with pytest.raises(
        UsageError, match=r'--batch 8 changes the leading dimension of input "x", .* reads as time'
    ) as e:
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


def test_a_batch_that_is_transposed_behind_time_is_taken(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("LSTM", "t w r", "y", hidden_size=4)]
    graph = read(model(nodes, {"x": [2, 6, 5]}, weights=WEIGHTS), tmp_path, batch=8)
    assert tensor(graph, "y").shape == (6, 1, 8, 4)


def test_a_batch_that_the_file_already_has_changes_nothing(tmp_path: Path) -> None:
    assert tensor(read(lstm([8, 2, 5]), tmp_path, batch=8), "y").shape == (8, 1, 2, 4)
