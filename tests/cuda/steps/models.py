"""Whole networks: ResNet, GPT-2, a U-Net and a transformer encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from models.networks.gpt2 import GPT2Config
from models.training.cases import Case, gpt_case, resnet_case, unet_case
from tests.cuda.steps.step import BF16, F16, Context, Step, attention_by

SMALL = GPT2Config(vocabulary=512, context=128, layers=3, heads=4, width=256, dropout=0.1)


class Masked(nn.Module):
    """A transformer encoder with padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, activation="gelu", batch_first=True)
        self.embedding = nn.Embedding(1000, 128)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(self.embedding(x), src_key_padding_mask=padding).square().mean()


def of(case: Case, *contexts: Context, **options: Any) -> Step:
    return Step(case.build, lambda: case.arguments(0, "cuda"), contexts, **options)


RESNET, GPT, UNET = resnet_case(4, 64, (1, 1, 1, 1)), gpt_case(2, SMALL), unet_case(1, 64, (8, 16, 32))
SIXTEENTHS = gpt_case(2, replace(SMALL, dropout=2 / 16))  # cuDNN's attention drops in sixteenths
STEPS = {
    "resnet": of(RESNET),
    "resnet-autocast-channels_last": of(RESNET, BF16, channels_last=True),
    "resnet-float16": of(RESNET, F16),
    "gpt": of(GPT),
    "gpt-autocast": of(GPT, BF16),
    "gpt-flash": of(GPT, BF16, attention_by(SDPBackend.FLASH_ATTENTION)),
    "gpt-efficient": of(GPT, BF16, attention_by(SDPBackend.EFFICIENT_ATTENTION)),
    "gpt-cudnn": of(SIXTEENTHS, BF16, attention_by(SDPBackend.CUDNN_ATTENTION)),
    "gpt-math": of(GPT, BF16, attention_by(SDPBackend.MATH)),
    "gpt-bfloat16": Step(lambda: GPT.build().bfloat16(), lambda: GPT.arguments(0, "cuda")),
    "unet": of(UNET),
    "unet-float16": of(UNET, F16),
    "encoder": Step(Masked, lambda: (torch.zeros(2, 64, dtype=torch.long, device="cuda"),
                                     torch.zeros(2, 64, dtype=torch.bool, device="cuda"))),
    "encoder-autocast": Step(Masked, lambda: (torch.zeros(2, 64, dtype=torch.long, device="cuda"),
                                              torch.zeros(2, 64, dtype=torch.bool, device="cuda")), (BF16,)),
}  # fmt: skip
