"""Fake quantisation passes its gradient straight through, as torch's does, and saves a mask; a detach stops it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from ogc_plan.planner.model import Model, load_model
from onnx import numpy_helper
from torch import Tensor, nn

from models.export import export_module
from models.meters.storage_meter import LOSS_NBYTES, measure_step
from tests.files.onnx_models import model, node, save


def by_tensor(weight: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(weight, 0.1, 0, -128, 127)


def by_channel(weight: Tensor) -> Tensor:
    rows = weight.shape[0]
    zero = torch.zeros(rows, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight, torch.full((rows,), 0.1), zero, 0, -128, 127)


def by_hand(value: Tensor) -> Tensor:
    return value + (torch.round(value / 0.1) * 0.1 - value).detach()


class Quantised(nn.Module):
    """Three layers whose activations and weights are quantised before they are used."""

    def __init__(self, activations: Callable[[Tensor], Tensor], weights: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((60, 40), (40, 40), (40, 20)))
        self._quantised = activations, weights

    def forward(self, x: Tensor) -> Tensor:
        activations, weights = self._quantised
        for layer in self.layers:
            x = F.relu(F.linear(activations(x), weights(layer.weight), layer.bias))
        return x


def same(value: Tensor) -> Tensor:
    return value


@pytest.mark.parametrize(
    ("activations", "weights"), [(by_tensor, by_tensor), (by_tensor, by_channel), (same, by_hand), (by_hand, same)]
)
def test_a_step_of_fake_quantisation_has_the_peak_and_the_gradients_of_torch(
    activations: Callable[[Tensor], Tensor], weights: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    net, inputs = Quantised(activations, weights), (torch.randn(100, 60),)
    measured = measure_step(net, inputs).activations.nbytes - LOSS_NBYTES
    trained = sum(parameter.nbytes for parameter in net.parameters() if parameter.grad is not None)
    path = tmp_path / "module.onnx"
    path.write_bytes(export_module(Quantised(activations, weights), inputs, opset=23).SerializeToString())
    planned = load_model(path, device="cpu")
    peak = planned.store_all().peak_activation_nbytes
    assert (planned.training.parameter_gradient_nbytes, peak) == (trained, pytest.approx(measured, rel=0.02))


def loaded(nodes: list[onnx.NodeProto], folder: Path, **weights: tuple[int, ...]) -> Model:
    proto = model(nodes, {"x": (4, 8)}, weights=weights, constants={"scale": np.float32(0.1), "zero": np.int8(0)})
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((8, 8), np.int8), "stored"))
    return load_model(save(proto, folder))


def trained(made: Model) -> set[str]:
    return {gradient.name.removeprefix("gradient of ") for gradient in made.training.gradients if gradient.parameter}


def test_a_pair_without_records_passes_the_gradient_to_the_weight_behind_it(tmp_path: Path) -> None:
    nodes = [node("QuantizeLinear", "w scale zero", "q"), node("DequantizeLinear", "q scale zero", "d"),
             node("MatMul", "x d", "y")]  # fmt: skip
    assert trained(loaded(nodes, tmp_path, w=(8, 8))) == {"w"}


def test_a_quantised_value_that_others_read_too_stays(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("QuantizeLinear", "h scale zero", "q"), node("Cast", "q", "c", to=1),
             node("DequantizeLinear", "q scale zero", "d"), node("Add", "d c", "y")]  # fmt: skip
    made = loaded(nodes, tmp_path, w=(8, 8)).graph
    assert made is not None
    assert [op.op_type for op in made.ops] == ["MatMul", "QuantizeLinear", "Cast", "fake_quantize", "Add"]


def test_a_weight_stored_as_integers_is_said_not_to_be_trained(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", "stored scale zero", "d"), node("MatMul", "x d", "h"), node("MatMul", "h w", "y")]
    made = loaded(nodes, tmp_path, w=(8, 8))
    said = [sentence for sentence in made.training.assumed if "stored as integers" in sentence]
    assert (trained(made), len(said), '"stored"' in said[0]) == ({"w"}, 1, True)


@pytest.mark.parametrize(("total", "stopped"), [("h s", ["Sub"]), ("s h", ["Sub"]), ("x s", [])])
def test_a_difference_that_is_added_to_what_it_was_taken_from_has_no_gradient(
    total: str, stopped: list[str], tmp_path: Path
) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Tanh", "h", "r"), node("Sub", "r h", "s"), node("Add", total, "y")]
    made = loaded(nodes, tmp_path, w=(8, 8)).training
    assert [op.op_type for op in made.ops if op.backward is None and op.op_type == "Sub"] == stopped


def test_a_clip_between_belongs_to_the_pair(tmp_path: Path) -> None:
    nodes = [node("QuantizeLinear", "w scale zero", "q"), node("Clip", "q zero zero", "c"),
             node("DequantizeLinear", "c scale zero", "d"), node("MatMul", "x d", "y")]  # fmt: skip
    made = loaded(nodes, tmp_path, w=(8, 8)).graph
    assert made is not None
    assert [op.op_type for op in made.ops] == ["fake_quantize", "MatMul"]


def test_a_quantised_value_of_another_shape_is_no_pair(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("QuantizeLinear", "h scale zero", "q"), node("Transpose", "q", "t"),
             node("DequantizeLinear", "t scale zero", "d"), node("Add", "d b", "y")]  # fmt: skip
    made = loaded(nodes, tmp_path, w=(8, 8), b=(4,))
    assert (trained(made), made.training.assumed[0][:17]) == ({"b"}, "gradients stop at")
