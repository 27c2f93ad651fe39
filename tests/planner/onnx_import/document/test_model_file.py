"""Files that are no model, or a damaged one, are refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.errors import (
    InvalidModelError,
    OgcPlanError,
    StorageError,
)
from ogc_plan.planner.onnx_import.document.model_file import parse_model
from ogc_plan.planner.onnx_import.document.opsets import opset_versions
from ogc_plan.planner.onnx_import.reader import read_onnx
from onnx import helper

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("none.onnx", "No such file"),
        (".", "is a folder"),
        ("a\0b.onnx", "cannot be read"),
        ("/dev/zero", "regular file"),
    ],
)
def test_a_path_that_is_no_file_is_refused_without_opening_it(tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(StorageError, match=says):
        read_onnx(tmp_path / path)


GARBAGE = {
    "empty": (b"", "empty"),
    "text": (b"hello, this is not a model\n" * 20, "not an ONNX model"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(range(256)), "compressed with gzip.*gunzip < FILE"),
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


EDITIONS = {
    "no opset": ({"ir_version": 8}, "imports no opset"),
    "no IR version": ({"opset_import": [helper.make_opsetid("", 18)]}, "states no IR version"),
    "a negative IR version": ({"ir_version": -1, "opset_import": [helper.make_opsetid("", 18)]}, "IR version -1"),
    "a future IR version": ({"ir_version": 9999, "opset_import": [helper.make_opsetid("", 18)]}, "IR version 9999"),
}


@pytest.mark.parametrize("what", EDITIONS)
def test_a_file_of_no_edition_of_onnx_is_refused(what: str) -> None:
    fields, message = EDITIONS[what]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    with pytest.raises(InvalidModelError, match=message):
        parse_model(onnx.ModelProto(graph=graph, **fields).SerializeToString())


def test_a_file_from_before_opsets_needs_none() -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    assert opset_versions(parse_model(onnx.ModelProto(graph=graph, ir_version=2).SerializeToString()))[""] == 1


@pytest.mark.parametrize("share", [0.1, 0.999])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    content = (LIGHT / "light_zfnet512.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InvalidModelError):
        read_onnx(tmp_path / "model.onnx")


def test_a_damaged_file_gives_one_line_or_a_graph(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    content = np.frombuffer((LIGHT / "light_squeezenet.onnx").read_bytes(), np.uint8)
    path, lines = tmp_path / "model.onnx", []
    for _ in range(100):
        damaged = content.copy()
        damaged[generator.integers(0, len(content), 3)] = generator.integers(0, 256, 3)
        path.write_bytes(damaged.tobytes())
        try:
            read_onnx(path)
        except OgcPlanError as error:
            lines.append(str(error))
    assert lines
    assert not any("\n" in line for line in lines)
