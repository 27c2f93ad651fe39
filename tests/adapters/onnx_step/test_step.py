"""Whole steps in ONNX: the plan's recomputations, losses, statistics, masks, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from ogc_plan.adapters.onnx_step.losses import Loss
from ogc_plan.adapters.onnx_step.node_memory import node_peak
from ogc_plan.adapters.onnx_step.step_file import step_file
from ogc_plan.adapters.pytorch import export, from_onnx
from ogc_plan.planner import load_model, plan
from ogc_plan.planner.errors import UnsupportedOpError, UsageError
from onnx import helper
from torch import nn

from tests.adapters.onnx_module.test_training import convolutions, of_torch
from tests.adapters.onnx_step.gradient_cases import apart, in_onnx_runtime, in_torch, written
from tests.files.onnx_models import model, node, save

pytestmark = pytest.mark.values


def images(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 8, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("budget", ["100%", "60%", "min"])
def test_the_gradients_of_a_convolutional_network_are_those_of_torch(budget: str, tmp_path: Path) -> None:
    path = convolutions(tmp_path, 4)
    module, step = from_onnx(path, batch=4), written(path, budget, batch=4)
    theirs = in_torch(module, [images()], step)
    assert apart(in_onnx_runtime(step, {"x": images().numpy(), **theirs.seeds}), theirs.gradients, step) < 3e-5


class _Block(nn.Module):
    """Attention, layer norms and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.qkv = nn.LayerNorm(16), nn.LayerNorm(16), nn.Linear(16, 48)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


@pytest.mark.parametrize("options", [{"dynamo": False}, {"dynamo": True, "optimize": False}], ids=["old", "new"])
def test_the_gradients_of_a_transformer_block_are_those_of_torch(options: dict[str, bool], tmp_path: Path) -> None:
    given = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(0))
    _, module = of_torch(_Block, given, tmp_path, opset_version=18, **options)
    step = written(tmp_path / "model.onnx", "min")
    theirs = in_torch(module, [given], step)
    feed = {module.input_names[0]: given.numpy(), **theirs.seeds}
    assert apart(in_onnx_runtime(step, feed), theirs.gradients, step) < 1e-5


def test_a_rotary_embedding_is_turned_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    angles = random.normal(size=(2, 3, 2)).astype(np.float32)
    nodes = [node("MatMul", "x a", "h"), node("RotaryEmbedding", "h cos sin", "y", num_heads=2)]
    proto = model(nodes, {"x": (2, 3, 4)}, weights={"a": (4, 8)}, opset=23,
                  constants={"cos": np.cos(angles), "sin": np.sin(angles)})  # fmt: skip
    weight = random.normal(size=(4, 8)).astype(np.float32)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "a"))
    path = save(proto, tmp_path)
    module, step = from_onnx(path), written(path)
    given = torch.from_numpy(random.normal(size=(2, 3, 4)).astype(np.float32))
    theirs = in_torch(module, [given], step)
    assert apart(in_onnx_runtime(step, {"x": given.numpy(), **theirs.seeds}), theirs.gradients, step) < 1e-5


def test_each_recomputation_is_a_node_of_its_own(tmp_path: Path) -> None:
    path = convolutions(tmp_path, 4)
    file = load_model(path, batch=4)
    made = plan(file, "min", effort="fast")
    step = onnx.load_from_string(step_file(made, file, str(path)).content)
    again = {entry.name.partition("/")[0] for entry in step.graph.node if "/again" in entry.name}
    assert again == set(made.recomputed)


def test_statistics_move_once_although_the_norm_runs_again(tmp_path: Path) -> None:
    path = convolutions(tmp_path, 2)
    file = load_model(path, batch=4)
    assert any("BatchNormalization" in name or "Batch" in name for name in plan(file, "min").recomputed)
    step = written(path, "min", "mse", batch=4)
    made = in_onnx_runtime(step, {"x": images().numpy(), "target": np.zeros((4, 4), np.float32)})
    module = from_onnx(path, batch=4)
    module(images())
    for key, name in module.onnx_names.items():
        if name in step.about["statistics"]:
            mine = made[step.about["statistics"][name]]
            np.testing.assert_allclose(mine, module.get_buffer(key), rtol=1e-5, atol=1e-6)


