"""How recomputation goes wrong in the wild, a test for each: shared/reference/failures.md, first table.

Here: masks, the generator's stream, the order of random ops; statistics, effects; frozen layers.
"""

from __future__ import annotations

import random

import numpy
import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import UnsupportedModuleError
from torch import Tensor

from tests.modules.devices import random_state
from tests.modules.failure_modules import Between, Call, recompute_all
from tests.modules.generators import seeded
from tests.modules.torch_training import backward_calls, bits, planned, train

X = (torch.randn(8, 6, generator=seeded(0)),)


def sharp(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x.view(1, 1, 8, 6), x.view(1, 1, 8, 6), x.view(1, 1, 8, 6), dropout_p=0.3)


RANDOM: dict[str, Call] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout in place": lambda x: F.dropout(x * 2, 0.4, inplace=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "attention with dropout": sharp,
    "a random leak": lambda x: F.rrelu(x, training=True),
    "noise": lambda x: x * torch.randn_like(x),
    "whole numbers": lambda x: x * torch.randint(0, 3, (8, 6)),
    "a permutation": lambda x: x[torch.randperm(8)] * x,
    "a sample": lambda x: x.gather(1, torch.multinomial(x.softmax(1).detach(), 6, replacement=True)) * x,
    "a normal sample": lambda x: torch.distributions.Normal(x, x.exp(), validate_args=False).rsample(),
    "fractional pooling": lambda x: F.fractional_max_pool2d(x.view(1, 1, 8, 6), 2, output_size=(4, 3)),
    "two masks": lambda x: F.dropout(x.sin(), 0.4) + F.dropout(x.cos(), 0.3),
}


class TestRandomness:
    @pytest.mark.parametrize("name", RANDOM)
    def test_masks_are_equal_in_forward_and_backward(self, name: str) -> None:
        module = Between(RANDOM[name])
        assert train(recompute_all(module, X), X, steps=3) == train(module, X, steps=3)

    @pytest.mark.parametrize(("name", "call"), [("dropout", "native_dropout"), ("noise", "randn_like")])
    def test_a_random_op_is_recomputed(self, name: str, call: str) -> None:
        assert backward_calls(recompute_all(Between(RANDOM[name]), X), X)[call] > 0

    def test_40_steps_leave_the_loss_curve_and_the_stream_of_the_plain_module(self) -> None:
        found = []
        for make in (lambda module: module, lambda module: recompute_all(module, X)):
            torch.manual_seed(1)
            module = make(Between(RANDOM["two masks"]))
            optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
            torch.manual_seed(2)
            curve = []
            for _ in range(40):
                optimizer.zero_grad()
                loss = module(*X)
                loss.backward()
                optimizer.step()
                curve.append((loss.item(), bits(torch.rand(1))))
            found.append(curve)
        assert found[0] == found[1]

    def test_an_operator_from_outside_torch_may_draw_random_numbers(self) -> None:
        module = Between(torch.ops.ogc_failures.noisy)
        assert train(recompute_all(module, X), X, steps=3) == train(module, X, steps=3)

    def test_an_error_in_a_recomputation_leaves_the_generator_state_unchanged(self) -> None:
        module = recompute_all(Between(torch.ops.ogc_failures.noisy), X)
        loss = module(*X)
        before = bits(random_state())
        with failing(), pytest.raises(RuntimeError, match="fails on demand"):
            loss.backward()
        assert bits(random_state()) == before


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


def forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return x * torch.randn_like(x)


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return F.dropout(x, 0.4)


def seeded_by_another_name(x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(0)
    return F.dropout(x, 0.4)


def put_back_by_another_name(x: Tensor) -> Tensor:
    state = torch.default_generator.get_state()
    y = F.dropout(x, 0.4)
    torch.default_generator.set_state(state)
    return y


SEEDING: dict[str, tuple[Call, str]] = {
    "a seed": (seeded, "seeds or rewinds"),
    "a stream put back": (forked, "seeds or rewinds"),
    "a seed by another name": (seeded_by_another_name, "seeds or rewinds"),
    "a stream put back by another name": (put_back_by_another_name, "seeds or rewinds"),
    "the default generator as an argument": (
        lambda x: x * torch.rand(6, generator=torch.default_generator),
        "draws from a torch.Generator",
    ),
    "Python's generator": (lambda x: x * random.random(), "draws from random"),
    "NumPy's generator": (lambda x: x * float(numpy.random.rand()), r"draws from numpy\.random"),
}


class TestSideEffects:
    @pytest.mark.parametrize("name", SEEDING)
    def test_what_seeds_the_generator_or_draws_outside_torch_is_refused_by_name(self, name: str) -> None:
        call, message = SEEDING[name]
        with pytest.raises(UnsupportedModuleError, match=message):
            planned(Between(call), X)


class TestFrozen:
    @pytest.mark.parametrize("frozen", ["first", "second"])
    def test_frozen_layers_leave_the_other_gradients_as_they_are(self, frozen: str) -> None:
        module = Between(RANDOM["dropout"])
        module.get_submodule(frozen).requires_grad_(False)
        assert train(recompute_all(module, X), X, steps=3) == train(module, X, steps=3)
