"""Arguments that are one tensor are traced as one, constants are what they are, and a plan holds for these alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, within_budget
from torch import Tensor, nn

from tests.modules.torch_training import bits


class Attention(nn.Module):
    """Treats a key that is the query, or a buffer of its own, in another way: [6, 4], [6, 4] -> []."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("memory", torch.ones(6, 4))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if key is self.memory:
            return self.linear(query).sigmoid().sum()
        y = self.linear(query)
        return (y.tanh() * query if key is query else y + key.tanh()).square().sum()


def arguments(kind: str, module: Any, *, takes_gradient: bool = False) -> tuple[Tensor, Tensor]:
    query = torch.ones(6, 4, requires_grad=takes_gradient)
    return query, {"one": query, "two": torch.full((6, 4), 2.0), "own": module.memory}[kind]


def bound(module: nn.Module, **options: Any) -> Any:
    return within_budget(module, budget="min", device="cpu", strategy="greedy", **options)


def trained(module: Any, kinds: tuple[str, ...], *, takes_gradient: bool) -> list[bytes]:
    found = []
    for kind in kinds:
        given = arguments(kind, module, takes_gradient=takes_gradient)
        loss = module(*given)
        loss.backward()
        gradients = [tensor.grad for tensor in (given[0], *module.parameters())]
        found += [bits(loss), *(bits(gradient) for gradient in gradients if gradient is not None)]
        module.zero_grad()
    return found


@pytest.mark.values
@pytest.mark.filterwarnings("ignore:planned .* again")
@pytest.mark.parametrize("takes_gradient", [False, True])
@pytest.mark.parametrize("kinds", [("one", "two", "one"), ("two", "one"), ("two", "own", "one")])
def test_each_pattern_trains_to_the_bits_of_eager(kinds: tuple[str, ...], takes_gradient: bool) -> None:
    eager = trained(Attention(), kinds, takes_gradient=takes_gradient)
    assert trained(bound(Attention()), kinds, takes_gradient=takes_gradient) == eager


@pytest.mark.parametrize(
    ("planned", "given", "message"),
    [
        ("one", "two", "argument 1 is a tensor of its own; the plan was bound for argument 0 itself"),
        ("two", "one", "argument 1 is argument 0 itself; the plan was bound for a tensor of its own"),
        ("two", "own", "argument 1 is the module's 'memory'; the plan was bound for a tensor of its own"),
    ],
)
def test_another_pattern_is_another_step(planned: str, given: str, message: str) -> None:
    module = bound(Attention(), on_change="raise")
    module(*arguments(planned, module))
    with pytest.raises(InputMismatchError, match=message):
        module(*arguments(given, module))


class Mode(Enum):
    """Shows nothing of its members."""

    PLAIN = 1
    SCALED = 2

    def __repr__(self) -> str:
        return "a mode"


class Power(IntEnum):
    ONE = 1
    TWO = 2


class Configured(nn.Module):
    """Does what constants among its arguments say: [6, 4] -> []."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mode: Any = None, *, options: tuple[Any, ...] = ()) -> Tensor:
        y = self.linear(x)
        if isinstance(mode, torch.dtype):
            y = y.to(mode)
        elif isinstance(mode, torch.device):
            y = y * torch.ones(4, device=mode)
        elif isinstance(mode, Mode):
            y = y.tanh() if mode is Mode.PLAIN else 3 * y
        elif isinstance(mode, Power):
            y = y**mode
        return (y + len([option for option in options if option is torch.channels_last])).square().sum()


def another() -> type[Enum]:
    """An enumeration that has the name and the members of another."""

    class Mode(Enum):
        PLAIN = 1
        SCALED = 2

    return Mode


Other = another()

CONSTANTS: dict[str, tuple[Any, ...]] = {
    "a dtype": (torch.float64, torch.float32, torch.float64),
    "a device": (torch.device("cpu"), None),
    "a member of an enumeration": (Mode.PLAIN, Mode.SCALED, Mode.PLAIN),
    "a member of another one of that name": (Mode.PLAIN, Other.PLAIN, Mode.PLAIN),
    "a number that is a member": (Power.ONE, Power.TWO),
}


@pytest.mark.values
@pytest.mark.filterwarnings("ignore:planned .* again")
@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_constant_among_the_arguments_is_what_it_is(kind: str) -> None:
    module, plain, found = bound(Configured()), Configured(), []
    for net in (module, plain):
        for mode in CONSTANTS[kind]:
            loss = net(torch.ones(6, 4), mode, options=(torch.channels_last, torch.strided))
            loss.backward()
            found.append([bits(loss), *(bits(parameter.grad) for parameter in net.parameters())])
            net.zero_grad()
    assert found[: len(found) // 2] == found[len(found) // 2 :]


def test_a_plan_holds_for_its_constants_alone() -> None:
    given = (torch.ones(6, 4), Mode.PLAIN)
    module = within_budget(Configured(), given, budget="min", device="cpu", strategy="greedy", on_change="raise")
    with pytest.raises(InputMismatchError, match=r"Mode.*SCALED 2"):
        module(torch.ones(6, 4), Mode.SCALED)


class Slope(Enum):
    """Its members have an attribute besides their value."""

    STEEP = 1

    def __init__(self, _: int) -> None:
        self.factor = 3.0


class Sloped(nn.Linear):
    def forward(self, x: Tensor, slope: Slope) -> Tensor:
        return (super().forward(x) * slope.factor).square().sum()


def test_a_plan_holds_for_the_attributes_of_a_member_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (torch.ones(6, 4), Slope.STEEP)
    module = within_budget(Sloped(4, 4), given, budget="min", device="cpu", strategy="greedy", on_change="raise")
    monkeypatch.setattr(Slope.STEEP, "factor", 2.0)
    with pytest.raises(InputMismatchError, match=r"'factor': 2\.0"):
        module(*given)


@dataclass
class Options:
    """What a dataclass leaves out of its leaves where it is None."""

    shift: Tensor
    kind: torch.dtype | None = None


torch.export.register_dataclass(Options)


class WithOptions(nn.Linear):
    def forward(self, x: Tensor, options: Options) -> Tensor:
        return (super().forward(x).to(options.kind) + options.shift).square().sum()


@pytest.mark.values
def test_constants_in_a_dataclass_are_what_they_are() -> None:
    torch.manual_seed(0)
    plain = WithOptions(4, 4)
    given = (torch.ones(6, 4), Options(torch.ones(4), torch.float64))
    found = [bits(net(*given)) for net in (plain, bound(plain))]
    assert found[0] == found[1]
