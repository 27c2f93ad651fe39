"""Small modules whose exports torch writes as other nodes than the calls that eager torch runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, LENGTH = 32, 16
Build = Callable[[], tuple[nn.Module, Tensor]]


class Given(nn.Module):
    """A forward written as a function of the module, with the parts given by name."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, value: Tensor) -> Tensor:
        return self._forward(self, value)


def tokens() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH)


def layers(between: Callable[[Tensor], Tensor], *, wide: int = 1) -> Build:
    """Three linear layers with a function after each."""

    def forward(module: nn.Module, value: Tensor) -> Tensor:
        for layer in module.layers:
            value = between(layer(value))
        return value

    return lambda: (
        Given(forward, layers=nn.ModuleList(nn.Linear(WIDTH, wide * WIDTH) for _ in range(3))),
        tokens(),
    )


def images(forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module) -> Build:
    """Something between two convolutions."""
    convolutions = {"first": nn.Conv2d(4, 8, 3, padding=1), "second": nn.Conv2d(8, 4, 3, padding=1)}
    return lambda: (Given(forward, **convolutions, **parts), torch.randn(2, 4, 8, 8))


def attention(**options: object) -> Build:
    """Fused attention over heads that are views of one projection."""

    def forward(module: nn.Module, value: Tensor) -> Tensor:
        batch, length, width = value.shape
        parts = (part.view(batch, length, 4, width // 4).transpose(1, 2) for part in module.qkv(value).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(*parts, **options)
        return module.out(mixed.transpose(1, 2).reshape(batch, length, width))

    return lambda: (Given(forward, qkv=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH)), tokens())


def _composed_attention(module: nn.Module, value: Tensor) -> Tensor:
    batch, length, width = value.shape
    query, key, content = (
        part.view(batch, length, 4, width // 4).transpose(1, 2) for part in module.qkv(value).chunk(3, -1)
    )
    weights = module.drop((query @ key.transpose(-2, -1) / 4).softmax(-1))
    return module.out((weights @ content).transpose(1, 2).contiguous().view(batch, length, width))


def _grouped_attention(module: nn.Module, value: Tensor) -> Tensor:
    batch, length, width = value.shape
    query, key, content = (
        part.view(batch, length, -1, 8).transpose(1, 2)
        for part in (module.query(value), module.key(value), module.content(value))
    )
    mixed = F.scaled_dot_product_attention(query, key, content, is_causal=True, enable_gqa=True)
    return module.out(mixed.transpose(1, 2).reshape(batch, length, width))


def _rotary(module: nn.Module, value: Tensor) -> Tensor:
    heads = module.query(value).view(2, LENGTH, 4, 8).transpose(1, 2)
    turned = torch.cat((-heads[..., 4:], heads[..., :4]), -1)
    mixed = heads * module.table[0] + turned * module.table[1]
    return module.out(mixed.transpose(1, 2).reshape(value.shape))


def _mixer(module: nn.Module, value: Tensor) -> Tensor:
    return module.out(module.first(value).transpose(1, 2))


def _norm_of_transposed(module: nn.Module, value: Tensor) -> Tensor:
    rows = module.first(value).flatten(2).transpose(1, 2).tanh().transpose(1, 2)
    return module.second(module.norm(rows).view(2, 8, 8, 8))


def _gate(value: Tensor) -> Tensor:
    left, right = value.chunk(2, -1)
    return F.silu(left) * right


def linear(width: int = WIDTH, *, inputs: int = WIDTH) -> nn.Linear:
    return nn.Linear(inputs, width)


MODULES: dict[str, Build] = {
    "silu": layers(F.silu),
    "a product with a sigmoid": layers(lambda value: value * torch.sigmoid(value)),
    "gelu": layers(F.gelu),
    "gelu by tanh": layers(lambda value: F.gelu(value, approximate="tanh")),
    "mish": layers(F.mish),
    "softplus": layers(F.softplus),
    "hardswish": layers(F.hardswish),
    "log_sigmoid": layers(F.logsigmoid),
    "glu": layers(F.glu, wide=2),
    "a gated silu": layers(_gate, wide=2),
    "dropout": layers(lambda value: F.dropout(value, 0.1)),
    "a dropout of nothing": lambda: (nn.Sequential(linear(), nn.Tanh(), nn.Dropout(0.0), linear()), tokens()),
    "attention": attention(),
    "causal attention": attention(is_causal=True),
    "attention of parts": lambda: (
        Given(_composed_attention, qkv=linear(3 * WIDTH), out=linear(), drop=nn.Dropout(0.1)),
        tokens(),
    ),
    "attention of fewer keys": lambda: (
        Given(_grouped_attention, query=linear(), key=linear(WIDTH // 2), content=linear(WIDTH // 2), out=linear()),
        tokens(),
    ),
    "rotary positions": lambda: (
        Given(_rotary, query=linear(), out=linear(), table=nn.Buffer(torch.randn(2, LENGTH, 8))),
        tokens(),
    ),
    "an encoder layer": lambda: (nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True), tokens()),
    "a linear layer of a transposed tensor": lambda: (
        Given(_mixer, first=linear(), out=nn.Linear(LENGTH, 8)),
        tokens(),
    ),
    "a product with a sum of weights": lambda: (
        Given(
            lambda module, value: torch.addmm(module.bias, value.view(-1, WIDTH), module.weight).view(value.shape),
            weight=nn.Parameter(torch.randn(WIDTH, WIDTH)),
            bias=nn.Parameter(torch.zeros(WIDTH)),
        ),
        tokens(),
    ),
    "group norm and silu": images(
        lambda module, value: module.second(F.silu(module.norm(module.first(value)))), norm=nn.GroupNorm(2, 8)
    ),
    "group norm of a transposed tensor": images(_norm_of_transposed, norm=nn.GroupNorm(2, 8)),
    "instance norm": images(
        lambda module, value: module.second(module.norm(module.first(value))), norm=nn.InstanceNorm2d(8, affine=True)
    ),
    "bilinear resize": images(
        lambda module, value: module.second(F.interpolate(module.first(value), scale_factor=2, mode="bilinear"))
    ),
    "roll": images(lambda module, value: module.second(torch.roll(module.first(value), (2, 2), (2, 3)))),
}


def _in_half(forward: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module) -> Build:
    """Something in bfloat16 between two linear layers."""
    return lambda: (
        Given(forward, first=linear(), second=linear(), **parts).to(torch.bfloat16),
        tokens().to(torch.bfloat16),
    )


def _between(function: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda module, value: module.second(function(module.first(value)))


def _of_two(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Build:
    """A function of an input and two linear layers of it."""
    return lambda: (
        Given(lambda m, value: function(value, m.first(value), m.second(value)), first=linear(), second=linear()),
        tokens(),
    )


WITH_TEMPORARIES: dict[str, Build] = {
    "a softmax in float32 of bfloat16": _in_half(
        _between(lambda value: value.softmax(-1, dtype=torch.float32).to(torch.bfloat16))
    ),
    "a log-softmax in float32 of bfloat16": _in_half(
        _between(lambda value: value.log_softmax(-1, dtype=torch.float32).to(torch.bfloat16))
    ),
    "a mean in float32 of bfloat16": _in_half(
        _between(lambda value: value * value.mean(-1, keepdim=True, dtype=torch.float32).to(torch.bfloat16))
    ),
    "an RMS norm": lambda: (nn.Sequential(linear(), nn.RMSNorm(WIDTH), linear()), tokens()),
    "an RMS norm in bfloat16": _in_half(
        lambda module, value: module.second(module.norm(module.first(value))), norm=nn.RMSNorm(WIDTH)
    ),
    "rsqrt": lambda: (
        Given(_between(lambda value: torch.rsqrt(value.exp())), first=linear(), second=linear()),
        tokens(),
    ),
    "atan2": _of_two(lambda _, left, right: torch.atan2(left, right).sin()),
    "addcmul": _of_two(lambda value, left, right: torch.addcmul(value, left, right, value=0.5).sin()),
    "addcdiv": _of_two(lambda value, left, right: torch.addcdiv(value, left, right, value=0.5).sin()),
    "addcdiv by an input": _of_two(lambda value, left, right: torch.addcdiv(right, left, value).sin()),
    "lerp by a tensor": _of_two(lambda _, left, right: torch.lerp(left, right, left.sigmoid()).sin()),
    "baddbmm": _of_two(
        lambda value, left, right: torch.baddbmm(value[..., :LENGTH], left, right.transpose(1, 2), alpha=0.125).softmax(
            -1
        )
    ),
    "a sum of what a linear layer makes": lambda: (
        Given(lambda module, value: module.second(module.first(value).tanh()).sum(1), first=linear(), second=linear()),
        tokens(),
    ),
}
"""Modules whose peak is reached between the kernels of one op."""
