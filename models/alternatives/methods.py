"""What PyTorch itself offers to train in less memory, applied to any module.

A method changes the module that it is given and returns what to call in its place; `restored` undoes the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

Method = Callable[[nn.Module], nn.Module]

_aten = torch.ops.aten
SAVED = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""Matmuls, convolutions and fused attention: what selective checkpointing saves."""


@dataclass(frozen=True, slots=True)
class Block:
    """A method of a module that checkpointing by block recomputes: ``forward``, or a named part of it."""

    owner: nn.Module
    method: str = "forward"


@dataclass(frozen=True, slots=True)
class Chain:
    """A module whose forward is ``parts``, one after the other, to be checkpointed in ``segments``."""

    owner: nn.Module
    parts: nn.Sequential
    segments: int


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Take off again, at the end, what methods put on ``module`` and its submodules."""
    before = {child: set(vars(child)) for child in module.modules()}
    try:
        yield
    finally:
        for child, names in before.items():
            for name in vars(child).keys() - names:
                del vars(child)[name]


def plain(module: nn.Module) -> nn.Module:
    """The module as it is."""
    return module


def per_block(blocks: Callable[[Any], Iterable[Block]], **options: Any) -> Method:
    """`torch.utils.checkpoint` around each block, not reentrant."""
    run = partial(checkpoint, use_reentrant=False, **options)

    def method(module: nn.Module) -> nn.Module:
        for block in blocks(module):
            vars(block.owner)[block.method] = partial(run, getattr(block.owner, block.method))
        return module

    return method


def keep_products(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The policy of selective checkpointing."""
    return CheckpointPolicy.MUST_SAVE if func in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def selective(blocks: Callable[[Any], Iterable[Block]]) -> Method:
    """Checkpointing of each block that saves matmuls, convolutions and fused attention."""
    return per_block(blocks, context_fn=partial(create_selective_checkpoint_contexts, keep_products))


def sequential(chains: Callable[[Any], Iterable[Chain]], *, reentrant: bool = False) -> Method:
    """`checkpoint_sequential` on each chain; it does not checkpoint the last segment."""

    def method(module: nn.Module) -> nn.Module:
        for chain in chains(module):
            vars(chain.owner)["forward"] = partial(
                checkpoint_sequential, chain.parts, chain.segments, use_reentrant=reentrant
            )
        return module

    return method


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
    """`torch.compile` with its memory budget: a fraction of what the compiler would save by default.

    The budget is read while compiling and guards nothing: compiling the class again with another one would
    reuse the old graph. So everything compiled before is dropped, by earlier methods too.
    """

    def method(module: nn.Module) -> nn.Module:
        torch._dynamo.reset()
        return _Compiled(module, fraction, backend)

    return method
