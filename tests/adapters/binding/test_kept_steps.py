"""Another size of a planned step takes over what is known: decisions that fit, scaled times, measured calls."""

from __future__ import annotations

import math
import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch import original, plans_of, within_budget
from ogc_plan.adapters.pytorch.binding.bound_module import bound, runner_of
from ogc_plan.adapters.pytorch.binding.kept_steps import SCALED_NOTE
from ogc_plan.adapters.pytorch.binding.pickled_plan import plan_from, text_of
from ogc_plan.adapters.pytorch.errors import UnsupportedModuleError
from ogc_plan.adapters.pytorch.memory.workspace_meter import WorkspaceMeter
from ogc_plan.planner import pipeline
from ogc_plan.planner.errors import InfeasibleBudgetError
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.replan.kept_decisions import KEPT_NOTE, STORE_ALL_NOTE
from torch import Tensor, nn

from tests.modules.devices import cpu_only
from tests.modules.torch_modules import RandomNet, WithLoss
from tests.modules.torch_training import alternating, measured, predicted

pytestmark = pytest.mark.filterwarnings("ignore:planned .* again")

SMALL, LARGE = torch.randn(64, 16), torch.randn(192, 16)


def network() -> WithLoss:
    torch.manual_seed(0)
    layers = [part for _ in range(5) for part in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2))]
    return WithLoss(nn.Sequential(*layers, nn.Linear(16, 4)))


def planned(module: nn.Module, first: Tensor = SMALL, budget: str | int = "70%", **options: Any) -> nn.Module:
    return within_budget(module, (first,), budget=budget, **{"device": "cpu", "strategy": "greedy"} | options)


def after(first: Tensor, *others: Tensor, budget: str | int = "70%", **options: Any) -> nn.Module:
    """A module planned for one batch that has met the others."""
    module = planned(network(), first, budget, **options)
    for batch in others:
        module(batch)
    return module


def is_taken_over(plan: Plan) -> bool:
    return any(note.startswith(KEPT_NOTE) for note in plan.certificate.notes)


def last_alone(module: nn.Module) -> nn.Module:
    """The module bound by the plan that it used last."""
    runner: Any = runner_of(module)
    return bound(original(module), runner._kept.last.executor)


def of_each_step(plan: Plan) -> list[tuple[str, int]]:
    return [(step.kind.value, step.index) for step in plan.schedule]


class TestDecisions:
    def test_another_batch_size_takes_over_those_that_fit(self) -> None:
        small, large = plans_of(after(SMALL, LARGE))
        assert (is_taken_over(large), of_each_step(large)) == (True, of_each_step(small))

    def test_nothing_is_searched_then(self) -> None:
        module = planned(network())
        with patch.object(pipeline, "plan", side_effect=AssertionError("searched")):
            module(LARGE)

    def test_training_by_them_gives_the_bits_of_eager_training(self) -> None:
        batches = (SMALL, LARGE) * 3
        assert alternating(planned(network()), batches) == alternating(network(), batches)

    def test_the_measured_peaks_are_the_predicted_ones(self) -> None:
        alone = last_alone(after(SMALL, LARGE))
        assert measured(alone, (LARGE,)) == predicted(alone)

    def test_a_share_is_a_share_of_the_new_sizes(self) -> None:
        _, large = plans_of(after(SMALL, LARGE))
        assert large.peak.activation_nbytes <= 0.7 * large.peak.store_all_activation_nbytes

    @cpu_only("bytes of a card hold its context too")
    def test_those_that_need_more_than_a_budget_in_bytes_are_searched_anew(self) -> None:
        budget = plans_of(planned(network(), SMALL, "100%"))[0].peak.total_nbytes
        _, made = plans_of(after(SMALL, torch.randn(80, 16), budget=budget, strategy="optimal", effort="fast"))
        assert (is_taken_over(made), made.peak.total_nbytes <= budget) == (False, True)

    @cpu_only("bytes of a card hold its context too")
    def test_a_budget_that_no_plan_keeps_is_refused(self) -> None:
        small = plans_of(planned(network(), SMALL))[0]
        with pytest.raises(InfeasibleBudgetError):
            after(SMALL, torch.randn(640, 16), budget=small.peak.total_nbytes)

    @cpu_only("bytes of a card hold its context too")
    def test_a_smaller_batch_that_fits_whole_recomputes_nothing(self) -> None:
        budget = plans_of(planned(network(), LARGE))[0].peak.total_nbytes
        first, small = plans_of(after(LARGE, SMALL, budget=budget, strategy="optimal", effort="fast"))
        assert (bool(first.recomputed), small.recomputed, small.certificate.notes[0]) == (True, {}, STORE_ALL_NOTE)

    def test_a_frozen_layer_is_another_structure_and_searched(self) -> None:
        module = planned(network())
        original(module).module[0].requires_grad_(False)  # type: ignore[index]
        module(LARGE)
        assert not is_taken_over(plans_of(module)[-1])

    def test_an_order_of_their_own_is_left_to_strategies_that_take_no_budget(self) -> None:
        _, large = plans_of(after(SMALL, LARGE, budget="1GB", strategy="sqrt"))
        assert not is_taken_over(large)

    def test_the_smallest_peak_is_searched_unless_they_reach_the_floor(self) -> None:
        _, large = plans_of(after(SMALL, LARGE, budget="min", strategy="optimal", effort="fast"))
        assert is_taken_over(large) == (large.peak.activation_nbytes == large.peak.floor_activation_nbytes)

    def test_a_plan_file_of_them_is_valid(self) -> None:
        _, large = plans_of(after(SMALL, LARGE))
        read = plan_from(text_of(large))
        assert pipeline.check(read.graph, read.costs, read).peak_total_nbytes == large.peak.total_nbytes

    def test_nothing_is_proven_of_them(self) -> None:
        _, large = plans_of(after(SMALL, LARGE))
        assert (large.certificate.bound_ns, large.certificate.bound_class) == (0, "")


