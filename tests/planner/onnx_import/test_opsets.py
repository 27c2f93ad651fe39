"""Old spellings from opset 7 on, and every element type: read as the newest ones are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.errors import InvalidModelError, UnsupportedOpError
from onnx import TensorProto

from tests.files.onnx_models import model, node, read, tensor

IMAGE = {"x": [2, 3, 8, 8]}
WEIGHTS = {
    **dict.fromkeys(("s", "b", "m", "v"), (3,)), **dict.fromkeys(("ps", "pb", "pm", "pv"), (3, 8, 8)),
    "w": (192, 10), "row": (10,), "slope": (3, 1, 1), "gw": (1, 12, 12), "gr": (1, 12, 4),
    "lw": (1, 16, 12), "lr": (1, 16, 4), "rw": (1, 4, 12), "rr": (1, 4, 4),
}  # fmt: skip
CONSTANTS = {
    "twice": np.float32([1, 1, 2, 2]), "index": np.zeros((2, 3, 8, 8), np.int64), "low": np.float32(0),
    "high": np.float32(6), "flat": [0, -1], "one": [1], "two": [2], "steps": [16, 2, 12], "again": [1, 1, 2, 2],
    "pads": [0, 0, 1, 1, 0, 0, 1, 1], "sizes": [2, 3, 16, 16], "ratio": np.float32(0.3), "training": True,
}  # fmt: skip
NORM = {"epsilon": 1e-5, "momentum": 0.9}
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
BIG, SAME, HALF = (2, 3, 16, 16), (2, 3, 8, 8), (2, 3, 4, 4)
SPELLINGS = {
    "Upsample-7": (7, [node("Upsample", "x", "y", scales=[1.0, 1.0, 2.0, 2.0])], BIG),
    "Upsample-9": (9, [node("Upsample", "x twice", "y", mode="linear")], BIG),
    "Upsample after it was dropped": (11, [node("Upsample", "x twice", "y")], BIG),
    "Resize-10": (10, [node("Resize", "x twice", "y")], BIG),
    "Resize-11 without its roi": (11, [node("Resize", "x _ twice", "y")], BIG),
    "Resize-11 to sizes": (11, [node("Resize", "x _ _ sizes", "y")], BIG),
    "Resize-13": (13, [node("Resize", "x _ _ sizes", "y")], BIG),
    "Dropout-7": (7, [node("Dropout", "x", "y", ratio=0.3)], SAME),
    "Dropout-12": (12, [node("Dropout", "x ratio training", "y")], SAME),
    "Slice-1": (9, [node("Slice", "x", "y", starts=[0, 1], ends=[1, -1], axes=[0, 2])], (1, 3, 6, 8)),
    "Slice-10": (10, [node("Slice", "x one two two", "y")], (2, 3, 1, 8)),
    "BatchNormalization-7 with all outputs": (7, [node("BatchNormalization", "x s b m v", "y a c d e", **NORM)], SAME),
    "BatchNormalization-7 per element": (7, [node("BatchNormalization", "x ps pb pm pv", "y", spatial=0)], SAME),
    "BatchNormalization-9": (9, [node("BatchNormalization", "x s b m v", "y a c d e")], SAME),
    "BatchNormalization-14": (14, [node("BatchNormalization", "x s b m v", "y a c", training_mode=1)], SAME),
    "Scatter-9": (9, [node("Scatter", "x index x", "y", axis=1)], SAME),
    "Scatter after it was dropped": (11, [node("Scatter", "x index x", "y", axis=1)], SAME),
    "Pad-2": (7, [node("Pad", "x", "y", pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="reflect")], (2, 3, 10, 10)),
    "Pad-11": (11, [node("Pad", "x pads", "y")], (2, 3, 10, 10)),
    "Unsqueeze-1": (7, [node("Unsqueeze", "x", "y", axes=[0])], (1, *SAME)),
    "Squeeze-1": (7, [node("Slice", "x", "h", starts=[0], ends=[1]), node("Squeeze", "h", "y", axes=[0])], (3, 8, 8)),
    "ReduceMean-1": (7, [node("ReduceMean", "x", "y", axes=[2, 3], keepdims=0)], (2, 3)),
    "ReduceSum-11": (11, [node("ReduceSum", "x", "y", axes=[-1])], (2, 3, 8, 1)),
    "ReduceMax-13": (13, [node("ReduceMax", "x", "y", axes=[1])], (2, 1, 8, 8)),
    "Split-2": (7, [node("Split", "x", "y z", axis=2, split=[3, 5])], (2, 3, 3, 8)),
    "Split-13": (13, [node("Split", "x", "y z", axis=2)], (*HALF[:3], 8)),
    "Split-18": (18, [node("Split", "x", "y z", axis=2, num_outputs=2)], (*HALF[:3], 8)),
    "TopK-1": (7, [node("TopK", "x", "y z", k=3)], (2, 3, 8, 3)),
    "TopK-10": (10, [node("TopK", "x two", "y z")], (2, 3, 8, 2)),
    "LessOrEqual-12": (14, [node("LessOrEqual", "x low", "h"), node("Where", "h x low", "y")], SAME),
    "Clip-6": (7, [node("Clip", "x", "y", min=0.0, max=6.0)], SAME),
    "Clip-11": (11, [node("Clip", "x low high", "y")], SAME),
    "Tile-6": (7, [node("Tile", "x again", "y")], BIG),
    "Gemm-7": (7, [node("Flatten", "x", "h"), node("Gemm", "h w row", "y")], (2, 10)),
    "PRelu-7": (7, [node("PRelu", "x slope", "y")], SAME),
    "Softmax-1": (7, [node("Softmax", "x", "y", axis=1)], SAME),
    "Reshape-5": (7, [node("Reshape", "x flat", "y")], (2, 192)),
    "AveragePool-7": (7, [node("AveragePool", "x", "y", count_include_pad=1, **POOL)], HALF),
    "MaxPool-8": (8, [node("MaxPool", "x", "y i", **POOL)], HALF),
    "GRU-7": (7, [node("Reshape", "x steps", "h"), node("GRU", "h gw gr", "y", hidden_size=4)], (16, 1, 2, 4)),
    "LSTM-7": (7, [node("Reshape", "x steps", "h"), node("LSTM", "h lw lr", "y", hidden_size=4)], (16, 1, 2, 4)),
    "RNN-7": (7, [node("Reshape", "x steps", "h"), node("RNN", "h rw rr", "y", hidden_size=4)], (16, 1, 2, 4)),
    "GroupNormalization-18": (18, [node("GroupNormalization", "x s b", "y", num_groups=3)], SAME),
    "MeanVarianceNormalization-9": (9, [node("MeanVarianceNormalization", "x", "y", axes=[0, 2, 3])], SAME),
}


def spelling(which: str) -> onnx.ModelProto:
    opset, nodes, _ = SPELLINGS[which]
    return model(nodes, IMAGE, weights=WEIGHTS, constants=CONSTANTS, opset=opset)


@pytest.mark.parametrize("which", SPELLINGS)
def test_the_shape_of(tmp_path: Path, which: str) -> None:
    graph = read(spelling(which), tmp_path)
    assert graph.tensors[graph.outputs[0]].shape == SPELLINGS[which][2]


@pytest.mark.parametrize("which", SPELLINGS)
def test_the_training_semantics_are_known_of(tmp_path: Path, which: str) -> None:
    notes = derive_backward(read(spelling(which), tmp_path)).assumed
    assert [note for note in notes if "no rule" in note] == []


# --- element types ----------------------------------------------------------------------------------------------------

NBYTES = {
    **dict.fromkeys(("COMPLEX128",), 80), **dict.fromkeys(("DOUBLE", "INT64", "UINT64", "COMPLEX64"), 40),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 20), **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 10),
    **dict.fromkeys(("BOOL", "INT8", "UINT8", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 5),
    "FLOAT8E8M0": 5, **dict.fromkeys(("UINT4", "INT4", "FLOAT4E2M1"), 3), **dict.fromkeys(("UINT2", "INT2"), 2),
}  # fmt: skip
"""Of five elements."""


def number(kind: str) -> int:
    return int(TensorProto.DataType.Value(kind))


@pytest.mark.parametrize("kind", NBYTES)
def test_an_initializer_has_the_size_of_its_type(tmp_path: Path, kind: str) -> None:
    proto = model([node("Identity", "w", "v"), node("Relu", "x", "y")], {"x": [5]}, "y v", opset=25)
    contents = bytes(NBYTES[kind])
    proto.graph.initializer.append(TensorProto(name="w", data_type=number(kind), dims=[5], raw_data=contents))
    assert tensor(read(proto, tmp_path), "v").nbytes == NBYTES[kind]


@pytest.mark.parametrize("kind", NBYTES)
def test_an_input_has_the_size_of_its_type(tmp_path: Path, kind: str) -> None:
    proto = model([node("Identity", "x", "y")], {"x": [5]}, input_type=number(kind), opset=25)
    assert tensor(read(proto, tmp_path), "x").nbytes == NBYTES[kind]


def test_a_type_whose_packing_is_not_settled_is_refused_by_name(tmp_path: Path) -> None:
    proto = model([node("Identity", "x", "y")], {"x": [5]}, input_type=number("FLOAT6E2M3"))
    with pytest.raises(UnsupportedOpError, match='input "x" has element type float6e2m3'):
        read(proto, tmp_path)


def test_a_weight_with_half_of_its_contents_is_refused(tmp_path: Path) -> None:
    proto = model([node("Mul", "x w", "y")], {"x": [2, 4]}, weights={"w": (4,)})
    proto.graph.initializer[0].raw_data = bytes(8)
    with pytest.raises(InvalidModelError, match="cannot be decoded"):
        read(proto, tmp_path)
