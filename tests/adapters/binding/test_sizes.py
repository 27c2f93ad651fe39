"""Steps whose sizes vary: no limit of plans, and buckets of sizes that share one search."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
from ogc_plan.adapters.pytorch import plans_of, within_budget
from ogc_plan.adapters.pytorch.binding import buckets, kept_plans
from ogc_plan.adapters.pytorch.binding.bound_module import runner_of
from ogc_plan.planner import pipeline
from ogc_plan.planner.errors import AdapterError
from torch import Tensor, nn

from tests.modules.devices import cpu_only
from tests.modules.torch_training import alternating, bits

pytestmark = pytest.mark.filterwarnings("ignore:planned .* again")

LENGTHS = (37, 91, 64, 40)


class Reader(nn.Module):
    """Token ids [N, T] and a mask of the same shape -> scalar; it has places for 160 tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(160, 16)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 16)) for _ in range(3))
        )

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        y = self.layers(x).square().sum(2)
        return y.sum() if mask is None else (y * mask).sum()


def ids(length: int) -> Tensor:
    return torch.arange(2 * length).reshape(2, length) % 50


def planned(budget: str | int = "70%", **options: Any) -> Any:
    return within_budget(Reader(), budget=budget, **{"device": "cpu", "strategy": "greedy"} | options)


def met(*lengths: int, **options: Any) -> Any:
    """A module that has met sentences of these lengths."""
    module = planned(**options)
    for length in lengths:
        module(ids(length))
    return module


def test_more_sizes_than_plans_are_kept_train_to_the_bits_of_eager_training() -> None:
    batches = [ids(length) for length in LENGTHS * 2]
    assert alternating(planned(max_plans=2), batches) == alternating(Reader(), batches)


def test_a_size_is_planned_once() -> None:
    module = met(*LENGTHS)
    with patch.object(kept_plans.KeptPlans, "add", side_effect=AssertionError("planned")):
        for length in LENGTHS:
            module(ids(length))


def test_one_warning_tells_of_other_sizes() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        met(37, 52, 64)
    assert ["others like it are planned as they come" in str(warning.message) for warning in told] == [True]


def test_the_size_used_last_long_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "SIZES", 2)
    module = met(37, 52, 64, 52, 91, max_plans=1)
    assert [executor.shapes for executor in runner_of(module)._kept.executors] == [[(2, n)] for n in (37, 52, 91)]


def test_other_arguments_than_sizes_still_count() -> None:
    module = met(37, 52, 64, max_plans=1)
    with pytest.raises(AdapterError, match="has 1 plan and this step needs another"):
        module(ids(37), torch.ones(2, 37))


def test_a_change_of_the_module_is_told_though_sizes_differ_too() -> None:
    module = met(37, 52)
    module.layers[0].requires_grad_(False)
    with pytest.warns(UserWarning, match="as parameter 'layers.0.0.weight' is .* takes a gradient"):
        module(ids(64))


@pytest.mark.values
def test_a_size_that_values_decide_does_not_count() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.layer(x[mask]).square().sum()

    module = within_budget(Chosen(), budget="100%", device="cpu", strategy="greedy", max_plans=1)
    x = torch.ones(8, 16)
    for chosen in (2, 5, 3):
        module(x, torch.arange(8) < chosen).backward()
    assert len(plans_of(module)) == 3


class TestBuckets:
    def test_sizes_of_a_bucket_share_one_search(self) -> None:
        with patch.object(pipeline, "plan", wraps=pipeline.plan) as searched:
            met(37, 52, 64, 33, bucket={1: 64})
        assert searched.call_count == 1

    def test_training_gives_the_bits_of_eager_training(self) -> None:
        batches = [ids(length) for length in LENGTHS]
        assert alternating(planned(bucket={1: 32}), batches) == alternating(Reader(), batches)

    def test_the_plan_is_that_of_the_largest_size(self) -> None:
        small, largest = (plans_of(met(length, bucket={1: 64}))[0] for length in (40, 64))
        assert [(step.kind, step.index) for step in small.schedule] == [
            (step.kind, step.index) for step in largest.schedule
        ]

    def test_a_share_is_a_share_of_the_largest_size(self) -> None:
        small, largest = (plans_of(met(length, bucket={1: 64}))[0] for length in (40, 64))
        assert small.budget.nbytes == largest.budget.nbytes

    def test_every_plan_keeps_that_budget(self) -> None:
        made = plans_of(met(*LENGTHS, bucket={1: 64}))
        assert all(plan.peak.activation_nbytes <= plan.budget.nbytes for plan in made)

    def test_the_first_plan_may_be_made_at_once(self) -> None:
        module = within_budget(Reader(), (ids(40),), budget="70%", device="cpu", strategy="greedy", bucket={1: 64})
        with patch.object(pipeline, "plan", side_effect=AssertionError("searched")):
            module(ids(50))

    def test_all_tensors_of_that_size_are_as_large(self) -> None:
        module = planned(bucket={1: 64})
        module(ids(40), torch.ones(2, 40))
        (largest,) = runner_of(module)._buckets._largest
        assert largest.shapes == [(2, 64), (2, 64)]

    def test_sizes_that_the_forward_does_not_take_are_planned_on_their_own(self) -> None:
        with pytest.warns(UserWarning, match="up to size 200 of dimension 1 are each planned on their own"):
            assert len(plans_of(met(120, bucket={1: 200}))) == 1

    @cpu_only("bytes of a card hold its context too")
    def test_sizes_that_do_not_fit_leave_smaller_ones_that_do(self) -> None:
        budget = plans_of(met(40))[0].peak.total_nbytes
        with pytest.warns(UserWarning, match="are each planned on their own"):
            made = plans_of(met(40, bucket={1: 128}, budget=budget, optimizer="none"))
        assert made[0].peak.total_nbytes <= budget

    def test_sizes_that_do_not_fit_do_not_speak_for_other_arguments(self) -> None:
        budget = plans_of(met(40))[0].peak.activation_nbytes
        module = planned(bucket={1: 64}, budget=budget, scope="activations", optimizer="none")
        with pytest.warns(UserWarning, match="are each planned on their own"):
            module(ids(40))
        module(ids(40)[:1])
        (largest,) = runner_of(module)._buckets._largest
        assert largest.shapes == [(1, 64)]

    def test_as_many_are_kept_as_sizes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(buckets, "SIZES", 2)
        module = planned(bucket={1: 16})
        for length in (20, 40, 60):
            module(ids(length))
        assert [executor.shapes for executor in runner_of(module)._buckets._largest] == [[(2, 48)], [(2, 64)]]

    def test_a_changed_module_has_another_plan_of_the_bucket(self) -> None:
        module, eager = met(40, bucket={1: 64}), Reader()
        module.layers[0].requires_grad_(False), eager.layers[0].requires_grad_(False)
        found = []
        for each in (module, eager):
            torch.manual_seed(1)
            each(ids(50)).backward()
            found.append([bits(p.grad) for p in each.parameters() if p.grad is not None])
        assert found[0] == found[1]

    def test_a_copy_and_a_pickle_have_them(self) -> None:
        module = met(40, bucket={1: 64})
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            other(ids(50))
            assert plans_of(other)[-1].budget.nbytes == plans_of(module)[0].budget.nbytes

    @pytest.mark.parametrize("bucket", [{1: 0}, {-1: 8}, {"ids": 8}])
    def test_what_is_no_bucket_is_refused(self, bucket: Any) -> None:
        with pytest.raises(AdapterError, match="bucket is"):
            planned(bucket=bucket)
