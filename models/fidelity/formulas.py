"""Layers that exporters write as formulas: the peak read from each exporter and opset, against a real step's.

Each layer stands three times between linear layers or convolutions. The measured step is metered by storages, so the
scratch of convolutions and batch norms, which only an allocator sees, is left out of the planned peak.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import onnx
import torch
from ogc_plan.planner.model import Model, load_model, store_all_timeline
from torch import Tensor, nn
from torch.nn import functional as F

from models.export import export_module, quiet
from models.meters.storage_meter import LOSS_NBYTES, measure_step
from models.reporting.command_line import add_names
from models.reporting.result_record import publish
from models.reporting.result_table import table

PAIRS = (
    ("TorchScript", 11), ("TorchScript", 14), ("TorchScript", 17), ("dynamo", 18), ("dynamo", 20), ("dynamo", 23),
)  # fmt: skip
GOAL_PERCENT = 5.0
_SCRATCH = frozenset({"Conv", "ConvTranspose", "BatchNormalization"})
_WIDTH = 64
Layer = Callable[[], nn.Module]


class _Call(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, value: Tensor) -> Tensor:
        return self._function(value)


class _Heads(nn.Module):
    """Scaled dot-product attention of four heads over what a linear layer makes."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.project, self.causal = nn.Linear(_WIDTH, 3 * _WIDTH), causal

    def forward(self, value: Tensor) -> Tensor:
        query, key, content = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.project(value).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, content, is_causal=self.causal)
        return mixed.transpose(1, 2).flatten(2)


