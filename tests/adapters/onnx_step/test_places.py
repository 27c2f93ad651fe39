"""Ops of which torch, ONNX Runtime and the onnx library have different ideas: which elements they take, how many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from ogc_plan.adapters.pytorch import from_onnx
from onnxruntime import InferenceSession

from tests.adapters.onnx_step.gradient_cases import apart, in_onnx_runtime, in_torch, written
from tests.files.onnx_models import model, node, save

pytestmark = pytest.mark.values

_HOW = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")
_ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_SCALES = {(1.7, 0.6): (13, 36), (1.3, 1.1): (31, 30)}


def _resized(scales: tuple[float, ...], size: tuple[int, int], **settings: Any) -> onnx.ModelProto:
    given = {"s": np.array((1, 1, *scales), np.float32)}
    return _model(node("Resize", "h _ s", "y", **settings), given, size)


def _model(last: onnx.NodeProto, constants: dict[str, Any], size: tuple[int, ...], opset: int = 19) -> onnx.ModelProto:
    """A trained factor of each channel in front of an op."""
    made = model([node("Mul", "x w", "h"), last], {"x": (2, 3, *size)}, constants=constants, opset=opset)
    weight = np.arange(1, 4, dtype=np.float32).reshape(3, *(1,) * len(size))
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    made.ir_version = 10
    return made


_NEAREST = {
    f"{how}-{rounding}-{scales[0]}": _resized(
        scales, size, coordinate_transformation_mode=how, nearest_mode=rounding, mode="nearest"
    )
    for how in _HOW
    for rounding in _ROUNDING
    for scales, size in _SCALES.items()
}
_SMOOTH = {
    f"linear-{how}": _resized((1.7, 0.6), (13, 11), coordinate_transformation_mode=how, mode="linear")
    for how in ("half_pixel", "asymmetric", "half_pixel_symmetric")
}
_COPIED = {"copied": _resized((1.0, 1.2), (5, 4), mode="nearest", nearest_mode="floor")}
_PADDED = {
    f"{mode}-{pads}": _model(node("Pad", "h p", "y", mode=mode), {"p": np.array([0, 0, *pads])}, (9, 7))
    for mode in ("wrap", "edge", "reflect")
    for pads in ((1, 2, 0, 0, 3, -2), (-1, -2, 0, 0, 3, 2))
} | {"wrap-twice": _model(node("Pad", "h p", "y", mode="wrap"), {"p": np.array([0, 0, 0, 0, 0, 17])}, (8,))}
_POOLED = {
    f"{op}-{opset}": _model(
        node(op, "h", "y", kernel_shape=(2, 2), strides=(2, 3), pads=(1, 0, 1, 0), ceil_mode=1), {}, (9, 9), opset
    )
    for op in ("MaxPool", "AveragePool")
    for opset in (12, 19, 22)
}
"""A further window would begin in the pad behind, and in the second dimension behind the input."""
_SHRUNK = {
    f"shrink-{bias}": _model(node("Shrink", "h", "y", bias=bias, lambd=0.4), {}, (5, 4)) for bias in (0.0, 0.2, 0.4)
}
CASES = _NEAREST | _SMOOTH | _COPIED | _PADDED | _POOLED | _SHRUNK


def _arguments(name: str) -> torch.Tensor:
    dims = CASES[name].graph.input[0].type.tensor_type.shape.dim
    return torch.randn([dim.dim_value for dim in dims], generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_a_module_takes_the_elements_that_onnx_runtime_takes(name: str, tmp_path: Path) -> None:
    path, x = save(CASES[name], tmp_path), _arguments(name)
    theirs = InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(from_onnx(path)(x).detach().numpy(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_step_gives_the_gradient_of_the_elements_taken(name: str, tmp_path: Path) -> None:
    path, x = save(CASES[name], tmp_path), _arguments(name)
    module, step = from_onnx(path), written(path)
    theirs = in_torch(module, [x], step)
    assert apart(in_onnx_runtime(step, {"x": x.numpy(), **theirs.seeds}), theirs.gradients, step) < 1e-5