class TestTimes:
    def test_another_size_scales_them_by_work(self) -> None:
        small, large = plans_of(after(SMALL, LARGE, device=None))
        products = [i for i, op in enumerate(small.graph.ops) if "addmm" in op.op_type]
        ratios = [large.costs[i].forward_ns / small.costs[i].forward_ns for i in products]
        assert ratios == pytest.approx([3] * len(products), rel=0.01)

    def test_the_plan_says_so(self) -> None:
        small, large = plans_of(after(SMALL, LARGE, device=None))
        assert large.certificate.notes[-1] == f"{SCALED_NOTE}{small.model.fingerprint[:12]}"

    def test_a_roofline_is_never_scaled(self) -> None:
        _, large = plans_of(after(SMALL, LARGE))
        assert not [note for note in large.certificate.notes if note.startswith(SCALED_NOTE)]


class TestMeasuredCalls:
    def test_a_step_of_the_same_sizes_measures_only_calls_that_are_new(self) -> None:
        module, calls = planned(network(), budget="100%", device=None), []
        run = WorkspaceMeter._run

        def noted(meter: WorkspaceMeter, node: Any, *rest: Any) -> Any:
            calls.append(node.name)
            return run(meter, node, *rest)

        original(module).module[0].requires_grad_(False)  # type: ignore[index]
        with patch.object(WorkspaceMeter, "_run", noted):
            module(SMALL)
        assert calls == ["gelu"]  # it may write over its argument now

    def test_its_workspace_is_that_of_a_plan_made_alone(self) -> None:
        _, large = plans_of(after(SMALL, LARGE))
        alone = plans_of(planned(network(), LARGE))[0]
        assert large.costs == alone.costs

    @cpu_only("the threads of a CPU")
    def test_with_other_threads_it_is_measured_again(self) -> None:
        module, threads = planned(network()), torch.get_num_threads()
        executor: Any = runner_of(module).executor
        torch.set_num_threads(threads + 1)
        try:
            assert executor.meter_now() is None
        finally:
            torch.set_num_threads(threads)


class TestRandomNets:
    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 10**6), st.integers(2, 16), st.sampled_from((2, 3, 5, 9)), st.sampled_from(("60%", "80%")))
    def test_another_size_trains_to_the_same_bits_in_the_bytes_predicted_and_keeps_its_budget(
        self, seed: int, depth: int, rows: int, budget: str
    ) -> None:
        def made() -> nn.Module:
            torch.manual_seed(seed)
            return RandomNet(seed, depth)

        batches = torch.randn(4, 6), torch.randn(rows, 6)
        try:
            made()(batches[1])
            module = planned(made(), batches[0], budget)
            trained = alternating(module, batches)
        except (UnsupportedModuleError, InfeasibleBudgetError, RuntimeError):  # nothing is trained, or rows do not fit
            return
        alone, plan = last_alone(module), plans_of(module)[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = measured(alone, batches[1:])
        assert (trained, found, plan.peak.activation_nbytes <= plan.budget.nbytes) == (
            alternating(made(), batches),
            predicted(alone),
            True,
        )


def test_the_distance_of_sizes_is_a_logarithm() -> None:
    from ogc_plan.planner.replan.structure import distance

    small, large = plans_of(after(SMALL, LARGE))
    assert distance(small.graph, large.graph) == pytest.approx(math.log(3), rel=0.05)
