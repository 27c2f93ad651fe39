"""A planned module computes the bits of the plain one, in exactly the bytes predicted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.errors import UnsupportedModuleError
from torch import nn

from tests.modules.torch_modules import ODD, Outputs, RandomNet
from tests.modules.torch_training import backward_calls, measured, planned, predicted, train

STRATEGIES = ("keep-all", "sqrt", "speed", "segments:2", "greedy", "optimal")
EVERYWHERE = ("keep-all", "segments:2", "optimal")
Case = tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]
"""A module, the same planned, and its arguments."""


@pytest.fixture(scope="module", params=[(name, strategy) for name in sorted(ODD) for strategy in EVERYWHERE], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(0)
    name, strategy = request.param
    build, arguments = ODD[name]
    module, args = build(), arguments()
    return module, planned(module, args, "min" if strategy == "optimal" else "1GB", strategy), args


class TestOddModules:
    def test_twenty_steps_of_adamw_are_bitwise_equal(self, case: Case) -> None:
        module, trained, args = case
        assert train(trained, args, steps=20) == train(module, args, steps=20)

    def test_the_measured_peaks_are_the_predicted_ones(self, case: Case) -> None:
        _, trained, args = case
        assert measured(trained, args) == predicted(trained)


def random_net(seed: int, depth: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]] | None:
    torch.manual_seed(seed)
    module, args = RandomNet(seed, depth), (torch.randn(4, 6),)
    try:
        capture(module, args)
    except UnsupportedModuleError:  # everything the loss sees was detached
        return None
    return module, args


class TestRandomNets:
    """Random graphs of layers, norms, dropout, joins, views, in-place calls, frozen and tied weights."""

    SETTINGS = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])

    @SETTINGS
    @given(st.integers(0, 10**6), st.integers(2, 16), st.sampled_from(STRATEGIES))
    @example(214, 15, "keep-all")  # a norm whose statistics nobody reads, and a dropout that could run over its result
    def test_training_gives_the_same_bits_in_the_bytes_predicted(self, seed: int, depth: int, strategy: str) -> None:
        found = random_net(seed, depth)
        if found is not None:
            module, args = found
            budget = "min" if strategy == "optimal" else "1GB"
            trained = planned(module, args, budget, strategy, effort="default")  # in orders of its own, too
            assert train(trained, args, steps=2) == train(module, args, steps=2)
            assert measured(trained, args) == predicted(trained)


class TestRecomputation:
    def test_a_reader_of_an_updated_buffer_is_never_recomputed(self) -> None:
        build, arguments = ODD["moving buffer"]
        args = arguments()
        assert backward_calls(planned(build(), args, "min"), args)["sub"] == 0

    def test_nested_outputs_and_keyword_arguments_train_to_the_same_bits(self) -> None:
        module, args, kwargs = Outputs(), (torch.randn(2, 4, requires_grad=True),), {"pair": (torch.randn(4), 3)}
        trained = planned(module, args, kwargs=kwargs)
        loss = lambda output: output["hidden"].square().sum() + output["rest"][0]  # noqa: E731
        assert train(trained, args, loss=loss, kwargs=kwargs) == train(module, args, loss=loss, kwargs=kwargs)
