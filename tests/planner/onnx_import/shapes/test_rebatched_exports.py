"""A file exported at one batch and read at another has the tensors of an export at that batch, or is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from ogc_plan.planner.errors import OgcPlanError, UsageError
from ogc_plan.planner.onnx_import.reader import read_onnx
from torch import Tensor, nn

from models.export import export_module

WIDTH, LENGTH, NEW = 16, 6, 8


class Block(nn.Module):
    """Something that keeps the shape [batch, length, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.build()

    def build(self) -> None:
        """Make what else the block has."""


class Token(Block):
    def build(self) -> None:
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))[:, 1:]


class Recurrent(Block):
    def build(self) -> None:
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Positions(Block):
    def build(self) -> None:
        self.embedding = nn.Embedding(LENGTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.embedding(torch.arange(x.shape[1]).unsqueeze(0).expand(x.shape[0], -1))


class Attention(Block):
    """Its memory order is [length, batch, width], with the batch folded into the heads."""

    def build(self) -> None:
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class Heads(Block):
    """Attention in its own words, with a mask for each sample."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.layer(x).view(x.shape[0], x.shape[1], 4, 4).transpose(1, 2)
        mask = torch.ones(LENGTH, LENGTH).tril()[None, None].expand(x.shape[0], 1, -1, -1)
        weights = (q @ q.transpose(2, 3) + mask).softmax(-1)
        return (weights @ q).transpose(1, 2).reshape(x.shape)


class Queries(Block):
    def build(self) -> None:
        self.queries = nn.Parameter(torch.zeros(LENGTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q = self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1)
        return (q @ self.layer(x).transpose(1, 2)).softmax(-1) @ x


class Windows(Block):
    """The batch is folded with parts of the length, and taken apart again."""

    def forward(self, x: Tensor) -> Tensor:
        parts = x.view(x.shape[0], 2, LENGTH // 2, WIDTH).reshape(-1, LENGTH // 2, WIDTH)
        return self.layer(parts).view(x.shape[0], LENGTH, WIDTH)


class Dropped(Block):
    """Whole samples are dropped at random."""

    def forward(self, x: Tensor) -> Tensor:
        kept = x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.9)
        return x + self.layer(x) * kept


class Selected(Block):
    """Samples and places are named by index."""

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0])[:, None]
        return self.layer(x) + x[rows, torch.zeros_like(rows)]


class Flat(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, WIDTH)).relu().reshape(x.shape)


class TimeFirst(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).reshape(-1, WIDTH).view(LENGTH, -1, WIDTH).transpose(0, 1)


class Folded(Block):
    """An index of samples and heads together, as in disentangled attention."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.layer(x).view(x.shape[0], LENGTH, 4, 4).transpose(1, 2).reshape(-1, LENGTH, 4)
        scores = q @ q.transpose(1, 2)
        index = torch.arange(LENGTH).flip(0).expand(q.shape[0], LENGTH, LENGTH)
        picked = torch.gather(scores, 2, index)
        return (picked @ q).view(x.shape[0], 4, LENGTH, 4).transpose(1, 2).reshape(x.shape)


class Biased(Block):
    """Attention with a constant of batch and heads together added to its scores."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.layer(x).view(x.shape[0], LENGTH, 4, 4).transpose(1, 2).reshape(-1, LENGTH, 4)
        scores = torch.baddbmm(torch.zeros(q.shape[0], LENGTH, LENGTH), q, q.transpose(1, 2)).softmax(-1)
        return (scores @ q).view(x.shape[0], 4, LENGTH, 4).transpose(1, 2).reshape(x.shape)


BLOCKS: tuple[Callable[[], Block], ...] = (
    Token, Recurrent, Positions, Attention, Heads, Queries, Windows, Dropped, Selected, Flat, TimeFirst, Folded, Biased,
)  # fmt: skip


class Network(nn.Module):
    def __init__(self, blocks: tuple[Callable[[], Block], ...]) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.Sequential(*(block() for block in blocks))
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.first(x)))


@cache
def exported(blocks: tuple[Callable[[], Block], ...], batch: int) -> onnx.ModelProto:
    return export_module(Network(blocks), (torch.randn(batch, LENGTH, WIDTH),))


def sizes(blocks: tuple[Callable[[], Block], ...], batch: int, folder: Path, new: int | None = None) -> list[int]:
    """Bytes of what the ops of a network make, exported at one batch and read at another."""
    path = folder / "net.onnx"
    onnx.save(exported(blocks, batch), path)
    graph = read_onnx(path, batch=new)
    made = {graph.tensors[output].storage for op in graph.ops for output in op.outputs}
    return sorted(graph.storages[storage].nbytes for storage in made)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_a_block_has_the_tensors_of_an_export_at_the_new_batch(
    block: Callable[[], Block], batch: int, tmp_path: Path
) -> None:
    assert sizes((block,), batch, tmp_path, NEW) == sizes((block,), NEW, tmp_path)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_random_network_has_the_tensors_of_an_export_at_the_new_batch_or_is_refused(
    seed: int, batch: int, tmp_path: Path
) -> None:
    blocks = tuple(random.Random(seed).sample(BLOCKS, 4))
    right = sizes(blocks, NEW, tmp_path)
    try:
        found = sizes(blocks, batch, tmp_path, NEW)
    except OgcPlanError:
        return
    assert found == right


class Pairs(nn.Module):
    """A loss that compares each sample with all others, as in contrastive learning."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(x.shape[0], -1)
        return (rows @ rows.T).softmax(-1)


def test_a_network_that_does_work_across_samples_is_read(tmp_path: Path) -> None:
    onnx.save(export_module(Pairs(), (torch.randn(2, 3, 4),)), tmp_path / "pairs.onnx")
    assert read_onnx(tmp_path / "pairs.onnx", batch=8).tensors[-1].shape == (8, 8)


class Both(nn.Module):
    """At batch 1 either dimension of the reshaped tensor can have the batch, and the padding fits both."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x.transpose(0, 1).reshape(6, 4), (0, 2)).exp()


def test_a_file_that_fits_two_places_is_refused_and_both_are_named(tmp_path: Path) -> None:
    onnx.save(export_module(Both(), (torch.randn(1, 6, 4),)), tmp_path / "both.onnx")
    with pytest.raises(UsageError, match=r"cannot be told from a file at batch 1: .*\[48, 4\] or \[6, 32\]"):
        read_onnx(tmp_path / "both.onnx", batch=8)


class AllPairs(nn.Module):
    """Each sample beside each other one."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(x.shape[0], -1)
        return rows.repeat(x.shape[0], 1).exp()


class Halves(nn.Module):
    """The first half of the samples beside the second."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.exp().chunk(2, 0)
        return first * second


@pytest.mark.parametrize("module", [AllPairs(), Halves()], ids=lambda module: type(module).__name__)
def test_a_count_of_samples_that_may_be_the_batch_is_refused(module: nn.Module, tmp_path: Path) -> None:
    onnx.save(export_module(module, (torch.randn(2, 3, 4),)), tmp_path / "count.onnx")
    with pytest.raises(UsageError, match="batch"):
        read_onnx(tmp_path / "count.onnx", batch=8)
