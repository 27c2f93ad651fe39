"""Planned steps share a pool of the allocator that has one large segment."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, predict, within_budget
from ogc_plan.adapters.pytorch.execution.step_pool import StepPool
from torch import Tensor, nn

from models.meters.step_meters import clear_gradients
from models.networks.gpt2 import GPT2Config
from models.training.cases import gpt_case

MIB = 1 << 20
CASE = gpt_case(4, GPT2Config(vocabulary=2048, context=128, layers=4, heads=4, width=256, dropout=0.1))


@pytest.fixture(autouse=True)
def whole_card() -> Iterator[None]:
    """Each test ends with no limit on the process."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def pool() -> StepPool:
    return StepPool.of(torch.device("cuda", 0))


def limited(nbytes: int) -> None:
    torch.cuda.set_per_process_memory_fraction(nbytes / torch.cuda.get_device_properties(0).total_memory)


def bound(budget: str | int = "60%", **options: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
    module, arguments = CASE.build().cuda(), CASE.arguments(0, "cuda")
    planned = within_budget(module, arguments, budget=budget, **options)
    gc.collect()
    return planned, arguments


def test_steps_take_nothing_more_of_the_card_than_the_first() -> None:
    module, arguments = bound()
    module(*arguments).backward()
    first = torch.cuda.memory_reserved()
    for _ in range(4):
        clear_gradients(module, arguments)
        module(*arguments).backward()
    assert torch.cuda.memory_reserved() == first


def test_the_segment_outlives_an_emptied_cache() -> None:
    module, _ = bound()
    reserved = pool().reserved_nbytes
    torch.cuda.empty_cache()
    assert (module is not None, pool().reserved_nbytes) == (True, reserved)


def test_others_get_its_memory_where_they_would_run_out() -> None:
    module, _ = bound()
    limited(torch.cuda.memory_reserved() + 2 * MIB)
    other = torch.empty(pool().reserved_nbytes // 2, dtype=torch.uint8, device="cuda")
    assert (module is not None, other.is_cuda) == (True, True)


def test_a_larger_plan_replaces_the_segment() -> None:
    smaller, arguments = bound("60%")
    larger = within_budget(smaller, arguments, budget="100%", strategy="keep-all")
    segments = [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == pool().id]
    assert (larger is not None, max(segment["total_size"] for segment in segments)) == (True, pool().reserved_nbytes)


def test_gradients_live_on_without_the_module_that_made_them() -> None:
    module, arguments = bound()
    module(*arguments).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    del module
    gc.collect()
    torch.cuda.empty_cache()
    assert all(gradient is not None and gradient.add_(1).is_cuda for gradient in gradients)


def test_two_forwards_before_their_backwards_run() -> None:
    module, arguments = bound()
    losses = [module(*arguments) for _ in range(2)]
    for loss in losses:
        loss.backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_training_with_an_optimizer_stays_within_a_card_of_the_budget() -> None:
    least = bound("min", optimizer="adamw")[0]
    card = predict(least).card
    assert card is not None
    budget = card.step_nbytes + plan_of(least).graph.stationary.optimizer_nbytes + 64 * MIB
    del least
    gc.collect()
    module, arguments = bound(budget, optimizer="adamw")
    optimizer = torch.optim.AdamW(module.parameters())
    limited(budget)
    for _ in range(4):
        module(*arguments).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.cuda.max_memory_reserved() <= budget


def test_a_step_is_captured_as_a_graph() -> None:
    module, arguments = bound()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        module(*arguments).backward()
    torch.cuda.synchronize()
    clear_gradients(module, arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(*arguments).backward()
    graph.replay()
    assert all(parameter.grad is not None for parameter in module.parameters())
