"""Attention by each kernel, with masks, dropout and causality."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from tests.cuda.steps.step import BF16, Context, Loss, Step, attention_by

FLASH, EFFICIENT = attention_by(SDPBackend.FLASH_ATTENTION), attention_by(SDPBackend.EFFICIENT_ATTENTION)
CUDNN, MATH = attention_by(SDPBackend.CUDNN_ATTENTION), attention_by(SDPBackend.MATH)


class Attention(nn.Module):
    """Two blocks of attention with 4 heads; ``options`` go to scaled_dot_product_attention."""

    def __init__(self, heads: int = 4, groups: int = 4, **options: Any) -> None:
        super().__init__()
        self.heads, self.groups, self.options = heads, groups, options
        self.inputs = nn.ModuleList(nn.Linear(64, 64 + 2 * 64 * groups // heads) for _ in range(2))
        self.outputs = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        width = 64 // self.heads
        for into, out in zip(self.inputs, self.outputs, strict=True):
            parts = into(x).split([64, width * self.groups, width * self.groups], 2)
            query, key, value = (part.unflatten(2, (-1, width)).transpose(1, 2) for part in parts)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **self.options)
            x = x + out(found.transpose(1, 2).flatten(2))
        return x


def of(*contexts: Context, mask: Callable[[], Tensor] | None = None, **options: Any) -> Step:
    return Step(
        lambda: Loss(Attention(**options)),
        lambda: (sequence(), *([] if mask is None else [mask()])),
        contexts,
    )


class Multihead(nn.Module):
    """PyTorch's own layer on one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return out


def sequence() -> Tensor:
    return torch.randn(2, 32, 64, device="cuda")


def padding() -> Tensor:
    return torch.zeros(2, 32, dtype=torch.bool, device="cuda")


def boolean() -> Tensor:
    return torch.ones(32, 32, dtype=torch.bool, device="cuda").tril()


def additive() -> Tensor:
    return torch.zeros(2, 1, 32, 32, device="cuda")


def additive_half() -> Tensor:
    return additive().bfloat16()


def learned() -> Tensor:
    return additive_half().requires_grad_()


STEPS: dict[str, Step] = {
    "float32": of(),
    "float32-causal": of(is_causal=True),
    "float32-dropout": of(dropout_p=0.1),
    "flash-causal-dropout": of(BF16, FLASH, is_causal=True, dropout_p=0.1),
    "flash-grouped": of(BF16, FLASH, groups=2, enable_gqa=True),
    "efficient-mask": of(BF16, EFFICIENT, mask=boolean),
    "efficient-additive": of(BF16, EFFICIENT, mask=additive_half),
    "efficient-learned-mask": of(BF16, EFFICIENT, mask=learned),
    "efficient-causal-dropout": of(BF16, EFFICIENT, is_causal=True, dropout_p=0.1),
    "efficient-float32-mask-dropout": of(EFFICIENT, mask=additive, dropout_p=0.1),
    "cudnn-causal": of(BF16, CUDNN, is_causal=True),
    "cudnn-dropout": of(BF16, CUDNN, dropout_p=0.125),
    "cudnn-mask": of(BF16, CUDNN, mask=additive_half),
    "math-mask-dropout": of(BF16, MATH, mask=boolean, dropout_p=0.1),
    "math-float32-dropout": of(MATH, dropout_p=0.1),
    "multihead-autocast": Step(lambda: Loss(Multihead()), lambda: (sequence(),), (BF16,)),
    "multihead-padding": Step(lambda: Loss(Multihead()), lambda: (sequence(), padding()), (BF16,)),
}
