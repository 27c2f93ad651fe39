"""What a PyTorch user can pick today to train in less memory, applied to a training case.

Each method takes a case and a fresh module of it and returns the forward to call; it may change the module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from models.training.cases import Case, Supervised

Forward = Callable[..., Tensor]
Method = Callable[[Case, Supervised], Forward]

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


def eager(case: Case, module: Supervised) -> Forward:
    """The module as it is."""
    return module


def _checkpoint_blocks(case: Case, module: Supervised, **options: Any) -> Forward:
    for block in case.blocks(module):
        run = getattr(block.owner, block.method)
        setattr(block.owner, block.method, partial(checkpoint, run, use_reentrant=False, **options))
    return module


def per_block(case: Case, module: Supervised) -> Forward:
    """`torch.utils.checkpoint` around each block, the variant that is not reentrant."""
    return _checkpoint_blocks(case, module)


def keep_products(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The policy of selective checkpointing: save matmuls, convolutions and fused attention."""
    return CheckpointPolicy.MUST_SAVE if func in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def selective(case: Case, module: Supervised) -> Forward:
    """Selective checkpointing of each block: matmuls, convolutions and fused attention are saved."""
    return _checkpoint_blocks(case, module, context_fn=partial(create_selective_checkpoint_contexts, keep_products))


def segments(count: int) -> Method:
    """`checkpoint_sequential` with ``count`` segments, the last of which it does not checkpoint."""

    def apply(case: Case, module: Supervised) -> Forward:
        assert case.sequential is not None
        chain = case.sequential(module)

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            return module.loss(checkpoint_sequential(chain, count, inputs, use_reentrant=False), targets)

        return forward

    return apply


def compile_budget(fraction: float, backend: str) -> Method:
    """`torch.compile` with its memory budget: a fraction of what the compiler would save by default.

    The budget is read while compiling and guards nothing: compiling the class again with another one would
    reuse the old graph, so everything compiled before is dropped, methods made earlier included.
    """

    def apply(case: Case, module: Supervised) -> Forward:
        torch._dynamo.reset()
        compiled = torch.compile(module, backend=backend)

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            with functorch_config.patch(activation_memory_budget=fraction):
                loss: Tensor = compiled(inputs, targets)
            return loss

        return forward

    return apply


def methods(case: Case, *, backend: str, budgets: tuple[float, ...], counts: tuple[int, ...]) -> dict[str, Method]:
    """Every method that the case allows, by the name it has in tables."""
    found: dict[str, Method] = {"checkpoint per block": per_block}
    if case.sequential is not None:
        found |= {f"checkpoint_sequential, {count} segments": segments(count) for count in counts}
    found["selective: save matmul, conv, attention"] = selective
    found |= {f"compile budget {fraction:g} ({backend})": compile_budget(fraction, backend) for fraction in budgets}
    return found
