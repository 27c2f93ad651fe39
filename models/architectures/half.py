"""Some of the networks in bfloat16: what their kernels compute in float32 all the same shows in their peaks."""

from __future__ import annotations

from dataclasses import replace

from models.architectures.zoo import ARCHITECTURES

SUFFIX = "_bf16"
_NAMES = ("bert", "gpt2", "llama", "gemma2", "t5", "vit", "resnet", "unet2d_condition")

HALF = {name + SUFFIX: replace(ARCHITECTURES[name], name=name + SUFFIX, half=True) for name in _NAMES}
"""Parameters and floating-point inputs in bfloat16; in all else the network of the same name."""
