"""Embeddings, indexing, sorting, scans, and what their backwards add up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.cuda.steps.step import BF16, Loss, Step, called, numbers


def embedded(**options: Any) -> Step:
    return Step(
        lambda: Loss(nn.Sequential(nn.Embedding(100, 64, **options), nn.Linear(64, 64), nn.GELU())),
        lambda: (numbers(100, 8, 16),),
    )


def bag(mode: str, **options: Any) -> Step:
    return Step(
        lambda: Loss(nn.Sequential(nn.EmbeddingBag(100, 64, mode=mode, **options), nn.Linear(64, 64), nn.GELU())),
        lambda: (numbers(100, 8, 16),),
    )


ROWS = (16, 64)


def rows() -> tuple[Tensor, ...]:
    return (numbers(16, 16),)


def places() -> tuple[Tensor, ...]:
    return (numbers(16, 16, 64),)


STEPS: dict[str, Step] = {
    "embedding": embedded(),
    "embedding-padding": embedded(padding_idx=0),
    "embedding-by-frequency": embedded(scale_grad_by_freq=True),
    "bag-sum": bag("sum"),
    "bag-mean": bag("mean"),
    "bag-max": bag("max"),
    "index": called(lambda x, i: x[i], *ROWS, rest=rows),
    "index-put": called(lambda x, i: x.index_put((i,), x.detach(), accumulate=True), *ROWS, rest=rows),
    "index-put-values": called(lambda x, i: torch.zeros_like(x).index_put((i,), x), *ROWS, rest=rows),
    "index-add": called(lambda x, i: torch.zeros_like(x).index_add(0, i, x), *ROWS, rest=rows),
    "gather": called(lambda x, i: x.gather(0, i), *ROWS, rest=places),
    "scatter-add": called(lambda x, i: torch.zeros_like(x).scatter_add(0, i, x), *ROWS, rest=places),
    "scatter-reduce": called(lambda x, i: x.scatter_reduce(0, i, x, "amax"), *ROWS, rest=places),
    "cumsum": called(lambda x: x.cumsum(1), *ROWS),
    "sort-large": called(lambda x: x.sort(1)[0], 2, 4096),
    "topk": called(lambda x: x.topk(32, 1)[0].repeat(1, 2), *ROWS),
    "einsum": called(lambda x: torch.einsum("bij,bkj->bik", x, x) @ x, 2, 16, 64),
    "bmm-autocast": called(lambda x: torch.bmm(x, x.transpose(1, 2)) @ x, 2, 16, 64, contexts=(BF16,)),
    "baddbmm": called(lambda x: torch.baddbmm(x, x, x), 2, 16, 16),
    "cdist": called(lambda x: torch.cdist(x, x).repeat(1, 4), *ROWS),
    "bilinear": Step(
        lambda: Loss(nn.Bilinear(32, 32, 64)),
        lambda: tuple(torch.randn(16, 32, device="cuda", requires_grad=True) for _ in range(2)),
    ),
    "complex-product": called(
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(16, 32, 2)) * 1j).flatten(1), *ROWS
    ),
}
