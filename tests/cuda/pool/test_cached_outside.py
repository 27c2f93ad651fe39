"""What other steps have left cached outside of the step pool is given back where a step would exceed its budget."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, predict, within_budget
from ogc_plan.adapters.pytorch.execution.step_pool import StepPool
from torch import Tensor, nn

from models.meters.step_meters import clear_gradients

MIB = 1 << 20
ROWS = (8000, 6400, 5120)
SPARE = 12 * MIB
"""What a budget allows beyond the need of the largest step: for fragments between tensors of several shapes."""

MORE_THAN_FITS = 300 * MIB


class Projection(nn.Module):
    """Returns as many rows as a query has, which are large, from a step of about one size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(12))
        self.last = nn.Linear(256, 2048)

    def forward(self, x: Tensor, query: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        rows: Tensor = self.last(query + x.mean(0))
        return rows


class Loop:
    """Steps of one module within a budget that the largest needs, and ``spare`` bytes; their outputs are dropped."""

    def __init__(self, spare: int = SPARE, **options: Any) -> None:
        self.x = torch.randn(24576, 256, device="cuda")
        self.queries = {rows: torch.randn(rows, 256, device="cuda") for rows in ROWS}
        module = Projection().cuda()
        found = predict(within_budget(module, (self.x, self.queries[ROWS[0]]), budget="60%", **options)).card
        assert found is not None
        gc.collect()
        StepPool.release_idle()
        # The queries that a step does not take are there beside it.
        self.most_nbytes = found.most_reserved_nbytes + spare
        self.module = within_budget(module, budget=found.step_nbytes + spare, optimizer="none", **options)
        torch.cuda.reset_peak_memory_stats()

    def step(self, rows: int) -> None:
        (2 * self.module(self.x, self.queries[rows])).sum().backward()
        clear_gradients(self.module, ())

    def holding(self, turns: Iterable[int]) -> None:
        """Steps of so many rows, each with the outputs of the one before until its own are there."""
        for rows in turns:
            outputs = self.module(self.x, self.queries[rows])
            (2 * outputs).sum().backward()
            clear_gradients(self.module, ())

    def exceeds(self) -> bool:
        return torch.cuda.max_memory_reserved() > self.most_nbytes


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was reserved each time that the cache was emptied."""
    found: list[int] = []
    empty: Callable[[], None] = torch.cuda.empty_cache
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: (found.append(torch.cuda.memory_reserved()), empty()))
    return found


@pytest.mark.parametrize("accumulates", [False, True], ids=["one", "accumulated"])
def test_steps_of_several_shapes_with_large_outputs_stay_within_their_budget(accumulates: bool) -> None:
    loop = Loop(grad_accumulation=accumulates)
    for position in (0, 1, 2, 1, 0, 2, 1, 0):
        loop.step(ROWS[position])
    assert not loop.exceeds()


def test_a_step_is_planned_for_what_the_outputs_take_that_it_replaces() -> None:
    loop = Loop(spare=32 * MIB)
    loop.holding(reversed(ROWS))  # what the gradients of outputs take is not what the smaller ones before gave back
    assert not loop.exceeds()


def test_a_plan_that_was_made_before_makes_room_for_them() -> None:
    loop = Loop(spare=48 * MIB)
    with pytest.warns(UserWarning, match=r"exceeds its budget beside the outputs .* planned it again") as warned:
        loop.holding(ROWS[position] for position in (0, 1, 2, 0, 2, 1, 0))
    told = [str(each.message) for each in warned if "planned it again" in str(each.message)]
    assert (loop.exceeds(), len(told) < 4) == (False, True)


def test_where_none_makes_room_the_step_says_so_once_and_runs() -> None:
    loop = Loop()
    with pytest.warns(UserWarning, match="no smaller plan was found") as warned:
        loop.holding(ROWS[position] for position in (0, 1, 2, 0, 2, 1, 0))
    assert len([each for each in warned if "no smaller plan was found" in str(each.message)]) == 1


def test_a_step_beside_memory_that_the_caller_left_cached_is_within_its_budget() -> None:
    loop = Loop()
    loop.step(ROWS[0])
    torch.empty(MORE_THAN_FITS, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    loop.step(ROWS[1])
    loop.step(ROWS[0])
    torch.cuda.reset_peak_memory_stats()
    loop.step(ROWS[0])
    assert not loop.exceeds()


def test_a_step_that_empties_the_cache_reserves_what_is_predicted(emptied: list[int]) -> None:
    loop = Loop()
    loop.step(ROWS[0])
    torch.empty(MORE_THAN_FITS, dtype=torch.uint8, device="cuda")
    found = predict(loop.module).card
    assert found is not None
    before = len(emptied)
    loop.step(ROWS[0])
    torch.cuda.reset_peak_memory_stats()
    loop.step(ROWS[0])
    assert (len(emptied) > before, torch.cuda.max_memory_reserved()) == (True, found.reserved_nbytes)


def test_what_other_code_fills_after_each_step_is_given_back_once(emptied: list[int]) -> None:
    loop = Loop()
    loop.step(ROWS[0])
    emptied.clear()
    for _ in range(10):
        loop.step(ROWS[0])
        torch.empty(MORE_THAN_FITS, dtype=torch.uint8, device="cuda")
    assert len(emptied) == 1


def test_what_a_loss_fills_in_each_step_is_given_back_once(emptied: list[int]) -> None:
    loop = Loop()
    loop.step(ROWS[0])
    emptied.clear()
    for _ in range(10):
        rows = loop.module(loop.x, loop.queries[ROWS[0]])
        torch.empty(MORE_THAN_FITS, dtype=torch.uint8, device="cuda")
        rows.sum().backward()
        del rows
        clear_gradients(loop.module, ())
    assert len(emptied) == 1


def test_nothing_is_given_back_where_that_would_not_help(emptied: list[int]) -> None:
    loop = Loop()
    loop.step(ROWS[0])
    kept = []  # one in each segment, of which the rest cannot be given back
    for _ in range(20):
        kept.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))
        rest = [torch.empty(9 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
        del rest
    emptied.clear()
    for _ in range(3):
        loop.step(ROWS[0])
    assert (emptied, len(kept)) == ([], 20)


class Decoder(nn.Module):
    """A chain without large outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.mean(1)


def test_the_outputs_of_another_module_are_no_part_of_a_budget() -> None:
    encoder, decoder, x = nn.Linear(256, 2048).cuda(), Decoder().cuda(), torch.randn(16000, 256, device="cuda")
    code = torch.randn(16000, 256, device="cuda", requires_grad=True)
    found = predict(within_budget(decoder, (code,), budget="70%")).card
    assert found is not None
    del code
    gc.collect()
    StepPool.release_idle()
    first = within_budget(encoder, budget="4GB", optimizer="none")
    second = within_budget(decoder, budget=found.step_nbytes, optimizer="none")
    out = first(x)  # which lives through the step of the decoder
    out.sum().backward()
    second(out.detach().square()[:, :256].contiguous().requires_grad_()).sum().backward()
    assert plan_of(second).peak.activation_nbytes >= plan_of(within_budget(decoder, (x,), budget="50%")).budget.nbytes


def test_nothing_is_given_back_where_it_fits(emptied: list[int]) -> None:
    loop = Loop(spare=2 * MORE_THAN_FITS)
    loop.step(ROWS[0])
    emptied.clear()
    for _ in range(3):
        torch.empty(MORE_THAN_FITS, dtype=torch.uint8, device="cuda")
        loop.step(ROWS[0])
    assert emptied == []
