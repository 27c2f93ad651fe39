"""Modules for the tests of the PyTorch adapter: small ones with one oddity each, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedSquares(torch.autograd.Function):
    """A loss that finds its gradient in its forward, and gives it whatever it gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(2 * x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Tensor:
        return ctx.saved_tensors[0]  # type: ignore[no-any-return]


class WithLoss(nn.Module):
    """A module with the loss inside: the mean square of its output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = self.module(*args, **kwargs)
        return output.square().mean()


def convolutional() -> nn.Module:
    """Convolution, batch norm, in-place ReLU, pooling, twice."""
    layers: list[nn.Module] = []
    for channels in (3, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 5))


class SharedNorm(nn.Module):
    """One batch norm applied twice in one forward: its statistics move twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.relu(self.norm(self.convolution(x)))).square()


class Attention(nn.Module):
    """Self-attention with dropout on the weights, on the output and between."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)
        return x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))


class Moving(nn.Module):
    """A buffer that the forward reads and then updates, so that a recomputation would read another value."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("center", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x) - self.center)
        with torch.no_grad():
            self.center.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return torch.exp(torch.sin(y) * 0.3).square()


class Tied(nn.Module):
    """One weight used as an embedding and as the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.hidden(self.embedding(ids))) @ self.embedding.weight.t()


class Squares(nn.Module):
    """A loss whose scalar keeps a whole tensor's memory: ``mse_loss`` on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), y)


class Expanded(nn.Module):
    """A parameter whose gradient comes back expanded, and two that share one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 5))
        self.second = nn.Parameter(torch.randn(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return (self.first + self.second).sum() + torch.sigmoid(x @ self.first.t()).sum()


class Outputs(nn.Module):
    """Nested outputs: a view, a scalar, None, a number, a tensor without gradient; keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("factor", torch.full((4,), 2.0))

    def forward(self, x: Tensor, *, pair: tuple[Tensor, int]) -> dict[str, Any]:
        hidden = self.linear(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]) * self.factor * pair[1] + pair[0]
        return {"hidden": hidden.exp().view(-1), "rest": [hidden.sum(), None, 3, x.detach() * 2]}


class LowRank(nn.Module):
    """Residual blocks of a frozen norm and frozen layers, each with a trained update of rank 2 behind dropout."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(depth)).requires_grad_(False)
        self.bases = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth)).requires_grad_(False)
        self.downs = nn.ModuleList(nn.Linear(16, 2, bias=False) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(2, 16, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for norm, base, down, up in zip(self.norms, self.bases, self.downs, self.ups, strict=True):
            h = norm(x)
            x = x + F.gelu(base(h) + 2.0 * up(down(F.dropout(h, 0.1))))
        return x


ODD: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "convolutional": (lambda: WithLoss(convolutional()), lambda: (torch.randn(2, 3, 8, 8),)),
    "shared norm": (lambda: WithLoss(SharedNorm()), lambda: (torch.randn(2, 3, 6, 6),)),
    "attention": (lambda: WithLoss(nn.Sequential(Attention(), Attention())), lambda: (torch.randn(2, 5, 16),)),
    "moving buffer": (lambda: WithLoss(Moving()), lambda: (torch.randn(7, 6),)),
    "tied weight": (lambda: WithLoss(Tied()), lambda: (torch.randint(0, 11, (3, 5)),)),
    "low-rank adapters": (lambda: WithLoss(LowRank()), lambda: (torch.randn(8, 16),)),
    "expanded gradient": (Expanded, lambda: (torch.randn(3, 5),)),
}


class RandomNet(nn.Module):
    """A random graph of ``depth`` ops on [4, 6] tensors: layers, norms, dropout, joins, views, in-place calls."""

    def __init__(self, seed: int, depth: int) -> None:
        super().__init__()
        choice = random.Random(seed)
        kinds = ("linear", "norm", "layernorm", "dropout", "add", "mul", "cat", "chunk", "relu_", "gelu", "softmax",
                 "transpose", "matmul", "frozen", "detach", "tied")  # fmt: skip
        self.recipe = [(choice.choice(kinds), choice.random(), choice.random()) for _ in range(depth)]
        self.layers = nn.ModuleDict()
        shared = nn.Linear(6, 6)
        for place, (kind, _, _) in enumerate(self.recipe):
            made = {
                "linear": lambda: nn.Linear(6, 6), "norm": lambda: nn.BatchNorm1d(6), "cat": lambda: nn.Linear(12, 6),
                "layernorm": lambda: nn.LayerNorm(6), "dropout": lambda: nn.Dropout(0.3), "frozen": lambda: frozen(),
                "chunk": lambda: nn.Linear(3, 6), "tied": lambda: shared,
            }.get(kind)  # fmt: skip
            if made is not None:
                self.layers[str(place)] = made()

    def forward(self, x: Tensor) -> Any:
        """[4, 6] -> a scalar loss over everything that was made."""
        return torch.stack([tensor.mean() for tensor in self.values(x)[-3:]]).sum()

    def values(self, x: Tensor) -> list[Tensor]:
        """[4, 6] -> everything that is made, in order."""
        made, layers = [x, torch.tanh(x)], dict(self.layers.items())
        for place, (kind, one, two) in enumerate(self.recipe):
            first, second = made[int(one * len(made))], made[int(two * len(made))]
            layer = layers.get(str(place))
            if kind in ("linear", "norm", "layernorm", "dropout", "frozen", "tied"):
                assert layer is not None
                made.append(layer(first))
            elif kind == "cat":
                assert layer is not None
                made.append(layer(torch.cat([first, second], dim=1)))
            elif kind == "chunk":
                assert layer is not None
                left, right = first.chunk(2, dim=1)
                made.append(layer(left * right))
            elif kind == "relu_":
                made.append(F.relu(first * 1.5, inplace=True))
            elif kind == "matmul":
                made.append((first @ second.t()).softmax(-1) @ second)
            elif kind == "detach":
                made.append(first.detach() + second)
            else:
                made.append(
                    {
                        "add": lambda a, b: a + b, "mul": lambda a, b: a * b.sigmoid(), "gelu": lambda a, b: F.gelu(a),
                        "softmax": lambda a, b: a.softmax(dim=1), "transpose": lambda a, b: a.t().contiguous().t() + b,
                    }[kind](first, second)
                )  # fmt: skip
        return made


def frozen() -> nn.Linear:
    """A layer whose weight takes no gradient."""
    layer = nn.Linear(6, 6)
    layer.weight.requires_grad_(False)
    return layer
