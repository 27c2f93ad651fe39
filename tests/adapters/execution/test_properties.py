"""Memory, peaks, routing, hooks, modes and threads of planned modules: what users try first."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import plan_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.meters.storage_meter import StorageMeter
from tests.modules.devices import random_state
from tests.modules.failure_modules import Between, recompute_all
from tests.modules.generators import seeded
from tests.modules.torch_training import backward_calls, bits, measured, planned, predicted, train

X = (torch.randn(8, 6, generator=seeded(0)),)


class Deep(nn.Module):
    """One block applied twice in one forward, between layers of many rows: [64, 6] -> []."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 16), nn.Linear(16, 6)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for _ in range(2):
            h = h + self.block(h)
        return self.leave(h).square().mean()


class Routed(nn.Module):
    """Two experts, a router that takes the better one, and a counter of their loads: [8, 6] -> []."""

    loads: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.router = nn.Linear(6, 6), nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.register_buffer("loads", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).tanh()
        weight, chosen = self.router(h).softmax(-1).topk(1, dim=-1)
        hot = F.one_hot(chosen[:, 0], 2)
        self.loads += hot.sum(0)
        made = torch.stack([expert(h) for expert in self.experts], dim=1)
        return (made * hot[:, :, None]).sum(1).mul(weight).square().mean()


@torch.library.custom_op("ogc_properties::refuses_nan", mutates_args=())
def refuses_nan(x: Tensor) -> Tensor:
    """Twice its input."""
    if x.isnan().any():
        raise RuntimeError("not a number")
    return x * 2


refuses_nan.register_fake(torch.empty_like)
refuses_nan.register_autograd(lambda ctx, gradient: gradient * 2)
ROWS = (torch.randn(64, 6, generator=seeded(1)),)


class TestMemory:
    def test_nothing_but_the_output_outlives_the_backward(self) -> None:
        trained = recompute_all(Deep(), ROWS)
        own = [*trained.parameters(), *ROWS]
        with StorageMeter(own) as meter:
            output = trained(*ROWS)
            output.backward()
            gradients = sum(p.grad.untyped_storage().nbytes() for p in trained.parameters() if p.grad is not None)
            assert meter.live_nbytes - gradients == output.untyped_storage().nbytes()

    def test_thirty_steps_without_a_collector_hold_no_more_than_ten(self) -> None:
        trained, floors = recompute_all(Between(lambda x: F.dropout(x, 0.2)), X), []
        gc.collect()
        gc.disable()
        try:
            with StorageMeter([*trained.parameters(), *X]) as meter:
                for _ in range(30):
                    trained.zero_grad(set_to_none=True)
                    trained(*X).backward()
                    floors.append(meter.live_nbytes)
        finally:
            gc.enable()
        assert len(set(floors[10:])) == 1


class TestPeaks:
    @pytest.mark.parametrize("share", [0, 0.3, 0.6, 1])
    def test_the_measured_peak_is_the_planned_one_within_any_budget(self, share: float) -> None:
        most, least = (plan_of(planned(Deep(), ROWS, budget)).peak.activation_nbytes for budget in ("100%", "min"))
        budget = least + (most - least) * share
        trained = planned(Deep(), ROWS, f"{min(100, 100 * budget / most + 0.01):.2f}%")
        peak = measured(trained, ROWS)
        assert (peak, peak[1] <= plan_of(trained).budget.nbytes) == (predicted(trained), True)


class TestRouters:
    def test_a_choice_is_never_recomputed(self) -> None:
        assert backward_calls(recompute_all(Routed(), X), X)["topk"] == 0

    def test_routing_and_loads_are_those_of_the_plain_module(self) -> None:
        module = Routed()
        assert train(recompute_all(module, X), X, steps=5) == train(module, X, steps=5)

    @pytest.mark.parametrize("call", [lambda x: x.argmax(1), lambda x: x.max(1).indices, lambda x: x.sort(1).indices])
    def test_other_choices_are_made_once(self, call: Any) -> None:
        def chosen(x: Tensor) -> Tensor:
            return x * (call(x.exp()).view(8, -1) + 1)

        trained = recompute_all(Between(chosen), X)
        graph = plan_of(trained).graph
        assert [op.once for op in graph.ops if op.op_type in ("argmax", "max", "sort")] == [True]


class TestHooks:
    def test_a_hook_on_a_shared_parameter_runs_once_per_backward(self) -> None:
        module = Between(torch.sin)
        module.second.weight = module.first.weight
        calls: list[str] = []
        module.first.weight.register_hook(lambda _: calls.append("gradient"))
        module.first.weight.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
        planned(module, X)(*X).backward()
        assert calls == ["gradient", "accumulated"]

    def test_backward_hooks_of_the_module_see_what_they_see_plainly(self) -> None:
        found = []
        for make in (lambda module: module, lambda module: planned(module, X)):
            torch.manual_seed(0)
            module, seen = Between(torch.sin), []
            module.register_full_backward_hook(lambda m, i, o, seen=seen: seen.append([bits(g) for g in (*i, *o)]))
            x = X[0].clone().requires_grad_()
            made = make(module) if not found else planned(module, (x,))
            made(x).backward()
            found.append(seen)
        assert found[0] == found[1]


class TestModes:
    def test_alternating_training_and_evaluation_changes_no_bit(self) -> None:
        module, found = Deep(), []
        for made in (copy.deepcopy(module), copy.deepcopy(planned(module, ROWS, "min"))):
            torch.manual_seed(3)
            for _ in range(3):
                made.train()(*ROWS).backward()
                with torch.no_grad():
                    found.append(bits(made.eval()(*ROWS)))
        assert found[:3] == found[3:]


class TestUse:
    def test_a_bound_module_works_inside_another_module_and_inside_a_checkpoint(self) -> None:
        class Outer(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.enter, self.inner = nn.Linear(6, 6), inner

            def forward(self, x: Tensor) -> Tensor:
                return self.inner(self.enter(x)) + checkpoint(self.inner, x.sin(), use_reentrant=False)

        inner = Between(lambda x: F.dropout(x, 0.3))
        example = (X[0].clone().requires_grad_(),)
        outer = [Outer(inner), Outer(planned(inner, example, "min"))]
        outer[1].enter = outer[0].enter
        x = X[0].clone().requires_grad_()
        assert train(outer[1], (x,), steps=2) == train(outer[0], (x,), steps=2)

    @pytest.mark.values
    def test_a_forward_that_fails_leaves_no_memory_and_no_changed_stream(self) -> None:
        trained = recompute_all(Between(torch.ops.ogc_properties.refuses_nan), X)
        before = bits(random_state())
        with StorageMeter([*trained.parameters(), *X]) as meter:
            with pytest.raises(RuntimeError, match="not a number"):
                trained(torch.full_like(X[0], torch.nan))
            gc.collect()
            assert (meter.live_nbytes, bits(random_state())) == (0, before)

    @pytest.mark.values
    def test_after_a_forward_that_fails_training_goes_on_as_if_nothing_had_been(self) -> None:
        module = Between(torch.ops.ogc_properties.refuses_nan)
        trained = recompute_all(module, X)
        with pytest.raises(RuntimeError, match="not a number"):
            trained(torch.full_like(X[0], torch.nan))
        assert train(trained, X) == train(module, X)
