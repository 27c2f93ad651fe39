"""Gradients of outputs in other layouts than the trace's: kernels sum in the order of the memory, so a plan does."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import pytest
import torch
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.adapters.pytorch.execution import executor
from torch import Tensor, nn

pytestmark = pytest.mark.values


class Heads(nn.Module):
    """Convolutions side by side, whose results are laid out as ``arranged`` says."""

    def __init__(self, arranged: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.boxes, self.score = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 2, 1)
        self.arranged = arranged

    def forward(self, x: Tensor) -> Tensor:
        return self.arranged(torch.cat([self.boxes(x), self.score(x)], 1))


def joined(y: Tensor) -> Tensor:
    flat = y.reshape(1, 6, -1)
    return torch.cat([flat, flat * 2], 2).permute(0, 2, 1)


ARRANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda y: y,
    "channels last": lambda y: y.permute(0, 2, 3, 1),
    "rows of a table": lambda y: y.flatten(2).transpose(1, 2),
    "joined rows": joined,
    "half of it": lambda y: y[:, :, ::2],
}
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "squares": lambda y: y.square().mean(),
    "mean": lambda y: y.mean(),
    "squared error": lambda y: nn.functional.mse_loss(y, torch.ones_like(y)),
    "classes": lambda y: nn.functional.cross_entropy(y.flatten(0, -2), torch.zeros(y.numel() // y.shape[-1]).long()),
    "a part": lambda y: y[..., 1:3].exp().mean(),
    "with others": lambda y: torch.cat([y, y.detach()], -1).tanh().mean(),
    "turned": lambda y: (y.transpose(1, -1).contiguous() * 3).square().sum(),
}


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("arranged", list(ARRANGED))
def test_gradients_in_any_layout_give_the_bits_of_eager(arranged: str, loss: str) -> None:
    torch.manual_seed(0)
    eager, x = Heads(ARRANGED[arranged]), torch.randn(1, 8, 40, 40)
    planned = within_budget(copy.deepcopy(eager), (x,), budget="100%", device="a100")
    for module in (eager, planned):
        LOSSES[loss](module(x)).backward()
    pairs = zip(planned.parameters(), eager.parameters(), strict=True)
    assert all(torch.equal(mine.grad, theirs.grad) for mine, theirs in pairs)


def test_an_argument_that_is_let_go_needs_no_memory_for_another_layout() -> None:
    planned = within_budget(Heads(ARRANGED["channels last"]), budget="100%", device="a100")
    x = torch.randn(1, 8, 40, 40)
    held = weakref.ref(x)
    y = planned(x.tanh())
    del x
    assert held() is None
    y.square().mean().backward()
    assert all(parameter.grad is not None for parameter in planned.parameters())


def test_a_layout_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = within_budget(Heads(ARRANGED["channels last"]), budget="100%", device="a100")
    x = torch.randn(1, 8, 40, 40)
    planned(x).square().mean().backward()
    monkeypatch.setattr(executor, "capture", lambda *_, **__: pytest.fail("it is traced again"))
    planned(x).square().mean().backward()
