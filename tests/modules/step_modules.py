"""Small modules, one for each family of ops, between two linear layers: their steps are measured and simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., Tensor]


class Between(nn.Module):
    """A function between two linear layers of the same width, so that both sides need gradients."""

    def __init__(self, function: Function, width: int = 64, after: int | None = None, **extra: nn.Module) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(width, width), nn.Linear(after or width, 32)
        self.extra = nn.ModuleDict(extra)
        self.scale = nn.Parameter(torch.ones(width))
        self.narrow = nn.Parameter(torch.ones(4, 16, 16))
        self.function = function
        angles = torch.arange(32.0)[:, None] * 0.1
        constants = {"mask": torch.ones(32, 32), "order": torch.tensor([3, 1, 2]), "state": torch.zeros(1, 32, width),
                     "holes": torch.ones(32, width) > 2, "likely": torch.full((128, width), 1 / width),
                     "cos": angles.cos(), "sin": angles.sin()}  # fmt: skip
        for name, value in constants.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(self.function(self, self.before(x)))
        return result


class OnImages(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Function, after: int = 8, **extra: nn.Module) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 8, 1), nn.Conv2d(after, 4, 1)
        self.extra = nn.ModuleDict(extra)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(self.function(self, self.before(x)))
        return result


def attention(module: Any, x: Tensor, **options: Any) -> Tensor:
    q, k, v = (part.view(4, 32, 4, 16).transpose(1, 2) for part in module.extra["qkv"](x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).reshape(4, 32, 64)


def composed_attention(module: Any, x: Tensor) -> Tensor:
    """Names are dropped as soon as they are read: eager torch keeps alive what Python still names."""
    q, k, v = (part.view(4, 32, 4, 16).transpose(1, 2) for part in module.extra["qkv"](x).chunk(3, -1))
    weights = q @ k.transpose(-1, -2)
    del q, k
    weights = weights * 0.25
    weights = weights.softmax(-1)
    values = weights @ v
    del v, weights
    return values.transpose(1, 2).reshape(4, 32, 64)


def einsum_attention(module: Any, x: Tensor) -> Tensor:
    q, k, v = (part.view(4, 32, 4, 16) for part in module.extra["qkv"](x).chunk(3, -1))
    weights = torch.einsum("bthd,bshd->bhts", q, k)
    del q, k
    weights = weights.softmax(-1)
    values = torch.einsum("bhts,bshd->bthd", weights, v)
    del v, weights
    return values.reshape(4, 32, 64)


def rotary(module: Any, x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * module.cos - second * module.sin, first * module.sin + second * module.cos], -1)


def rms_norm(module: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * module.scale


def swiglu(module: Any, x: Tensor) -> Tensor:
    gate, value = module.extra["wide"](x).chunk(2, -1)
    return module.extra["narrow"](F.silu(gate) * value)


ROWS, IMAGE = (4, 32, 64), (2, 3, 24, 24)
BETWEEN: dict[str, Function | tuple[Function, dict[str, Any]]] = {
    "identity": lambda m, x: x * 1.0,
    "relu": lambda m, x: x.relu(),
    "gelu": lambda m, x: F.gelu(x),
    "silu": lambda m, x: F.silu(x),
    "tanh and sigmoid": lambda m, x: x.tanh() * x.sigmoid(),
    "softmax": lambda m, x: x.softmax(-1),
    "layer norm": (lambda m, x: m.extra["norm"](x), {"norm": lambda: nn.LayerNorm(64)}),
    "rms norm, composed": rms_norm,
    "product with a parameter": lambda m, x: x * m.scale,
    "sum with a parameter": lambda m, x: x + m.scale,
    "quotient by a parameter": lambda m, x: x / m.scale,
    "difference from a parameter": lambda m, x: m.scale - x,
    "outer sum": lambda m, x: x[:, :, None, :].sum(1) + x.mean(1, keepdim=True),
    "residual": lambda m, x: x + m.extra["inner"](x).relu(),
    "product of itself": lambda m, x: x * x,
    "power": lambda m, x: x.pow(2),
    "concat and split": lambda m, x: torch.cat([part.relu() for part in x.split(16, -1)], -1),
    "one part of a split": lambda m, x: torch.cat([x.split(32, -1)[0].relu()] * 2, -1),
    "read four times": lambda m, x: x.tanh() + x.sigmoid() * x + x,
    "matrix repeated over heads": lambda m, x: (x.view(4, 32, 4, 16).transpose(1, 2) @ m.narrow).flatten(1, 2)
    .reshape(4, 32, 64),
    "layer norm of two axes": lambda m, x: F.layer_norm(x, (32, 64)),
    "log-sum-exp": lambda m, x: x - x.logsumexp(-1, keepdim=True),
    "dropout of nothing": lambda m, x: F.dropout(x, 0.0, training=True) * 2.0,
    "slices": lambda m, x: F.pad(x[:, 1:, :] * x[:, :-1, :], (0, 0, 1, 0)),
    "expand": lambda m, x: x.mean(-1, keepdim=True).expand(4, 32, 64) * x,
    "maximum": lambda m, x: torch.maximum(x, x.tanh()),
    "clamp": lambda m, x: x.clamp(-1, 1),
    "where": lambda m, x: torch.where(x > 0, x, torch.zeros(())),
    "masked by a constant": lambda m, x: torch.where(m.holes, -1e9, x),
    "reduce max": lambda m, x: x - x.amax(-1, keepdim=True),
    "variance": lambda m, x: x - x.var(-1, keepdim=True),
    "l2": lambda m, x: F.normalize(x, dim=-1),
    "cumsum": lambda m, x: x.cumsum(1),
    "top k": (lambda m, x: x.topk(8, -1)[0], {"after": 8}),
    "gather": lambda m, x: x[:, m.order],
    "transposed": lambda m, x: (x.transpose(1, 2) @ x).relu(),
    "half": lambda m, x: x.bfloat16().relu().float(),
    "half with a float32 norm": (lambda m, x: m.extra["norm"](x.bfloat16()).float(),
                                 {"norm": lambda: nn.LayerNorm(64)}),
    "log1p": lambda m, x: x.abs().log1p(),
    "expm1": lambda m, x: x.expm1(),
    "rsqrt": lambda m, x: x.abs().rsqrt(),
    "class probabilities": lambda m, x: x + F.cross_entropy(x.flatten(0, 1), m.likely),
    "attention": (attention, {"qkv": lambda: nn.Linear(64, 192)}),
    "causal attention": (lambda m, x: attention(m, x, is_causal=True), {"qkv": lambda: nn.Linear(64, 192)}),
    "masked attention": (lambda m, x: attention(m, x, attn_mask=m.mask),
                         {"qkv": lambda: nn.Linear(64, 192)}),
    "attention, composed": (composed_attention, {"qkv": lambda: nn.Linear(64, 192)}),
    "attention by einsum": (einsum_attention, {"qkv": lambda: nn.Linear(64, 192)}),
    "rotary": rotary,
    "swiglu": (swiglu, {"wide": lambda: nn.Linear(64, 256), "narrow": lambda: nn.Linear(128, 64)}),
    "prelu": (lambda m, x: m.extra["slope"](x.transpose(1, 2)).transpose(1, 2), {"slope": lambda: nn.PReLU(64)}),
    "lstm": (lambda m, x: m.extra["lstm"](x)[0], {"lstm": lambda: nn.LSTM(64, 64)}),
    "lstm, both directions": (lambda m, x: m.extra["lstm"](x)[0],
                              {"lstm": lambda: nn.LSTM(64, 32, bidirectional=True)}),
    "lstm, last state": (lambda m, x: m.extra["lstm"](x)[1][0], {"lstm": lambda: nn.LSTM(64, 64)}),
    "gru": (lambda m, x: m.extra["gru"](x, m.state)[0], {"gru": lambda: nn.GRU(64, 64)}),
    "rnn": (lambda m, x: m.extra["rnn"](x, m.state)[0], {"rnn": lambda: nn.RNN(64, 64)}),
}  # fmt: skip
ON_IMAGES: dict[str, Function | tuple[Function, dict[str, Any]]] = {
    "batch norm": (lambda m, x: m.extra["norm"](x), {"norm": lambda: nn.BatchNorm2d(8)}),
    "group norm": (lambda m, x: m.extra["norm"](x), {"norm": lambda: nn.GroupNorm(2, 8)}),
    "instance norm": (lambda m, x: m.extra["norm"](x), {"norm": lambda: nn.InstanceNorm2d(8, affine=True)}),
    "max pool": lambda m, x: F.max_pool2d(x, 2),
    "average pool": lambda m, x: F.avg_pool2d(x, 2),
    "global pool": lambda m, x: x * F.adaptive_avg_pool2d(x, 1),
    "nearest": lambda m, x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda m, x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "reflection": lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "pixel shuffle": (lambda m, x: F.pixel_shuffle(x, 2), {"after": 2}),
    "grid sample": lambda m, x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False),
    "hard swish": lambda m, x: F.hardswish(x),
    "local response norm": lambda m, x: F.local_response_norm(x, 5),
    "transposed convolution": (lambda m, x: m.extra["up"](x), {"up": lambda: nn.ConvTranspose2d(8, 8, 2, 2)}),
    "depthwise": (lambda m, x: m.extra["inner"](x).relu(), {"inner": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8)}),
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A fresh module of that name and an input."""
    torch.manual_seed(0)
    entry = (ON_IMAGES if name in ON_IMAGES else BETWEEN)[name]
    function, options = entry if isinstance(entry, tuple) else (entry, {})
    if name == "residual":
        options = {"inner": lambda: nn.Linear(64, 64)}
    made = {key: value() if callable(value) else value for key, value in options.items()}
    if name in ON_IMAGES:
        return OnImages(function, **made), (torch.randn(*IMAGE),)
    return Between(function, **made), (torch.randn(*ROWS),)
