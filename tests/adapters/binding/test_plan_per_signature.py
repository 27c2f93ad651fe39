"""With ``signatures="plan"`` each new signature is planned; otherwise it is refused."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, plans_of, within_budget
from ogc_plan.adapters.pytorch.binding.plan_per_signature import LIMIT
from ogc_plan.planner.errors import AdapterError, InfeasibleBudgetError
from torch import Tensor, nn

from models.meters.storage_meter import StorageMeter
from tests.modules.devices import cpu_only
from tests.modules.torch_training import alternating, bits

SMALL, LARGE = torch.randn(64, 16), torch.randn(192, 16)
SOFT = "70%"


def network() -> nn.Module:
    torch.manual_seed(0)
    wide = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.GELU(),
            nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU()]  # fmt: skip
    return nn.Sequential(*wide, nn.Linear(64, 4))


def planned(module: nn.Module, budget: str | int = SOFT, **options: Any) -> nn.Module:
    return within_budget(module, (SMALL,), budget=budget, device="cpu", strategy="greedy", **options)


def activation_peak(module: nn.Module, batch: Tensor) -> int:
    module.zero_grad()
    with StorageMeter([*module.parameters(), *module.buffers(), batch]) as meter:
        module(batch).square().mean().backward()
    return meter.activation_peak([p.grad for p in module.parameters() if p.grad is not None]).nbytes


@pytest.fixture
def trained() -> nn.Module:
    return planned(network(), signatures="plan")


@pytest.fixture
def both(trained: nn.Module) -> nn.Module:
    """A module that has met the large batch after the small one."""
    with pytest.warns(UserWarning, match="planned Sequential for another signature"):
        trained(LARGE)
    return trained


class TestPlanning:
    @pytest.mark.filterwarnings("ignore:planned Sequential")
    def test_two_batch_sizes_in_turn_train_to_the_bits_of_the_original(self, trained: nn.Module) -> None:
        batches = (SMALL, LARGE) * 3
        assert alternating(trained, batches) == alternating(network(), batches)

    def test_a_signature_is_planned_once(self, both: nn.Module) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            both(SMALL), both(LARGE)
        assert len(plans_of(both)) == 2

    def test_each_plan_keeps_its_budget(self, both: nn.Module) -> None:
        made = {SMALL: plans_of(both)[0], LARGE: plans_of(both)[1]}
        assert all(activation_peak(both, batch) <= plan.budget.nbytes for batch, plan in made.items())

    def test_a_share_is_a_share_of_what_the_new_arguments_need(self, both: nn.Module) -> None:
        small, large = plans_of(both)
        assert large.budget.nbytes > 2 * small.budget.nbytes

    @cpu_only("bytes of a card hold its context too: tests/cuda/test_cap.py")
    def test_a_budget_that_the_new_arguments_cannot_meet_is_refused(self) -> None:
        trained = planned(network(), 400_000, signatures="plan")
        with pytest.raises(InfeasibleBudgetError, match="proven infeasible"):
            trained(LARGE.repeat(9, 1))

    def test_the_warning_names_the_arguments(self, trained: nn.Module) -> None:
        with pytest.warns(
            UserWarning, match=rf"float32\[192, 16\] with strides \[16, 1\] on {LARGE.device}\): activation peak"
        ):
            trained(LARGE)

    def test_an_input_that_takes_a_gradient_is_another_signature(self, trained: nn.Module) -> None:
        batch = SMALL.clone().requires_grad_()
        with pytest.warns(UserWarning, match="takes a gradient"):
            trained(batch).sum().backward()
        assert batch.grad is not None

    @pytest.mark.filterwarnings("ignore:planned Sequential")
    def test_planning_in_the_middle_of_a_step_leaves_its_gradients_alone(self, trained: nn.Module) -> None:
        found = []
        for module in (trained, network()):
            torch.manual_seed(1)
            module(SMALL).sum().backward()
            module(LARGE).sum().backward()
            found.append([bits(p.grad) for p in module.parameters() if p.grad is not None])
        assert found[0] == found[1]

    def test_a_copy_has_the_plans_and_trains_its_own_parameters(self, both: nn.Module) -> None:
        other = copy.deepcopy(both)
        other(LARGE).sum().backward()
        assert (plans_of(other), next(both.parameters()).grad) == (plans_of(both), None)

    @pytest.mark.filterwarnings("ignore:planned Sequential")
    def test_the_signature_longest_unused_makes_room(self, trained: nn.Module) -> None:
        for row in range(9, 8 + LIMIT):
            trained(torch.randn(row, 16))
        with pytest.warns(UserWarning, match="the longest unused of 8 plans made room"):
            trained(torch.randn(8, 16))


class TestRefusal:
    def test_other_arguments_raise_unless_asked_to_plan(self) -> None:
        with pytest.raises(InputMismatchError, match=r"argument 0 is float32\[192, 16\]") as caught:
            planned(network())(LARGE)
        assert 'signatures="plan"' in str(caught.value.remedy)

    def test_another_value_of_signatures_is_refused(self) -> None:
        with pytest.raises(AdapterError, match="signatures is 'both'"):
            planned(network(), signatures="both")
