"""Files that ONNX Runtime made: said to be so, and charged without a shape for each of its own ops."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from ogc_plan.planner.errors import UnsupportedOpError
from ogc_plan.planner.onnx_import.reader import read_onnx
from torch import nn

from tests.files.onnx_models import model, node, read, tensor

SHAPES = {
    "Gelu": (node("Gelu", "x", "h", domain="com.microsoft"), (2, 6, 8)),
    "FastGelu": (node("FastGelu", "x b", "h", domain="com.microsoft"), (2, 6, 8)),
    "FusedMatMul": (node("FusedMatMul", "x m", "h", domain="com.microsoft", alpha=0.5), (2, 6, 24)),
    "FusedMatMul, transposed": (node("FusedMatMul", "x t", "h", domain="com.microsoft", transB=1), (2, 6, 24)),
    "Attention": (node("Attention", "x m q", "h", domain="com.microsoft", num_heads=2), (2, 6, 8)),
    "SkipLayerNormalization": (node("SkipLayerNormalization", "x x b b", "h", domain="com.microsoft"), (2, 6, 8)),
}
SHAPES |= {
    "FusedConv": (node("FusedConv", "x c", "h", domain="com.microsoft", strides=[2], pads=[1, 1]), (2, 5, 4)),
    "FusedGemm": (node("FusedGemm", "g t", "h", domain="com.microsoft", transB=1), (4, 24)),
}
WEIGHTS = {"c": (5, 6, 3), "g": (4, 8), "m": (8, 24), "t": (24, 8), "b": (8,), "q": (24,)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_charged_op_has_the_shape_that_the_runtime_gives_it(name: str, tmp_path: Path) -> None:
    made, shape = SHAPES[name]
    proto = model([made, node("Relu", "h", "y")], {"x": [2, 6, 8]}, weights=WEIGHTS)
    assert tensor(read(proto, tmp_path, charge_unknown=True), "h").shape == shape


def test_a_quantised_op_of_no_known_shape_is_told_to_be_planned_before_it_was_made(tmp_path: Path) -> None:
    proto = model([node("QGemm", "x", "h", domain="com.microsoft"), node("Relu", "h", "y")], {"x": [2, 3]})
    with pytest.raises(UnsupportedOpError) as caught:
        read(proto, tmp_path, charge_unknown=True)
    assert caught.value.remedy.startswith("pass --shape h=2x3")


def test_the_runtimes_own_layouts_are_not_offered_to_be_charged(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        read(model([node("ReorderInput", "x", "y", domain="com.microsoft.nchwc")], {"x": [2, 3]}), tmp_path)
    assert caught.value.remedy == "plan the file that was optimised"


def test_a_training_graph_is_called_one(tmp_path: Path) -> None:
    nodes = [node("Gelu", "x", "h", domain="com.microsoft"), node("GeluGrad", "h x", "y", domain="com.microsoft")]
    with pytest.raises(UnsupportedOpError, match="a training graph that ONNX Runtime made"):
        read(model(nodes, {"x": [2, 3]}), tmp_path)


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that ONNX Runtime saved after it optimised a transformer layer."""
    folder = tmp_path_factory.mktemp("optimised")
    network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    torch.onnx.export(network, (torch.zeros(2, 6, 8),), str(folder / "plain.onnx"), dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    onnxruntime.InferenceSession(str(folder / "plain.onnx"), options, providers=["CPUExecutionProvider"])
    proto = onnx.load(folder / "optimised.onnx")
    del proto.graph.value_info[:]
    onnx.save(proto, folder / "optimised.onnx")
    return folder / "optimised.onnx"


def test_an_optimised_file_is_called_one(optimised: Path) -> None:
    with pytest.raises(UnsupportedOpError, match="a file that ONNX Runtime has optimised") as caught:
        read_onnx(optimised)
    assert caught.value.remedy.startswith("plan the file that was optimised, or pass --charge-unknown")


def test_an_optimised_file_is_charged_as_its_error_says(optimised: Path) -> None:
    assert "Gelu" in {op.op_type for op in read_onnx(optimised, charge_unknown=True).ops}
