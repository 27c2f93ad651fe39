"""Devices other than the first card: torch's default device, the second card, and several at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from ogc_plan.adapters.pytorch import binding_peak, plan_of, predict, within_budget
from ogc_plan.adapters.pytorch.errors import UnsupportedModuleError
from torch import Tensor, nn

from models.cuda.card import context_nbytes

SECOND = "cuda:1"
MB = 10**6
two_cards = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second card: STANDIN_DEVICES=2")


@pytest.fixture
def default_device() -> Iterator[None]:
    """Scripts may make CUDA torch's default device, after which tensors without a device are made on the card."""
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture(params=["segments", "expandable"])
def both_segments(request: pytest.FixtureRequest) -> Iterator[None]:
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{request.param == 'expandable'}")
    yield
    gc.collect()
    torch.cuda.empty_cache()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


class Net(nn.Module):
    """A network on one device, or its halves on two."""

    def __init__(self, device: str, second: str) -> None:
        super().__init__()
        layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.2))]
        self.first, self.then = nn.Sequential(*layers[:6]).to(device), nn.Sequential(*layers[6:]).to(second)
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.first(x).to(self.second)).square().mean()


def network(device: str, second: str | None = None) -> tuple[nn.Module, Tensor]:
    """A network, and what it takes."""
    return Net(device, second or device), torch.ones(4096, 256, device=device)


def generators_after(module: nn.Module, x: Tensor) -> list[list[int]]:
    torch.manual_seed(1)
    for _ in range(2):
        module(x).backward()
    return [state.tolist() for state in (torch.get_rng_state(), *torch.cuda.get_rng_state_all())]


def test_planned_training_leaves_the_generator_where_eager_training_does(default_device: None) -> None:
    module, x = network("cuda")
    bound = within_budget(module, (x,), budget="100%", strategy="segments:2")
    assert any(name.startswith("native_dropout") for name in plan_of(bound).recomputed)
    assert generators_after(bound, x) == generators_after(module, x)


def test_arguments_on_another_device_than_the_module_are_told() -> None:
    module, x = network("cuda")
    with pytest.raises(UnsupportedModuleError, match=r"tensors on .* to one device: \.to\(.cuda:0.\)"):
        within_budget(module, (x.cpu(),), budget="60%")


@two_cards
class TestTheSecondCard:
    """The first one is the current one all the while."""

    @pytest.fixture
    def made(self, both_segments: None) -> tuple[nn.Module, Tensor]:
        module, x = network(SECOND)
        return within_budget(module, (x,), budget=context_nbytes() + 150 * MB, optimizer="none"), x

    def peaks(self, bound: nn.Module, x: Tensor, device: str) -> tuple[int, ...]:
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(2):
            bound(x).backward()
            bound.zero_grad()
        found = torch.cuda.memory_stats(device)
        return tuple(int(found.get(f"{what}_bytes.all.peak", 0)) for what in ("requested", "reserved"))

    def test_a_step_takes_what_is_predicted(self, made: tuple[nn.Module, Tensor]) -> None:
        card = predict(made[0]).card
        assert card is not None
        gc.collect()
        assert self.peaks(*made, SECOND) == (card.requested_nbytes, card.reserved_nbytes)

    def test_a_step_reserves_no_more_than_its_budget(self, made: tuple[nn.Module, Tensor]) -> None:
        assert self.peaks(*made, SECOND)[1] <= 150 * MB

    def test_nothing_is_taken_of_the_first_one(self, made: tuple[nn.Module, Tensor]) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved("cuda:0")
        assert self.peaks(*made, "cuda:0")[1] == before

    def test_binding_is_measured_there(self, made: tuple[nn.Module, Tensor]) -> None:
        peak = binding_peak(made[0])
        assert peak is not None
        assert peak.requested_nbytes > made[1].nbytes

    def test_the_generators_are_where_eager_training_leaves_them(self) -> None:
        module, x = network(SECOND)
        bound = within_budget(module, (x,), budget="100%", strategy="segments:2")
        assert generators_after(bound, x) == generators_after(module, x)

    def test_a_module_of_two_cards_is_refused(self) -> None:
        module, x = network("cuda:0", SECOND)
        with pytest.raises(UnsupportedModuleError, match="Net computes on cuda:0 and cuda:1"):
            within_budget(module, (x,), budget="60%")
