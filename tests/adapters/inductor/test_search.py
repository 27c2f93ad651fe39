"""The search finds, for a smaller budget, a step that holds no more and runs no fewer operations again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogc_plan.adapters.inductor import budget, torch_private
from ogc_plan.adapters.inductor.joint_graph import JointGraph
from ogc_plan.adapters.inductor.search import Candidate, Search
from ogc_plan.adapters.inductor.work import draws_from_seed, sums
from ogc_plan.adapters.inductor.workspace import WorkspaceMeter
from torch import fx

from tests.modules.compiled_steps import Network
from tests.modules.devices import cpu_only

pytestmark = cpu_only("compiled steps of a card are refused")

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


class Searched(torch_private.Partitioner):
    """Searches the joint graph within shares of the plain step's peak, then within the smallest peak."""

    found: dict[float, Candidate]

    def __call__(
        self, graph_module: fx.GraphModule, joint_inputs: object, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward."""
        static = options.get("static_lifetime_input_indices") or ()
        self.joint = JointGraph(graph_module, num_fwd_outputs, static)
        search = Search(self.joint, WorkspaceMeter())
        self.plain_nbytes = search.plain.peak.nbytes
        steps = {share: search.within(int(share * self.plain_nbytes)) for share in SHARES}
        self.found = {share: step for share, step in steps.items() if step is not None}
        self.smallest = search.smallest()
        self.again = search.within(self.smallest.peak.nbytes)
        self.below = search.within(self.smallest.peak.nbytes - 1)
        return self.smallest.forward, self.smallest.backward


@pytest.fixture(scope="module")
def searched() -> Searched:
    torch._dynamo.reset()
    torch.manual_seed(0)
    made, options = Searched(), budget("min")
    torch.compile(Network(), options=options | {"custom_partitioner_fn": made}, dynamic=False)(torch.randn(512, 32))
    torch._dynamo.reset()
    return made


def test_each_step_holds_its_budget(searched: Searched) -> None:
    over = {share for share, step in searched.found.items() if step.peak.nbytes > share * searched.plain_nbytes}
    assert not over


def test_peaks_fall_with_the_budget(searched: Searched) -> None:
    peaks = [step.peak.nbytes for step in searched.found.values()]
    assert peaks == sorted(peaks, reverse=True)


def test_a_smaller_budget_runs_no_fewer_operations_again(searched: Searched) -> None:
    flops = [step.recomputed_flops for step in searched.found.values()]
    assert flops == sorted(flops)


def test_a_budget_with_room_for_the_masks_draws_none_again(searched: Searched) -> None:
    again = [node for node in searched.joint.again(searched.found[0.7].saved) if draws_from_seed(node)]
    assert not again


def test_some_budget_needs_products_again(searched: Searched) -> None:
    assert searched.smallest.recomputed_flops > 0


def test_the_smallest_peak_is_kept_when_it_is_the_budget(searched: Searched) -> None:
    assert searched.again is not None


def test_a_byte_less_is_refused(searched: Searched) -> None:
    assert searched.below is None


def test_no_sum_runs_again(searched: Searched) -> None:
    again = {node.name for node in searched.joint.again(searched.smallest.saved) if sums(node)}
    assert not again
