"""What PyTorch itself offers to train in less memory, applied to any network of the zoo.

Each method changes a network's module for as long as its context lasts, and gives what to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from models.benchmark.division import blocks_of, chains_of, layers_of, segments_of, stages_of
from models.training.alternatives import keep_products

Method = Callable[[nn.Module], AbstractContextManager[nn.Module]]


@contextmanager
def _forwards(replaced: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Give modules other forwards, for as long as this lasts."""
    for module, forward in replaced.items():
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module in replaced:
            del module.__dict__["forward"]


@contextmanager
def per_block(module: nn.Module, **options: Any) -> Iterator[nn.Module]:
    """`torch.utils.checkpoint` around each block, not reentrant; a trunk of layers is taken stage by stage."""
    run = partial(checkpoint, use_reentrant=False, **options)

    def checkpointed(block: nn.Module) -> Callable[..., Any]:
        stages = stages_of(block)
        if len(stages) == 1:
            return partial(run, block.forward)

        def forward(x: Tensor) -> Any:
            for stage in stages:
                x = run(nn.Sequential(*stage), x)
            return x

        return forward

    with _forwards({block: checkpointed(block) for block in blocks_of(module)}):
        yield module


@contextmanager
def sequential(module: nn.Module) -> Iterator[nn.Module]:
    """`checkpoint_sequential` with about sqrt(n) segments on every outermost Sequential of n layers."""

    def split(chain: nn.Sequential) -> Callable[[Tensor], Tensor]:
        segments = [nn.Sequential(*part) for part in segments_of(layers_of(chain))]
        return partial(checkpoint_sequential, segments, len(segments), use_reentrant=False)

    with _forwards({chain: split(chain) for chain in chains_of(module)}):
        yield module


def selective(module: nn.Module) -> AbstractContextManager[nn.Module]:
    """Checkpointing of each block that saves products: matmuls, convolutions, attention."""
    return per_block(module, context_fn=partial(create_selective_checkpoint_contexts, keep_products))


class _Compiled(nn.Module):
    """A compiled module that sets the memory budget for as long as it runs, when it also compiles."""

    def __init__(self, module: nn.Module, fraction: float, backend: str) -> None:
        super().__init__()
        self.module, self.fraction = module, fraction
        self.__dict__["compiled"] = torch.compile(module, backend=backend)

    def forward(self, *inputs: Tensor) -> Any:
        """The compiled forward."""
        with functorch_config.patch(activation_memory_budget=self.fraction):
            return self.__dict__["compiled"](*inputs)


def compile_budget(fraction: float, backend: str) -> Method:
    """`torch.compile` with its memory budget, a fraction of what it would save by default."""

    @contextmanager
    def method(module: nn.Module) -> Iterator[nn.Module]:
        torch._dynamo.reset()
        yield _Compiled(module, fraction, backend)
        torch._dynamo.reset()

    return method


def methods(module: nn.Module, *, fake: bool, budgets: tuple[float, ...], backend: str) -> dict[str, Method]:
    """Every method that applies to a network, by name; nothing can be compiled for fake tensors."""
    found: dict[str, Method] = {}
    if blocks_of(module):
        found |= {"checkpoint per block": per_block, "selective per block: save matmul, conv, attention": selective}
    if chains_of(module):
        found["checkpoint_sequential, sqrt(n) segments"] = sequential
    if not fake:
        found |= {f"compile budget {fraction:g} ({backend})": compile_budget(fraction, backend) for fraction in budgets}
    return found
