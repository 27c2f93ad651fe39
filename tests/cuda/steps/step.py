"""One training step for the tests of this folder, and small modules to make steps of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Context = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Step:
    """A module whose output is its loss, its arguments, and the contexts that a training step runs in."""

    build: Callable[[], nn.Module]
    arguments: Callable[[], tuple[Tensor, ...]]
    contexts: tuple[Context, ...] = ()
    channels_last: bool = False


def half(dtype: torch.dtype) -> Context:
    return lambda: torch.autocast("cuda", dtype=dtype)


def attention_by(kind: SDPBackend) -> Context:
    return lambda: sdpa_kernel(kind)


BF16, F16 = half(torch.bfloat16), half(torch.float16)


class Loss(nn.Module):
    """The mean squares of all tensors that a module, or a function, returns."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        return _mean_squares(self.inner(*args))


def _mean_squares(returned: Any) -> Any:
    if isinstance(returned, tuple):
        return sum(_mean_squares(part) for part in returned)
    return returned.abs().float().square().mean()


class Between(nn.Module):
    """A call without parameters after a linear layer over the last dimension, three times."""

    def __init__(self, call: Callable[..., Any], width: int) -> None:
        super().__init__()
        self.call = call
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.call(layer(x).tanh(), *rest)
        return x


def stacked(layer: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.float32, **options: Any) -> Step:
    """Three layers of a kind, each with an activation after it, on random values of ``shape``."""
    return Step(
        lambda: Loss(nn.Sequential(*(nn.Sequential(layer(), nn.Tanh()) for _ in range(3)))),
        lambda: (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True),),
        **options,
    )


def called(
    call: Callable[..., Any], *shape: int, rest: Callable[[], tuple[Tensor, ...]] = tuple, **options: Any
) -> Step:
    """A call after each of three linear layers, on random values of ``shape`` and the tensors of ``rest``."""
    return Step(
        lambda: Loss(Between(call, shape[-1])),
        lambda: (torch.randn(shape, device="cuda"), *rest()),
        **options,
    )


def numbers(high: int, *shape: int) -> Tensor:
    """Numbers below ``high``."""
    return torch.arange(torch.Size(shape).numel(), device="cuda").remainder(high).view(shape)
