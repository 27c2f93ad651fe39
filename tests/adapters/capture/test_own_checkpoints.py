"""Checkpoints that a module makes itself are taken out: the plan decides what is recomputed, to the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, plan_of, within_budget
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.modules.torch_training import bits, planned, train

X = (torch.randn(8, 6, requires_grad=True),)


def selective() -> Any:
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)


class Net(nn.Module):
    """A layer, and two checkpointed blocks with dropout: [8, 6] -> []."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.options = options
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3)) for _ in range(2))
        self.norm: nn.Module = nn.Identity()

    def part(self, block: nn.Module, x: Tensor) -> Tensor:
        return self.norm(block(x)) + x

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(self.part, block, x, **self.options) if self.options else self.part(block, x)
        return x.square().sum()


KINDS: dict[str, dict[str, Any]] = {
    "not reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {"use_reentrant": False, "context_fn": selective},
}

pytestmark = pytest.mark.filterwarnings("ignore:Net checkpoints parts of itself")


@pytest.mark.parametrize("kind", KINDS)
class TestTakenOut:
    def test_it_trains_to_the_bits_of_eager_with_its_checkpoints(self, kind: str) -> None:
        assert train(planned(Net(**KINDS[kind]), X, "min"), X, steps=3) == train(Net(**KINDS[kind]), X, steps=3)

    def test_its_graph_is_that_without_checkpoints(self, kind: str) -> None:
        found = [plan_of(planned(net, X)).model.fingerprint for net in (Net(**KINDS[kind]), Net())]
        assert found[0] == found[1]

    @pytest.mark.values
    def test_statistics_of_a_batch_norm_move_once(self, kind: str) -> None:
        net = Net(**KINDS[kind])
        net.norm = nn.BatchNorm1d(6)
        trained = planned(net, X)
        trained(*X).backward()
        assert trained.norm.num_batches_tracked.item() == 2  # it is called twice

    def test_it_is_said(self, kind: str) -> None:
        with pytest.warns(UserWarning, match="the plan takes these checkpoints out"):
            planned(Net(**KINDS[kind]), X)


def test_a_checkpoint_that_cuts_gradients_off_still_does() -> None:
    """A reentrant checkpoint of arguments without gradient gives its parameters none."""

    class Frozen(Net):
        def forward(self, x: Tensor) -> Tensor:
            cut = checkpoint(self.blocks[0], x.detach(), use_reentrant=True) if self.options else x
            return (self.first(x) + cut).square().sum()

    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        eager = train(Frozen(**KINDS["reentrant"]), X)
    assert train(planned(Frozen(**KINDS["reentrant"]), X), X) == eager


def test_a_module_that_begins_to_checkpoint_keeps_its_bits() -> None:
    trained, eager = within_budget(Net(), X, budget="min", strategy="greedy"), Net()
    found = []
    for net in (trained, eager):
        net.options = KINDS["reentrant"]
        torch.manual_seed(1)
        net(*X).backward()
        found.append([bits(parameter.grad) for parameter in net.parameters()])
    assert found[0] == found[1]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_would_draw_other_numbers_is_refused(reentrant: bool) -> None:
    with pytest.raises(UnsupportedModuleError, match="preserve_rng_state=False draws random numbers"):
        planned(Net(use_reentrant=reentrant, preserve_rng_state=False), X)


def test_a_checkpoint_that_keeps_no_random_state_and_draws_nothing_trains_to_the_bits_of_eager() -> None:
    nets = [Net(use_reentrant=False, preserve_rng_state=False) for _ in range(2)]
    for net in nets:
        net.blocks = net.blocks.append(nn.Linear(6, 6))[2:]
    torch.manual_seed(2)
    nets[0].load_state_dict(nets[1].state_dict())
    assert train(planned(nets[0], X, "min"), X) == train(nets[1], X)