class _ByHand(nn.Module):
    """An RMS norm as language models write it themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(_WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return self.weight * (value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + 1e-6))


def _of(function: Callable[..., Tensor], *arguments: object, **options: object) -> Layer:
    return lambda: _Call(lambda value: function(value, *arguments, **options))


class _Experts(nn.Module):
    """Four experts, each of which takes the same number of tokens and adds what it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.weights = nn.Linear(_WIDTH, 4), nn.Parameter(torch.rand(4, _WIDTH, _WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        rows = value.flatten(0, 1)
        gates, chosen = self.router(rows).softmax(-1).topk(128, 0)
        made = torch.bmm(rows[chosen.t()], self.weights) * gates.t().unsqueeze(-1)
        return torch.zeros_like(rows).index_add(0, chosen.t().flatten(), made.flatten(0, 1)).view(value.shape)


class _Loss(nn.Module):
    """What a loss without a reduction makes of a value and a fixed target."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss, self.target = loss, nn.Buffer(torch.randn(8, 64, _WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        lost: Tensor = self.loss(value, self.target)
        return lost


def _to_lerp(value: Tensor) -> Tensor:
    return torch.lerp(value, value.flip(0), 0.25)


TOKENS: dict[str, Layer] = {
    "ReLU": nn.ReLU, "LeakyReLU": nn.LeakyReLU, "PReLU": nn.PReLU, "ELU": nn.ELU, "SELU": nn.SELU, "CELU": nn.CELU,
    "GELU": nn.GELU, "GELU tanh": lambda: nn.GELU("tanh"), "SiLU": nn.SiLU, "Mish": nn.Mish,
    "Hardshrink": nn.Hardshrink, "Softshrink": nn.Softshrink, "Threshold": lambda: nn.Threshold(0.1, 20.0),
    "Hardswish": nn.Hardswish, "Hardsigmoid": nn.Hardsigmoid, "Sigmoid": nn.Sigmoid, "Tanh": nn.Tanh,
    "Softplus": nn.Softplus, "Softsign": nn.Softsign, "LogSigmoid": nn.LogSigmoid, "Hardtanh": nn.Hardtanh,
    "GLU": lambda: nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GLU()),
    "Softmax": lambda: nn.Softmax(-1), "LogSoftmax": lambda: nn.LogSoftmax(-1),
    "LayerNorm": lambda: nn.LayerNorm(_WIDTH),
    "LayerNorm without affine": lambda: nn.LayerNorm(_WIDTH, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm(_WIDTH, eps=1e-6),
    "RMS norm by hand": _ByHand,
    "GroupNorm of tokens": lambda: _Call(_grouped),
    "Huber loss": lambda: _Loss(nn.HuberLoss("none")),
    "SmoothL1 loss": lambda: _Loss(nn.SmoothL1Loss(reduction="none")),
    "lerp": _of(_to_lerp),
    "mixture of experts": _Experts,
    "attention": lambda: _Heads(causal=False), "causal attention": lambda: _Heads(causal=True),
}  # fmt: skip
"""Layers between linear ones."""


def _grouped(value: Tensor) -> Tensor:
    return F.group_norm(value.transpose(1, 2), 4).transpose(1, 2)


IMAGES: dict[str, Layer] = {
    "Conv2d": lambda: nn.Conv2d(16, 16, 3, padding=1),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(16, 16, 2, stride=2),
    "MaxPool2d": lambda: nn.MaxPool2d(2), "AvgPool2d": lambda: nn.AvgPool2d(2),
    "AdaptiveAvgPool2d to 1": lambda: nn.AdaptiveAvgPool2d(1),
    "AdaptiveAvgPool2d to a divisor": lambda: nn.AdaptiveAvgPool2d(12),
    "AdaptiveAvgPool2d to the same": lambda: nn.AdaptiveAvgPool2d(24),
    "AdaptiveAvgPool2d to 7": lambda: nn.AdaptiveAvgPool2d(7),
    "AdaptiveAvgPool2d to more": lambda: nn.AdaptiveAvgPool2d(28),
    "AdaptiveMaxPool2d to a divisor": lambda: nn.AdaptiveMaxPool2d(12),
    "nearest": _of(F.interpolate, scale_factor=2.0), "bilinear": _of(F.interpolate, scale_factor=2.0, mode="bilinear"),
    "bicubic": _of(F.interpolate, scale_factor=2.0, mode="bicubic"), "area": _of(F.interpolate, size=7, mode="area"),
    "PixelShuffle": lambda: nn.Sequential(nn.Conv2d(16, 64, 1), nn.PixelShuffle(2)),
    "reflection padding": lambda: nn.ReflectionPad2d(1), "BatchNorm2d": lambda: nn.BatchNorm2d(16),
    "GroupNorm": lambda: nn.GroupNorm(4, 16), "GroupNorm without affine": lambda: nn.GroupNorm(4, 16, affine=False),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(16, affine=True), "LocalResponseNorm": lambda: nn.LocalResponseNorm(5),
}  # fmt: skip
"""Layers between convolutions."""


@dataclass(frozen=True, slots=True)
class Row:
    """One layer: the measured peak, and for each pair the planned one, or why it has none."""

    layer: str
    measured_nbytes: int
    planned: tuple[int | str, ...]

    def differences(self) -> list[float | None]:
        """Percent above (positive) or below the measured peak; None where the exporter writes nothing."""
        return [100 * (found / self.measured_nbytes - 1) if isinstance(found, int) else None for found in self.planned]


def network(layer: str) -> tuple[nn.Module, Tensor]:
    """Three of a layer, each behind a linear layer or a convolution and before the last one, and an input."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(3):
        if layer in TOKENS:
            parts += [nn.Linear(_WIDTH, _WIDTH), TOKENS[layer]()]
        else:
            parts += [nn.Conv2d(16, 16, 3, padding=1), IMAGES[layer]()]
    last, value = nn.Linear(_WIDTH, _WIDTH), torch.randn(8, 64, _WIDTH)
    if layer in IMAGES:
        return nn.Sequential(*parts, nn.Conv2d(16, 16, 3, padding=1)).train(), torch.randn(8, 16, 24, 24)
    return nn.Sequential(*parts, last).train(), value


def export(module: nn.Module, value: Tensor, exporter: str, opset: int, path: Path) -> None:
    """Write the module's training form to ``path``."""
    if exporter == "dynamo":
        onnx.save(export_module(module, (value,), opset=opset), path)
        return
    with quiet():
        torch.onnx.export(
            module, (value,), path, dynamo=False, opset_version=opset, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING,
        )  # fmt: skip


def planned_nbytes(model: Model) -> int:
    """The store-all activation peak without the scratch of single kernels."""
    costs = tuple(
        replace(cost, forward_workspace_nbytes=0, backward_workspace_nbytes=0, backward_activation_workspace_nbytes=0)
        if model.graph.ops[op.forward].op_type in _SCRATCH
        else cost
        for op, cost in zip(model.training.ops, model.costs, strict=True)
    )
    return store_all_timeline(model.training, costs)[1].peak_activation_nbytes


def compare(layer: str, folder: Path) -> Row:
    """Measure a layer's step and plan each export of it."""
    measured = measure_step(*(lambda module, value: (module, (value,)))(*network(layer))).activations.nbytes
    planned: list[int | str] = []
    for exporter, opset in PAIRS:
        path = folder / "layer.onnx"
        try:
            export(*network(layer), exporter, opset, path)
        except Exception as error:
            planned.append(f"not exported: {type(error).__name__}: {str(error).strip().splitlines()[0][:150]}")
            continue
        planned.append(planned_nbytes(load_model(path, device="cpu")))
    return Row(layer, measured - LOSS_NBYTES, tuple(planned))


def report(rows: list[Row]) -> str:
    """Markdown: the differences, and which are beyond the goal."""
    lines, misses, absent = [], [], []
    for row in rows:
        shown = []
        for pair, found, difference in zip(PAIRS, row.planned, row.differences(), strict=True):
            shown.append("-" if difference is None else f"{difference:+.1f}%")
            if difference is None:
                absent.append(f"- {row.layer}, {pair[0]} {pair[1]}: {found}")
            elif abs(difference) > GOAL_PERCENT:
                misses.append(f"{row.layer} {pair[0]} {pair[1]} ({difference:+.1f}%)")
        lines.append([row.layer, f"{row.measured_nbytes:,}", *shown])
    header = ["layer", "measured bytes", *(f"{exporter} {opset}" for exporter, opset in PAIRS)]
    cells = sum(isinstance(found, int) for row in rows for found in row.planned)
    verdict = f"Of {cells} files {cells - len(misses)} are within {GOAL_PERCENT:.0f}% of the measured step"
    verdict += f"; beyond it: {', '.join(misses)}." if misses else "."
    return "\n\n".join([verdict, table(header, lines), "\n".join(absent)]).strip()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this kind."""
    add_names(parser, [*TOKENS, *IMAGES], what="layer")


def run(options: argparse.Namespace) -> int:
    """Compare the layers asked for."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layer in options.names or [*TOKENS, *IMAGES]:
            rows.append(compare(layer, Path(folder)))
            shown = ", ".join("-" if found is None else f"{found:+.1f}%" for found in rows[-1].differences())
            print(f"{layer}: {rows[-1].measured_nbytes:,}: {shown}", file=sys.stderr)
    publish(
        report(rows),
        options.output,
        script="models.fidelity",
        arguments=options.arguments,
        device="cpu",
        quantity="store-all activation peak of one training step in bytes",
        libraries={name: version(name) for name in ("onnx", "onnxscript")},
        rows=[asdict(row) for row in rows],
    )
    return 0
