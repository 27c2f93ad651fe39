"""Exports of torch's older exporter record nothing: what they leave to tell is read so that no step needs more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ogc_plan.planner.graph import Graph, Role
from ogc_plan.planner.model import load_model
from ogc_plan.planner.onnx_import.reader import read_onnx
from torch import Tensor, nn
from torch.nn import functional as F

from models.fidelity.step import simulated_peaks
from models.meters.storage_meter import measure_step
from tests.modules.exported_modules import WIDTH, WITH_TEMPORARIES, Build, Given, linear, tokens

pytestmark = pytest.mark.filterwarnings("ignore")
SCALAR_NBYTES = 16  # the loss of the measured step


def with_parameter(forward: Callable[[nn.Module, Tensor], Tensor], *shape: int) -> Build:
    """A parameter ``p`` of that shape between two linear layers."""
    return lambda: (
        Given(
            lambda module, value: module.second(forward(module, module.first(value))),
            first=linear(), second=linear(), p=nn.Parameter(torch.rand(shape)),
        ),
        tokens(),
    )  # fmt: skip


MODULES: dict[str, Build] = {
    "difference": with_parameter(lambda module, value: (value - module.p).sin(), WIDTH),
    "quotient": with_parameter(lambda module, value: value / (module.p + 1), WIDTH),
    "maximum": with_parameter(lambda module, value: torch.maximum(value, module.p), WIDTH),
    "where": with_parameter(lambda module, value: torch.where(value > 0, value, module.p), WIDTH),
    "scale of one number": with_parameter(lambda module, value: value * module.p),
    "exponential of one number": with_parameter(lambda module, value: value * module.p.exp()),
    "exponential": with_parameter(lambda module, value: value * module.p.exp(), WIDTH),
    "softmax of a weight": with_parameter(lambda module, value: value @ module.p.softmax(-1), WIDTH, WIDTH),
    "class token": with_parameter(
        lambda module, value: torch.cat([module.p.expand(value.shape[0], -1, -1), value], 1), 1, 1, WIDTH
    ),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(linear()), tokens()),
    "softmax in float32": WITH_TEMPORARIES["a softmax in float32 of bfloat16"],
    "log-softmax in float32": WITH_TEMPORARIES["a log-softmax in float32 of bfloat16"],
    "sum of a linear layer": WITH_TEMPORARIES["a sum of what a linear layer makes"],
}
FUSED = {"weight norm"}
"""What one kernel of torch does and the file spells out, so that more is simulated."""


def built(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    module, example = MODULES[name]()
    return module.train(), example


def exported(module: nn.Module, example: Tensor, folder: Path) -> Path:
    path = folder / "model.onnx"
    torch.onnx.export(
        module, (example,), path, dynamo=False, opset_version=17, do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING,
    )  # fmt: skip
    return path


def parameters_of(graph: Graph) -> int:
    """Elements of all parameters."""
    made = {output for op in graph.ops for output in op.outputs}
    found = {t.storage: t.numel for i, t in enumerate(graph.tensors) if t.role is Role.PARAMETER and i not in made}
    return sum(found.values())


@pytest.mark.parametrize("name", MODULES)
def test_every_parameter_is_found(name: str, tmp_path: Path) -> None:
    module, example = built(name)
    graph = read_onnx(exported(module, example, tmp_path))
    assert parameters_of(graph) == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", MODULES)
def test_a_step_needs_no_more_than_is_simulated(name: str, tmp_path: Path) -> None:
    module, example = built(name)
    measured = measure_step(module, (example,)).activations.nbytes - SCALAR_NBYTES
    _, simulated = simulated_peaks(load_model(exported(*built(name), tmp_path), device="cpu"))
    assert measured <= simulated <= (2.4 if name in FUSED else 1.2) * measured


CONSTANTS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "numbers of a formula": lambda module, value: module.first(value) * 0.5 / 3.0 - 1e-5,
    "a number computed from a shape": lambda module, value: module.first(value) / value.shape[-1] ** 0.5,
    "what fills a mask": lambda module, value: module.first(value).masked_fill(value > 0, float("-inf")),
    "mean and deviation of the data": lambda module, value: module.first((value - module.mean) / module.deviation),
    "a gelu": lambda module, value: F.gelu(module.first(value)),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_of_arithmetic_is_no_parameter(name: str, tmp_path: Path) -> None:
    buffers = {"mean": nn.Buffer(torch.rand(WIDTH)), "deviation": nn.Buffer(torch.rand(WIDTH) + 1)}
    module = Given(CONSTANTS[name], first=linear(), **buffers)
    assert parameters_of(read_onnx(exported(module, tokens(), tmp_path))) == WIDTH * WIDTH + WIDTH
