"""A step is refused if what its forward reads besides tensors has changed, and so is a forward with side effects."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import InputMismatchError, UnsupportedModuleError
from ogc_plan.adapters.pytorch.guards.side_effects import refuse_side_effects
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.modules.generators import seeded
from tests.modules.torch_training import planned, train

X = (torch.randn(4, 6, generator=seeded(0)),)


class Reading(nn.Module):
    """A linear layer whose result depends on attributes of every kind."""

    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6, bias=False)
        self.scales, self.size, self.options = (
            [2.0, {"shift": 1.0}],
            (3, 2),
            SimpleNamespace(rate=3.0, deep=[[[[1.0]]]]),
        )
        self.act: Callable[[Tensor], Tensor] = F.relu
        self.mask: Tensor | None = None
        self.power = numpy.float64(2)
        self.log: list[int] = []

    def twice(self, x: Tensor) -> Tensor:
        return x * 2

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(self.act(self.linear(x))) * self.scales[0] + self.scales[1]["shift"]
        h = h * self.options.rate * self.options.deep[0][0][0][0] * self.gain * float(self.power)
        h = h if self.mask is None else h * self.mask
        return h.reshape(-1, *self.size).softmax(-1).square().sum()


def untied(net: Reading) -> None:
    net.linear.bias = nn.Parameter(torch.ones(6))


CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an item of a list": ("scales", lambda net: net.scales.__setitem__(0, 5.0)),
    "an entry of a dict in it": ("scales", lambda net: net.scales[1].update(shift=5.0)),
    "a tuple": ("size", lambda net: setattr(net, "size", (2, 3))),
    "an object's attribute": ("options.rate", lambda net: setattr(net.options, "rate", 5.0)),
    "an item deep in it": ("options.deep", lambda net: net.options.deep[0][0][0].__setitem__(0, 5.0)),
    "a function": ("act", lambda net: setattr(net, "act", F.gelu)),
    "a tensor that was None": ("mask", lambda net: setattr(net, "mask", torch.zeros(4, 6))),
    "a parameter that was None": ("linear.bias", untied),
    "an attribute of the class": ("gain", lambda net: setattr(net, "gain", 5.0)),
    "a method": ("twice", lambda net: setattr(net, "twice", lambda x: x)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_the_forward_reads_is_refused(change: str) -> None:
    trained, (name, do) = planned(Reading(), X), CHANGES[change]
    do(trained)
    with pytest.raises(InputMismatchError, match=f"attribute '{name}' changed since the plan was bound"):
        trained(*X)


def test_a_change_of_the_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = planned(Reading(), X)
    monkeypatch.setattr(Reading, "gain", 5.0)
    with pytest.raises(InputMismatchError, match="attribute 'gain' changed since the plan was bound"):
        trained(*X)


def test_what_the_forward_does_not_read_may_change() -> None:
    module = Reading()
    trained = planned(module, X)
    trained.log.append(1)
    assert train(trained, X) == train(module, X)


def test_a_copy_made_after_a_change_is_refused() -> None:
    trained = planned(Reading(), X)
    trained.scales[0] = 5.0
    with pytest.raises(InputMismatchError, match="attribute 'scales' changed since the plan was bound"):
        copy.deepcopy(trained)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).square().sum()


UNTYING: dict[str, Callable[[nn.Module], Any]] = {
    "a weight of its own": lambda net: setattr(net.second, "weight", nn.Parameter(torch.ones(6, 6))),
    "a state assigned": lambda net: net.load_state_dict(
        {key: value.clone() for key, value in net.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("untying", UNTYING)
def test_a_parameter_that_no_longer_has_both_its_names_is_refused(untying: str) -> None:
    trained = planned(Tied(), X)
    UNTYING[untying](trained)
    with pytest.raises(InputMismatchError, match=r"'first\.weight', 'second\.weight' were one when the plan was bound"):
        trained(*X)


def test_a_state_may_be_loaded_into_a_parameter_with_two_names() -> None:
    module = Tied()
    trained = planned(module, X)
    trained.load_state_dict({key: value.clone() for key, value in module.state_dict().items()})
    assert train(trained, X) == train(module, X)


class Leaving(nn.Linear):
    """A layer whose forward has a side effect."""

    count = 0

    def __init__(self, do: Callable[[Leaving, Tensor], Any]) -> None:
        super().__init__(6, 6)
        self.do = do
        self.python, self.numpy = random.Random(0), numpy.random.default_rng(0)
        self.old, self.seen, self.losses = numpy.random.RandomState(0), SimpleNamespace(steps=0), {"all": [1]}
        self.register_buffer("moved", torch.zeros(6))
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.do(self, y)
        return y.sum()


def counted_in_the_class(*_: Any) -> None:
    Leaving.count += 1


OUTSIDE: list[Tensor] = []
EFFECTS: dict[str, tuple[str, Callable[[Leaving, Tensor], Any]]] = {
    "Python's generator": ("draws from the generator 'python'", lambda net, _: net.python.random()),
    "numpy's generator": ("draws from the generator 'numpy'", lambda net, _: net.numpy.random()),
    "numpy's old generator": ("draws from the generator 'old'", lambda net, _: net.old.rand()),
    "an object": ("sets attribute 'seen'", lambda net, _: setattr(net.seen, "steps", net.seen.steps + 1)),
    "the class": (r"sets attribute 'Leaving\.count'", counted_in_the_class),
    "a buffer with a gradient": ("sets buffer 'moved'", lambda net, y: setattr(net, "moved", net.moved + y)),
    "a counter": ("sets attribute 'steps'", lambda net, _: setattr(net, "steps", net.steps + 1)),
    "a parameter under another name": ("sets attribute 'last'", lambda net, _: setattr(net, "last", net.weight)),
    "an append further in": ("sets attribute 'losses'", lambda net, _: net.losses["all"].append(2)),
    "a tensor kept outside": ("stores a tensor outside the module", lambda _, y: OUTSIDE.append(y.sum())),
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_forward_that_leaves_something_behind_is_refused(effect: str) -> None:
    match, do = EFFECTS[effect]
    with pytest.raises(UnsupportedModuleError, match=match):
        planned(Leaving(do), X)


def test_a_refusal_leaves_generators_and_objects_as_they_were() -> None:
    module = Leaving(lambda net, _: (net.python.random(), net.numpy.random(), net.losses["all"].append(2)))
    before = module.python.getstate(), module.numpy.bit_generator.state, {"all": [1]}
    with pytest.raises(UnsupportedModuleError):
        planned(module, X)
    assert (module.python.getstate(), module.numpy.bit_generator.state, module.losses) == before


def test_generators_of_cards_stay_where_cuda_begins_while_a_module_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_generators", ())
    module, begun = nn.Linear(3, 3), (torch.Generator("cpu"),)
    with refuse_side_effects(module, ()):
        torch.cuda.default_generators = begun
        module(torch.ones(1, 3))
    assert torch.cuda.default_generators is begun


def test_what_a_forward_fills_in_once_is_none() -> None:
    module = Leaving(lambda net, _: net.losses.setdefault("kind", "filled in"))
    module(*X)
    assert train(planned(module, X), X) == train(module, X)


def test_a_forward_may_log() -> None:
    module = Leaving(lambda net, _: net.logger.debug("a step"))
    module.logger = logging.getLogger("tests.a_forward_that_logs")
    assert train(planned(module, X), X) == train(module, X)


def test_other_kernels_of_attention_than_planned_are_refused() -> None:
    trained = planned(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), (X[0][None],))
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(InputMismatchError, match=r"attention by .* is False"):
        trained(X[0][None])
