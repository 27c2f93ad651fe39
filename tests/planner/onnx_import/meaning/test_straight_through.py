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


CORRECTED = {
    "h s": ([node("Round", "h", "r"), node("Sub", "r h", "s"), node("Add", "h s", "y")], True),
    "s h": ([node("Sign", "h", "r"), node("Sub", "r h", "s"), node("Add", "s h", "y")], True),
    "copies": ([node("Round", "h", "r"), node("Identity", "h", "i"), node("Sub", "r i", "s"),
                node("Identity", "s", "j"), node("Add", "j h", "y")], True),
    "steps of its own size": ([node("ReduceMax", "h", "m"), node("Div", "h m", "a"), node("Round", "a", "c"),
                               node("Mul", "c m", "r"), node("Sub", "r h", "s"), node("Add", "h s", "y")], True),
    "a pair": ([node("QuantizeLinear", "h scale zero", "q"), node("DequantizeLinear", "q scale zero", "r"),
                node("Sub", "r h", "s"), node("Add", "h s", "y")], True),
    "the tensor before": ([node("Tanh", "h", "t"), node("Sign", "h", "r"), node("Sub", "r t", "s"),
                           node("Add", "t s", "y")], True),
    "a cast": ([node("Cast", "h", "i", to=7), node("Cast", "i", "r", to=1), node("Sub", "r h", "s"),
                node("Add", "h s", "y")], True),
    "a cast of weights": ([node("Cast", "b", "i", to=7), node("Cast", "i", "r", to=1), node("Sub", "r b", "s"),
                           node("Add", "b s", "e"), node("MatMul", "h e", "y")], True),
    "a threshold": ([node("Greater", "h scale", "c"), node("Where", "c scale offset", "r"), node("Sub", "r h", "s"),
                     node("Add", "h s", "y")], True),
    "a codebook": ([node("MatMul", "h b", "d"), node("ArgMax", "d", "i", axis=1, keepdims=0),
                    node("Gather", "b i", "r"), node("Sub", "r h", "s"), node("Add", "h s", "y")], True),
    "another term": ([node("Round", "h", "r"), node("Sub", "r h", "s"), node("Add", "x s", "y")], False),
    "no rounding": ([node("Tanh", "h", "r"), node("Sub", "r h", "s"), node("Add", "h s", "y")], False),
    "a layer": ([node("MatMul", "h b", "r"), node("Sub", "r h", "s"), node("Add", "h s", "y")], False),
    "a layer behind": ([node("Round", "h", "a"), node("MatMul", "a b", "r"), node("Sub", "r h", "s"),
                        node("Add", "h s", "y")], False),
    "a choice": ([node("Greater", "h scale", "c"), node("Where", "c h scale", "r"), node("Sub", "r h", "s"),
                  node("Add", "h s", "y")], False),
    "a rounding of another tensor": ([node("MatMul", "x b", "o"), node("Round", "o", "r"), node("Sub", "r h", "s"),
                                      node("Add", "h s", "y")], False),
    "a mean": ([node("ReduceMean", "h", "m"), node("Sub", "h m", "s"), node("Add", "m s", "y")], False),
    "a rounded mean": ([node("ReduceMean", "h", "m"), node("Round", "h", "r"), node("Sub", "r m", "s"),
                        node("Add", "m s", "y")], False),
    "another reader": ([node("Round", "h", "r"), node("Sub", "r h", "s"), node("Add", "h s", "z"),
                        node("Mul", "s z", "y")], False),
    "a reader of a copy": ([node("Round", "h", "r"), node("Sub", "r h", "s"), node("Identity", "s", "j"),
                            node("Add", "h j", "z"), node("Mul", "j z", "y")], False),
    "a reader beside a copy": ([node("Round", "h", "r"), node("Sub", "r h", "s"), node("Identity", "s", "j"),
                                node("Add", "h j", "z"), node("Mul", "s z", "y")], False),
    "a choice of weights": ([node("Greater", "b scale", "c"), node("Where", "c b scale", "r"), node("Sub", "r b", "s"),
                             node("Add", "b s", "e"), node("MatMul", "h e", "y")], False),
}  # fmt: skip


@pytest.mark.parametrize("what", CORRECTED)
def test_the_difference_of_a_tensor_and_its_rounding_that_is_added_to_it_has_no_gradient(
    what: str, tmp_path: Path
) -> None:
    nodes, stopped = CORRECTED[what]
    proto = model([node("MatMul", "x w", "h"), *nodes], {"x": (8, 8)}, weights={"w": (8, 8), "b": (8, 8)},
                  constants={"scale": np.float32(0.1), "zero": np.int8(0), "offset": np.float32(0.2)})  # fmt: skip
    made = load_model(save(proto, tmp_path), device="cpu").training
    assert [op.backward is None for op in made.ops if op.op_type == "Sub"] == [stopped]


@pytest.mark.parametrize(
    ("scale", "zero", "pairs"),
    [("same", "_", 1), ("other", "zero", 0), ("scale", "one", 0), ("scale", "_", 1), ("scale", "zero", 1)],
)
def test_only_equal_scales_and_zero_points_make_a_pair(scale: str, zero: str, pairs: int, tmp_path: Path) -> None:
    numbers = {"scale": np.float32(0.1), "same": np.float32(0.1), "other": np.float32(0.2)}
    nodes = [node("MatMul", "x w", "h"), node("QuantizeLinear", "h scale zero", "q"),
             node("DequantizeLinear", f"q {scale} {zero}", "d"), node("MatMul", "d v", "y")]  # fmt: skip
    proto = model(nodes, {"x": (4, 8)}, weights={"w": (8, 8), "v": (8, 8)},
                  constants={**numbers, "zero": np.int8(0), "one": np.int8(1)})  # fmt: skip
    made = load_model(save(proto, tmp_path))
    unequal = [sentence for sentence in made.training.assumed if "unequal scales or zero points" in sentence]
    assert (len(unequal), trained(made)) == (1 - pairs, {"w", "v"} if pairs else {"v"})


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
