"""The networks: those that the ratios are made of, and others that they are judged on."""

from __future__ import annotations

from pathlib import Path

import torch

from models.export import OPSET, quiet
from models.zoo import ZOO

CALIBRATED = (
    "alexnet", "vgg13", "resnet50", "densenet121", "unet", "convnext_t", "vit_b16", "gpt2", "t5_small",
    "lstm_classifier", "darts_cifar10",
)  # fmt: skip
JUDGED = (
    "vgg16_two_classes",
    "resnet18",
    "resnet20_v2_cifar10",
    "inception_v3",
    "nasnet_cifar10",
    "bert_base",
    "llama_1b",
)


def file_of(name: str, folder: Path) -> Path:
    """A network of the zoo at its small size, exported with random weights in training mode."""
    entry, path = ZOO[name], folder / f"{name}.onnx"
    torch.manual_seed(0)
    with quiet():
        torch.onnx.export(
            entry.build_small(entry.small_extent).train(), entry.inputs(entry.small_batch, entry.small_extent), path,
            dynamo=True, optimize=False, opset_version=OPSET, verbose=False, external_data=False,
        )  # fmt: skip
    return path
