"""Binding on a card that has little more than the step needs, and what binding says that it took."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ogc_plan.adapters.pytorch import binding_peak, plan_of, within_budget
from ogc_plan.planner.errors import AdapterError
from torch import Tensor, nn
from torch.nn import functional as F

from models.cuda import card
from models.cuda.networks import SMALL
from models.cuda.tight_card import main

MB = 10**6


class Cut(nn.Module):
    """Attention over queries, keys and values that are cut from one product: no call is larger."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(64, 192)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.product(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(parts[0], parts[1], parts[2])


class Turned(nn.Module):
    """A call on a transposed tensor, which tracing runs to learn how its result lies in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x.t(), -1)


@pytest.fixture(autouse=True)
def whole_card() -> Iterator[None]:
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_networks_are_bound_and_trained_on_a_card_of_their_budget(tmp_path: Path) -> None:
    assert main([*SMALL, "-o", str(tmp_path / "tight.json")]) == 0
    rows = json.loads((tmp_path / "tight.json").read_text())["rows"]
    assert [(row["name"], row["eager"]) for row in rows] == [(name, "out of memory") for name in SMALL]


def peaks(module: nn.Module, *args: Tensor) -> tuple[tuple[int, int], tuple[int, int]]:
    """What binding says that it took, and what the allocator says."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    told = binding_peak(within_budget(module, args, budget="100%", strategy="keep-all"))
    assert told is not None
    stats = torch.cuda.memory_stats()
    return tuple(told), (stats["requested_bytes.all.peak"], stats["reserved_bytes.all.peak"])


@pytest.mark.parametrize("name", SMALL)
def test_binding_says_what_measuring_took_of_all_that_it_takes(name: str) -> None:
    """Beside measuring it takes the segment of the step."""
    case = SMALL[name].case
    module, arguments = case.build().cuda(), case.arguments(0, "cuda")
    before = torch.cuda.memory_allocated()
    told, found = peaks(module, *arguments)
    assert before < told[0] <= found[0]


def test_arguments_that_share_memory_are_made_once() -> None:
    module, x = Cut().cuda(), torch.randn(64, 256, 64, device="cuda", requires_grad=True)
    module(x).sum().backward()  # cuBLAS has its workspace now
    module.zero_grad()
    x.grad = None
    before = torch.cuda.memory_allocated()
    told, _ = peaks(module, x)
    bound = within_budget(module, (x,), budget="100%", strategy="keep-all")
    assert told[0] - before <= plan_of(bound).peak.total_nbytes


def test_a_call_that_does_not_fit_while_it_is_traced_is_an_error_that_names_it() -> None:
    x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    card.limit(torch.cuda.memory_reserved() + 20 * MB)
    with pytest.raises(AdapterError, match=r"ran out of memory while aten\._softmax"):
        within_budget(Turned(), (x,), budget="100%", strategy="keep-all")


def test_a_cpu_has_no_such_peak() -> None:
    bound = within_budget(nn.Linear(2, 2), (torch.ones(1, 2),), budget="100%", strategy="keep-all")
    assert binding_peak(bound) is None
