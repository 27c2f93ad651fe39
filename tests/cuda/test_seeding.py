"""A forward that seeds or rewinds the card's generator, which a planned step would not, is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, within_budget
from torch import Tensor, nn

WAYS: dict[str, Callable[[], object]] = {
    "all": lambda: torch.manual_seed(0),
    "the card": lambda: torch.cuda.manual_seed(0),
    "all cards": lambda: torch.cuda.manual_seed_all(0),
    "its generator": lambda: torch.cuda.default_generators[0].manual_seed(0),
    "its state": lambda: torch.cuda.set_rng_state(torch.cuda.get_rng_state()),
}


class Seeding(nn.Linear):
    """A layer that seeds, and then drops out."""

    def __init__(self, seed: Callable[[], object]) -> None:
        super().__init__(8, 8)
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        self.seed()
        return nn.functional.dropout(super().forward(x)).sum()


@pytest.mark.parametrize("way", WAYS)
def test_seeding_is_refused(way: str) -> None:
    with pytest.raises(UnsupportedModuleError, match="seeds or rewinds the random generator"):
        within_budget(Seeding(WAYS[way]).cuda(), (torch.ones(4, 8, device="cuda"),), budget="min")


def test_the_generators_of_cards_are_there_afterwards() -> None:
    before = torch.cuda.default_generators
    within_budget(Seeding(int).cuda(), (torch.ones(4, 8, device="cuda"),), budget="min")
    assert torch.cuda.default_generators is before
