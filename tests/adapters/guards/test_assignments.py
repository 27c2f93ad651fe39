"""Attributes that a forward sets have the same values after a planned step, and take the same gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, plans_of, within_budget
from torch import Tensor, nn

from tests.modules.generators import seeded
from tests.modules.torch_training import bits, planned

X = torch.randn(4, 6, generator=seeded(0))


class Held:
    """An object with a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.count = tensor, len(tensor)


class Setting(nn.Module):
    """Two layers; between them ``do`` sets attributes of the module and its first layer."""

    def __init__(self, do: Callable[[Setting, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.do = nn.Linear(6, 6), nn.Linear(6, 2), do
        self.kept: Any = None
        self.mean: Any = torch.zeros(6)
        self.held = Held(torch.zeros(6))
        self.register_buffer("moved", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        self.do(self, h)
        return self.last(torch.nn.functional.dropout(h, 0.2)).square().mean()


def doubled(net: Setting, h: Tensor) -> None:
    net.kept = 1
    net.kept *= 2 * len(h)


SET: dict[str, Callable[[Setting, Tensor], Any]] = {
    "a number": doubled,
    "a device": lambda net, h: setattr(net.first, "kept", h.device),
    "a tensor": lambda net, h: setattr(net.first, "kept", h.square().mean()),
    "tensors in a list": lambda net, h: setattr(net, "kept", [h, {"max": h.max(), "size": h.shape[0]}]),
    "an object": lambda net, h: setattr(net, "kept", Held(h * 2)),
    "an object's tensor": lambda net, h: setattr(net.held, "tensor", h * 2),
    "an object's number": lambda net, h: setattr(net.held, "count", h.shape[0]),
    "an argument's view": lambda net, h: setattr(net, "kept", h.detach()[0]),
    "a moving average": lambda net, h: setattr(net, "mean", 0.9 * net.mean + 0.1 * h.detach().mean(0)),
    "a replaced buffer": lambda net, h: setattr(net, "moved", net.moved + h.detach().mean(0)),
}


def losses(net: Setting) -> Tensor:
    """What a training script adds to the loss of what a forward has set."""
    found = [getattr(net, "kept", None), getattr(net.first, "kept", None), net.held]
    leaves = [leaf.tensor if isinstance(leaf, Held) else leaf for leaf in torch.utils._pytree.tree_leaves(found)]
    return sum((leaf.sum() for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad), torch.zeros(()))


def left_behind(net: Setting, *, used: bool) -> list[Any]:
    torch.manual_seed(1)
    optimizer, seen = torch.optim.AdamW(net.parameters()), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(X) + (losses(net) if used else 0)
        loss.backward()
        optimizer.step()
        leaves = torch.utils._pytree.tree_leaves(
            [net.kept, getattr(net.first, "kept", None), net.mean, net.moved, net.held]
        )
        leaves = [part for leaf in leaves for part in (vars(leaf).values() if isinstance(leaf, Held) else [leaf])]
        seen += [bits(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return seen + [bits(parameter) for parameter in net.parameters()]


@pytest.mark.values
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
@pytest.mark.parametrize("what", SET)
def test_it_has_the_bits_of_eager_after_each_step(what: str, used: bool) -> None:
    net = Setting(SET[what])
    expected = left_behind(copy.deepcopy(net), used=used)
    assert left_behind(planned(net, (X,)), used=used) == expected


@pytest.mark.parametrize("what", SET)
def test_no_step_needs_another_plan(what: str) -> None:
    net = within_budget(Setting(SET[what]), budget="100%", strategy="greedy", device="cpu")
    left_behind(net, used=True)
    assert len(plans_of(net)) == 1


def test_what_was_set_while_planning_is_restored() -> None:
    net = Setting(SET["a tensor"])
    net.first.kept = 3
    planned(net, (X,))
    assert net.first.kept == 3


class Lazy(nn.Module):
    """Makes what it multiplies by in its first forward: [4, 6] -> []."""

    def __init__(self, make: Callable[[Lazy], Any]) -> None:
        super().__init__()
        self.layer, self.make, self.scale = nn.Linear(6, 6), make, None

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if self.scale is None:
            self.make(self)
        return (h * (self.scale if self.scale is not None else self.made)).square().mean()


def made(net: Lazy) -> None:
    if not hasattr(net, "made"):
        net.made = torch.arange(6.0)


LAZY: dict[str, Callable[[Lazy], Any]] = {
    "instead of None": lambda net: setattr(net, "scale", torch.arange(6.0)),
    "an attribute that was not there": made,
}


@pytest.mark.values
@pytest.mark.parametrize("name", LAZY)
def test_what_only_a_first_forward_makes_has_the_bits_of_eager(name: str) -> None:
    outcomes = []
    for bound in (False, True):
        torch.manual_seed(0)
        net: Any = Lazy(LAZY[name])
        if bound:
            net = within_budget(net, budget="100%", strategy="greedy", device="cpu")
        for _ in range(3):
            net(X).backward()
        assert net.layer.weight.grad is not None
        outcomes.append([bits(net.layer.weight.grad), bits(net.scale if net.scale is not None else net.made)])
    assert outcomes[0] == outcomes[1]


class Naming(nn.Module):
    """Names its loss in its first forward, as a configuration asks it to, and then gives another: [4, 6] -> [4, 6]."""

    def __init__(self, *, in_an_object: bool) -> None:
        super().__init__()
        self.layer, self.held, self.name = nn.Linear(6, 6), Held(X), None
        self.held.name = self.name  # type: ignore[attr-defined]
        self.in_an_object = in_an_object

    def forward(self, x: Tensor) -> Tensor:
        owner: Any = self.held if self.in_an_object else self
        y = self.layer(x) * (3 if owner.name is None else 2)
        if owner.name is None:
            owner.name = "regression"
        return y


@pytest.mark.values
@pytest.mark.parametrize("in_an_object", [False, True])
def test_a_text_that_a_first_forward_fills_in_has_the_bits_of_eager(in_an_object: bool) -> None:
    outcomes = []
    for bound in (False, True):
        torch.manual_seed(0)
        net: Any = Naming(in_an_object=in_an_object)
        if bound:
            net = within_budget(net, budget="100%", strategy="greedy", device="cpu")
        for _ in range(3):
            net(X).sum().backward()  # in another layout than the outputs', for which the step is traced again
        assert net.layer.weight.grad is not None
        outcomes.append([bits(net.layer.weight.grad), net.name, net.held.name])
    assert outcomes[0] == outcomes[1]


def test_a_buffer_that_a_forward_registers_is_refused_with_what_helps() -> None:
    net = Lazy(lambda net: net.register_buffer("made", torch.arange(6.0)))
    with pytest.raises(UnsupportedModuleError) as caught:
        planned(net, (X,))
    assert caught.value.remedy == "register it in __init__, or run one forward before planning"
