"""Modules with their loss inside for the tests of torch's checkpoint, and one step of them under a meter."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.step.annotate import annotate, visible_costs
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner import pipeline
from ogc_plan.planner.model import from_annotation
from ogc_plan.planner.plan_file.record import Plan
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.meters.step_meters import by_storages
from models.meters.storage_meter import training_step
from models.networks.resnet import BasicBlock
from tests.modules.torch_training import CountedCalls


class Perceptron(nn.Module):
    """A chain of blocks, each a container in a container."""

    def __init__(self, depth: int = 4, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Tanh())
                for _ in range(depth)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).exp().mean()


class Residuals(nn.Module):
    """A small ResNet."""

    def __init__(self, depth: int = 5, channels: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.Sequential(*(BasicBlock(channels, channels, 1) for _ in range(depth)))
        self.head = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.stem(x)).mean((2, 3))).exp().mean()


class Layer(nn.Module):
    """A transformer layer with dropout on both branches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return y.transpose(1, 2).reshape(batch, length, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.out(self.attend(self.norm(x))))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """A small GPT; its layers stand in a list, which is never called itself."""

    def __init__(self, depth: int = 3, width: int = 16, words: int = 20) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, 2) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Spread(nn.Module):
    """Saves its result, which is larger than what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x.unsqueeze(-1).expand(*x.shape, 16))


class Held(nn.Module):
    """Without a loss: what the last block saves is the output, which the caller holds."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), Spread())

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Shift(nn.Module):
    """Saves what it makes and not what it is given: only a checkpoint keeps its argument."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((x + 1) + 1)


class Shifts(nn.Module):
    """Layers whose results nobody keeps unless a checkpoint does."""

    def __init__(self, depth: int = 4, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(width, 8 * width), Shift(), nn.Linear(8 * width, width), Shift())
                for _ in range(depth)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).exp().mean()


Arguments = tuple[Tensor, ...]
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Arguments]]] = {
    "perceptron": (Perceptron, lambda: (torch.randn(16, 32),)),
    "residual": (Residuals, lambda: (torch.randn(3, 3, 10, 10),)),
    "transformer": (Transformer, lambda: (torch.randint(20, (3, 12)), torch.randint(20, (3, 12)))),
}


def built(name: str) -> tuple[nn.Module, Arguments]:
    """The module and arguments of a case."""
    torch.manual_seed(0)
    module, arguments = CASES[name]
    return module(), arguments()


def called(module: nn.Module) -> frozenset[str]:
    """The paths of the modules that are called, as the file of an export records them."""
    return frozenset(path for path, child in module.named_modules() if path and not isinstance(child, nn.ModuleList))


def stored(module: nn.Module, args: Arguments) -> Plan:
    """The plan that stores everything, with the workspace that a meter of tensors sees."""
    step = TracedStep(capture(module, args))
    annotated = annotate(step, measure=False)
    made = pipeline.plan(from_annotation(annotated.annotation, name="m", device="cpu"), "100%", strategy="keep-all")
    return replace(made, costs=visible_costs(made.costs, annotated.visible))


def budgeted(plan: Plan, nbytes: int) -> Plan:
    """The plan with another budget on its activations."""
    return replace(plan, budget=replace(plan.budget, nbytes=nbytes))


def wrap(module: nn.Module, paths: Iterable[str], **options: Any) -> nn.Module:
    """A copy of ``module`` with torch's checkpoint around some submodules."""
    module = copy.deepcopy(module)
    for path in paths:
        child = module.get_submodule(path)
        child.forward = partial(checkpoint, child.forward, use_reentrant=False, **options)  # type: ignore[method-assign]
    return module


@dataclass(frozen=True)
class Stepped:
    """One training step: the peak of activations and every gradient."""

    peak_nbytes: int
    gradients: tuple[Tensor, ...]

    def equals(self, other: Stepped) -> bool:
        """Whether the gradients are the same bits."""
        return all(torch.equal(mine, theirs) for mine, theirs in zip(self.gradients, other.gradients, strict=True))


def calls(module: nn.Module, args: Arguments) -> Counter[str]:
    """How often each aten call is made in one step."""
    with CountedCalls() as counted:
        module(*args).backward()
    return counted.count


def stepped(module: nn.Module, args: Arguments) -> Stepped:
    """One step from a fixed seed under the storage meter."""

    def step() -> Tensor:
        if isinstance(module, Held):
            return training_step(module, args)
        output: Tensor = module(*args)
        output.backward()
        return output

    torch.manual_seed(1)
    module.zero_grad(set_to_none=True)
    peak = by_storages(step, module, args).activation_nbytes
    return Stepped(peak, tuple(p.grad.clone() for p in module.parameters() if p.grad is not None))
