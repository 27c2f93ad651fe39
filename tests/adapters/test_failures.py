"""How recomputation goes wrong in the wild, a test for each: shared/reference/failures.md, first table.

Here: masks, the generator's stream, the order of random ops; statistics, counters, effects; shapes; frozen layers;
in-place calls.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import UnsupportedModuleError, plan_of
from ogc_plan.planner.schedule import StepKind
from torch import Tensor, nn
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from tests.modules.failure_modules import Between, Call, recompute_all
from tests.modules.torch_modules import WithLoss, convolutional
from tests.modules.torch_training import backward_calls, bits, planned, train

X = (torch.randn(8, 6, generator=torch.Generator().manual_seed(0)),)
BUDGETS = ("100%", "94%", "min")


def sharp(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x.view(1, 1, 8, 6), x.view(1, 1, 8, 6), x.view(1, 1, 8, 6), dropout_p=0.3)


RANDOM: dict[str, Call] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout in place": lambda x: F.dropout(x * 2, 0.4, inplace=True),
    "dropout of channels": lambda x: F.dropout2d(x.view(2, 4, 3, 2), 0.4),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "alpha dropout of channels": lambda x: F.feature_alpha_dropout(x, 0.4, training=True),
    "attention with dropout": sharp,
    "a random leak": lambda x: F.rrelu(x, training=True),
    "noise": lambda x: x * torch.randn_like(x),
    "uniform noise": lambda x: x * torch.rand(8, 6) + torch.empty(8, 6).uniform_(-1, 1),
    "whole numbers": lambda x: x * torch.randint(0, 3, (8, 6)),
    "a permutation": lambda x: x[torch.randperm(8)] * x,
    "bernoulli": lambda x: x * torch.bernoulli(x.sigmoid().detach()),
    "a Gumbel softmax": lambda x: F.gumbel_softmax(x, dim=1) * x,
    "a hard Gumbel softmax": lambda x: F.gumbel_softmax(x, dim=1, hard=True) * x,
    "a sample": lambda x: x.gather(1, torch.multinomial(x.softmax(1).detach(), 6, replacement=True)) * x,
    "exponential": lambda x: x * torch.empty(8, 6).exponential_(),
    "a normal sample": lambda x: torch.distributions.Normal(x, x.exp(), validate_args=False).rsample(),
    "a gamma sample": lambda x: torch._standard_gamma(x.exp()),
    "stochastic depth": lambda x: x + x.sin() * torch.empty(8, 1).bernoulli_(0.5),
    "fractional pooling": lambda x: F.fractional_max_pool2d(x.view(1, 1, 8, 6), 2, output_size=(4, 3)),
    "two masks": lambda x: F.dropout(x.sin(), 0.4) + F.dropout(x.cos(), 0.3),
}


class TestRandomness:
    @pytest.mark.parametrize("name", RANDOM)
    def test_masks_are_equal_in_forward_and_backward(self, name: str) -> None:
        module = Between(RANDOM[name])
        assert train(recompute_all(module, X), X, steps=3) == train(module, X, steps=3)

    @pytest.mark.parametrize("name", ["dropout", "noise"])
    def test_masks_are_equal_at_every_budget(self, name: str) -> None:
        module = Between(RANDOM[name])
        plain = train(module, X, steps=2)
        assert [budget for budget in BUDGETS if train(planned(module, X, budget), X, steps=2) != plain] == []

    @pytest.mark.parametrize(("name", "call"), [("dropout", "native_dropout"), ("noise", "randn_like")])
    def test_a_random_op_is_recomputed(self, name: str, call: str) -> None:
        assert backward_calls(recompute_all(Between(RANDOM[name]), X), X)[call] > 0

    def test_200_steps_leave_the_loss_curve_and_the_stream_of_the_plain_module(self) -> None:
        found = []
        for make in (lambda module: module, lambda module: recompute_all(module, X)):
            torch.manual_seed(1)
            module = make(Between(RANDOM["two masks"]))
            optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
            torch.manual_seed(2)
            curve = []
            for _ in range(200):
                optimizer.zero_grad()
                loss = module(*X)
                loss.backward()
                optimizer.step()
                curve.append((loss.item(), bits(torch.rand(1))))
            found.append(curve)
        assert found[0] == found[1]

    @pytest.mark.parametrize("strategy", ["optimal", "sqrt", "greedy", "segments:2"])
    def test_random_ops_keep_their_order_in_every_schedule(self, strategy: str) -> None:
        trained = planned(Between(lambda x: RANDOM["two masks"](x) + x.exp() * F.dropout(x, 0.1)), X, "1GB", strategy)
        plan = plan_of(trained)
        steps = [step.index for step in plan.schedule if step.kind is StepKind.FORWARD]
        drawn = [index for index in steps if plan.graph.ops[index].random_state_nbytes]
        assert (len(drawn), drawn) == (3, sorted(drawn))

    def test_an_operator_from_outside_torch_may_draw_random_numbers(self) -> None:
        module = Between(torch.ops.ogc_failures.noisy)
        assert train(recompute_all(module, X), X, steps=3) == train(module, X, steps=3)

    def test_an_error_in_a_recomputation_leaves_the_generator_state_unchanged(self) -> None:
        module = recompute_all(Between(torch.ops.ogc_failures.noisy), X)
        loss = module(*X)
        before = bits(torch.get_rng_state())
        with failing(), pytest.raises(RuntimeError, match="fails on demand"):
            loss.backward()
        assert bits(torch.get_rng_state()) == before


class failing:
    """Makes the noisy operator raise inside."""

    now = False

    def __enter__(self) -> None:
        failing.now = True

    def __exit__(self, *_: object) -> None:
        failing.now = False


@torch.library.custom_op("ogc_failures::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    """Noise, from an operator that is not declared random."""
    made = x * torch.rand_like(x)
    if failing.now:
        raise RuntimeError("fails on demand")
    return made


noisy.register_fake(torch.empty_like)
noisy.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0] / ctx.saved_tensors[1],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output, inputs[0]),
)


class Counting(nn.Module):
    """A linear layer, a norm, and the side effect that ``effect`` has."""

    count: Tensor

    def __init__(self, effect: Any) -> None:
        super().__init__()
        self.linear, self.norm, self.effect = nn.Linear(6, 6), nn.BatchNorm1d(6), effect
        self.register_buffer("count", torch.zeros(6))
        self.steps, self.kept, self.nested = 0, deque([1]), {"losses": [1]}

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x).tanh()).exp()
        self.effect(self, y)
        return y.sin().square().mean()


def replace_buffer(module: Any, y: Tensor) -> None:
    module.count = module.count + 1


def set_number(module: Any, y: Tensor) -> None:
    module.norm.steps = module.steps + 1


def set_tensor(module: Any, y: Tensor) -> None:
    module.last = y


OUTSIDE: list[Tensor] = []
EFFECTS: dict[str, tuple[Any, str]] = {
    "a replaced buffer": (replace_buffer, "sets buffer 'count'"),
    "a number": (set_number, "'norm' sets attribute 'steps'"),
    "a tensor": (set_tensor, "Counting sets attribute 'last'"),
    "an append": (lambda module, y: module.kept.append(y.sum()), "sets attribute 'kept'"),
    "an append further in": (lambda module, y: module.nested["losses"].append(2), "sets attribute 'nested'"),
    "a tensor kept outside": (lambda module, y: OUTSIDE.append(y.sum()), "stores a tensor outside the module"),
}


def forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return x * torch.randn_like(x)


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return F.dropout(x, 0.4)


SEEDING: dict[str, tuple[Call, str]] = {
    "a seed": (seeded, "seeds or rewinds"),
    "a stream put back": (forked, "seeds or rewinds"),
    "Python's generator": (lambda x: x * random.random(), "draws from random"),
    "NumPy's generator": (lambda x: x * float(numpy.random.rand()), r"draws from numpy\.random"),
}


@torch.library.custom_op("ogc_failures::effectful", mutates_args=())
def effectful(x: Tensor) -> Tensor:
    """A copy, from an operator with an effect."""
    return x.clone()


effectful.register_fake(torch.empty_like)
effectful.register_autograd(lambda ctx, gradient: gradient)


class TestSideEffects:
    @pytest.mark.parametrize("backward", [False, True])
    def test_running_statistics_move_once(self, backward: bool) -> None:
        module, args = WithLoss(convolutional()), (torch.randn(2, 3, 8, 8),)
        found = []
        for made in (copy.deepcopy(module), copy.deepcopy(recompute_all(module, args))):
            loss = made(*args)
            if backward:
                loss.backward()
            found.append([bits(buffer) for buffer in made.buffers()])
        assert found[0] == found[1]

    def test_a_counter_counts_once(self) -> None:
        module = Counting(lambda module, y: module.count.add_(y.mean(0).detach() > 1))
        assert train(recompute_all(module, X), X, steps=3) == train(module, X, steps=3)

    @pytest.mark.parametrize("name", EFFECTS)
    def test_what_a_replay_would_leave_out_is_refused_by_name(self, name: str) -> None:
        effect, message = EFFECTS[name]
        with pytest.raises(UnsupportedModuleError, match=message):
            planned(Counting(effect), X)
        OUTSIDE.clear()

    @pytest.mark.parametrize("name", SEEDING)
    def test_what_seeds_the_generator_or_draws_outside_torch_is_refused_by_name(self, name: str) -> None:
        call, message = SEEDING[name]
        with pytest.raises(UnsupportedModuleError, match=message):
            planned(Between(call), X)

    def test_a_registered_effect_is_refused_by_name(self) -> None:
        _register_effectful_op(torch.ops.ogc_failures.effectful.default, _EffectType.ORDERED)
        with pytest.raises(UnsupportedModuleError, match="another kind: ForwardTokenAOTInput"):
            planned(Between(torch.ops.ogc_failures.effectful), X)

    def test_a_refusal_leaves_the_module_as_it_was(self) -> None:
        module = Counting(EFFECTS["an append further in"][0])
        with pytest.raises(UnsupportedModuleError):
            planned(module, X)
        assert module.nested == {"losses": [1]}

    def test_a_refusal_leaves_no_attribute_behind(self) -> None:
        module = Counting(set_tensor)
        with pytest.raises(UnsupportedModuleError):
            planned(module, X)
        assert not hasattr(module, "last")

    def test_a_cache_that_one_forward_fills_is_no_side_effect(self) -> None:
        module = Counting(lambda module, y: module.nested.setdefault("mask", torch.ones(6)))
        module(*X)
        assert planned(module, X)(*X).grad_fn is not None


class TestFrozen:
    @pytest.mark.parametrize("frozen", [["first.weight", "first.bias"], ["second.weight"], ["first.weight"]])
    def test_frozen_layers_leave_the_other_gradients_as_they_are(self, frozen: list[str]) -> None:
        module = Between(RANDOM["dropout"])
        for name in frozen:
            module.get_parameter(name).requires_grad_(False)
        assert train(recompute_all(module, X), X, steps=3) == train(module, X, steps=3)


IN_PLACE: dict[str, Call] = {
    "after a view": lambda x: (x * 2).view(-1, 3).sin_(),
    "on a view": lambda x: torch.cat([x.exp(), x.sin()]).index_copy_(0, torch.arange(8), x),
    "after a norm": lambda x: F.layer_norm(x, [6]).relu_(),
    "after a batch norm": lambda x: F.relu_(F.batch_norm(x, None, None, training=True)),
    "twice": lambda x: (x * 2).add_(1).sigmoid_(),
    "on a part": lambda x: (x * 2).index_fill_(0, torch.tensor([1]), 0.0),
    "into an output": lambda x: torch.zeros(8, 6).copy_(x).add_(x),
}


class TestInPlace:
    @pytest.mark.parametrize("name", IN_PLACE)
    def test_calls_in_place_are_bitwise_equal(self, name: str) -> None:
        module = Between(IN_PLACE[name])
        plain = train(module, X, steps=2)
        trained = [recompute_all(module, X), *(planned(module, X, "1GB", f"segments:{n}") for n in (2, 3, 4))]
        assert [train(made, X, steps=2) == plain for made in trained] == [True] * 4
