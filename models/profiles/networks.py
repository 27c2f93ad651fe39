"""The networks: those that the ratios are made of, and others that they are judged on; and a command for either."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from models.export import export_with_weights
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.result_record import publish
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
    inputs = entry.inputs(entry.small_batch, entry.small_extent)
    export_with_weights(entry.build_small(entry.small_extent), inputs, path)
    return path


def run(
    script: str,
    description: str | None,
    usual: Sequence[str],
    measured: Callable[[str, Path], Any],
    report: Callable[[Mapping[str, Any]], str],
    quantity: str,
    arguments: Sequence[str] | None,
) -> None:
    """Measure the networks that the command line of ``script`` names, and publish the report on them."""
    parser = command_parser(script, description)
    add_names(parser, ZOO, usual)
    add_output(parser)
    options = parser.parse_args(arguments)
    networks: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ogc-plan-") as folder:
        for name in options.names or usual:
            networks[name] = measured(name, Path(folder))
            print(f"{name}: {networks[name]}", file=sys.stderr, flush=True)
    publish(
        report(networks), options.output, script=script, arguments=arguments, device="cpu", quantity=quantity,
        networks=networks,
    )  # fmt: skip