def test_a_recomputed_dropout_drops_the_same_elements(tmp_path: Path) -> None:
    """Two wide layers between narrow ones: within the least memory the first is dropped, its mask with it."""
    nodes = [node("MatMul", "x a", "h"), node("Dropout", "h", "d"), node("MatMul", "d b", "i")]
    nodes += [node("MatMul", "i c", "j"), node("Tanh", "j", "t"), node("MatMul", "t e", "y")]
    weights = {"a": (16, 512), "b": (512, 4), "c": (4, 512), "e": (512, 2)}
    proto = model(nodes, {"x": (8, 16)}, weights=weights)
    random = np.random.default_rng(0)
    for entry in proto.graph.initializer:
        filled = random.normal(size=tuple(entry.dims)).astype(np.float32)
        entry.CopyFrom(onnx.numpy_helper.from_array(filled, entry.name))
    path = save(proto, tmp_path)
    feed = {"x": random.normal(size=(8, 16)).astype(np.float32), "target": np.zeros((8, 2), np.float32)}
    file = load_model(path)
    whole, least = plan(file, "100%"), plan(file, "min")
    assert any("Dropout" in name for name in least.recomputed)
    made = [in_onnx_runtime(step_file(each, file, str(path), Loss("mse")), feed) for each in (whole, least)]
    assert all(np.array_equal(made[0][name], made[1][name]) for name in made[0])


@pytest.mark.parametrize("kind", ["mse", "cross_entropy"])
def test_a_loss_is_that_of_torch(kind: str, tmp_path: Path) -> None:
    path = convolutions(tmp_path, 1)
    step, module = written(path, "100%", kind, batch=4), from_onnx(path, batch=4)
    output = module(images())
    target = torch.tensor([0, 3, 1, 1]) if kind == "cross_entropy" else torch.ones(4, 4)
    loss = (nn.functional.cross_entropy if kind == "cross_entropy" else nn.functional.mse_loss)(output, target)
    loss.backward()
    made = in_onnx_runtime(step, {"x": images().numpy(), "target": target.numpy()})
    np.testing.assert_allclose(made["loss"], loss.item(), rtol=1e-6)
    np.testing.assert_allclose(made["gradient of head"], module.get_parameter("head").grad, rtol=1e-4, atol=1e-6)


def test_an_op_without_a_gradient_function_is_refused_by_its_node(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "h"), node("Det", "h", "y", node_name="last")], {"x": (4, 4)},
                  weights={"w": (4, 4)})  # fmt: skip
    with pytest.raises(
        UnsupportedOpError, match=r'node "last" \(Det\) cannot be part of an ONNX training step'
    ) as found:
        written(save(proto, tmp_path))
    assert found.value.exit_code == 4


@pytest.mark.parametrize(
    ("loss", "told"),
    [(Loss("hinge"), "loss 'hinge' is unknown"), (Loss("mse", "z"), "--loss-output 'z' is no output"),
     (Loss("cross_entropy", None, 7), "--class-axis 7 is no dimension")],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_refused(loss: Loss, told: str, tmp_path: Path) -> None:
    path = convolutions(tmp_path, 1)
    file = load_model(path, batch=4)
    with pytest.raises(UsageError) as found:
        step_file(plan(file, "100%"), file, str(path), loss)
    assert told in found.value.message


def test_a_plan_of_annotations_is_refused(tmp_path: Path) -> None:
    export(nn.Linear(4, 4), (torch.zeros(2, 4),), tmp_path / "model.onnx")
    file = load_model(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedOpError, match="planned by its annotations"):
        step_file(plan(file, "100%"), file, str(tmp_path / "model.onnx"))


def test_the_peak_of_nodes_counts_what_is_alive_while_one_runs() -> None:
    made = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"], name="n")]
    peak = node_peak(made, {"a": 8, "b": 8}, {"b"})
    assert (peak.nbytes, peak.node) == (16, "n")


def test_a_node_that_writes_over_its_input_and_one_that_shares_it_add_nothing_to_the_peak() -> None:
    made = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "s"], ["c"]),
    ]
    assert node_peak(made, {"a": 8, "b": 8, "c": 8}, {"c"}).nbytes == 8


def test_a_view_is_made_anew_where_it_is_read_and_not_held_till_then(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x a", "h"), node("Transpose", "h", "t", perm=[0, 2, 1]), node("MatMul", "x b", "u")]
    proto = model([*nodes, node("MatMul", "t u", "y")], {"x": (2, 3, 4)}, weights={"a": (4, 5), "b": (4, 6)})
    step = onnx.load_from_string(written(save(proto, tmp_path)).content)
    copies = [entry.output[0] for entry in step.graph.node if entry.output[0].partition("~")[0] == "t"]
    assert copies == ["t", "t~2"]


def test_fewer_results_are_alive_at_once_within_a_budget(tmp_path: Path) -> None:
    path = convolutions(tmp_path, 6)
    file = load_model(path, batch=32)
    whole, half = plan(file, "100%"), plan(file, "60%")
    peaks = [step_file(made, file, str(path), Loss("gradients")).peak.nbytes for made in (whole, half)]
    saved = whole.peak.total_nbytes - half.peak.total_nbytes
    assert 0.9 * saved < peaks[0] - peaks[1] < 1.1 * saved
