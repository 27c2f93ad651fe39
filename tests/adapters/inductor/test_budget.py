"""A compiled step keeps a byte budget, to the bits of the compiled step without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from ogc_plan.adapters.inductor import budget, planned_graphs
from torch import nn

from tests.modules.compiled_steps import Buckets, Gate, Normalizer, Overwriter, Trained, trained
from tests.modules.devices import cpu_only

pytestmark = cpu_only("compiled steps of a card are refused")
ROUNDED = {"emulate_precision_casts": True}
"""The option under which each call rounds what it makes in 16 bits, as under a budget."""


@pytest.fixture(scope="module")
def plain() -> Iterator[Trained]:
    yield trained({})
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def within(plain: Trained) -> Trained:
    """The same step within three quarters of the bytes of the plain one."""
    return trained(budget(plain.peak_nbytes * 3 // 4))


class TestBudget:
    def test_the_gradients_are_those_of_the_plain_compiled_step(self, plain: Trained, within: Trained) -> None:
        assert within.gradients == plain.gradients

    def test_the_allocator_sees_no_more_than_the_budget(self, plain: Trained, within: Trained) -> None:
        assert within.peak_nbytes <= plain.peak_nbytes * 3 // 4

    def test_the_predicted_peak_is_the_measured_one(self, within: Trained) -> None:
        assert abs(planned_graphs(within.options)[0].peak_nbytes - within.peak_nbytes) < 1_024

    def test_the_smallest_peak_that_a_refusal_names_can_be_kept(self, plain: Trained) -> None:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="smallest peak found") as refused:
            trained(budget(plain.peak_nbytes // 8))
        smallest = refused.value.inner_exception.smallest_known_nbytes
        made = trained(budget(smallest))
        assert made.peak_nbytes <= smallest + 1_024 < plain.peak_nbytes


class TestOtherSteps:
    def test_masks_that_are_drawn_as_uncompiled_are_not_drawn_again(self) -> None:
        fallback = {"fallback_random": True}
        assert trained(budget("min") | fallback).gradients == trained(fallback).gradients

    def test_what_runs_again_under_autocast_is_rounded_as_in_the_plain_step(self) -> None:
        def autocast() -> torch.autocast:
            return torch.autocast("cpu", torch.bfloat16)

        planned = trained(budget("min"), inside=autocast(), network=Gate)
        assert planned.gradients == trained(ROUNDED, inside=autocast(), network=Gate).gradients

    @pytest.mark.parametrize("network", [Normalizer, Overwriter])
    def test_gradients_follow_from_the_old_value_of_what_the_forward_writes_over(
        self, network: Callable[[], nn.Module]
    ) -> None:
        torch.manual_seed(0)
        module, x = network(), torch.randn(512, 32)
        module(x).backward()
        torch._dynamo.reset()
        torch.manual_seed(0)
        other, x = network(), torch.randn(512, 32)
        torch.compile(other, options=budget("min"), dynamic=False)(x).backward()
        for one, two in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-6)

    def test_a_function_that_would_run_again_in_scalars_where_the_plain_step_takes_vectors_is_saved(self) -> None:
        assert "exp" in planned_graphs(trained(budget("80%"), network=Buckets).options)[0].saved

    def test_a_step_that_accumulates_keeps_its_budget(self) -> None:
        made = trained(budget("80%", grad_accumulation=True), accumulates=True)
        assert made.peak_nbytes <= planned_graphs(made.options)[0].limit_nbytes  # type: ignore[operator]
