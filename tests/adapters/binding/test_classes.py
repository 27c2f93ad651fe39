"""The class of a bound module is made without what the planned class does when classes are derived from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.modules.torch_training import planned, train

X = (torch.randn(8, 6),)


class Plain(nn.Module):
    """A layer, and a scalar out: [8, 6] -> []."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().sum() * self.gain()

    def gain(self) -> float:
        return 1.0


class Counting(Plain):
    """Changes with each class derived from it."""

    derived = 0

    def __init_subclass__(cls) -> None:
        Counting.derived += 1

    def gain(self) -> float:
        return 1.0 + self.derived


class Named(Plain):
    """Wants a name of each class derived from it."""

    def __init_subclass__(cls, *, name: str) -> None:
        super().__init_subclass__()
        cls.name = name


class Registering(type(nn.Module)):  # type: ignore[misc]
    """Keeps a list of its classes."""

    made: ClassVar[list[type]] = []

    def __init__(cls, *args: Any) -> None:
        super().__init__(*args)
        Registering.made.append(cls)


class Registered(Plain, metaclass=Registering):
    """Registers its class, and those derived from it."""

    def gain(self) -> float:
        return float(len(Registering.made))


class Base(Plain, ABC):
    """Has an abstract method."""

    @abstractmethod
    def gain(self) -> float: ...


class Concrete(Base):
    def gain(self) -> float:
        return 2.0


KINDS: list[type[Plain]] = [Counting, Named, Registered, Concrete]


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_to_the_bits_of_eager(kind: type[Plain]) -> None:
    assert train(planned(kind(), X), X, steps=2) == train(kind(), X, steps=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_module_is_an_instance_of_its_class(kind: type[Plain]) -> None:
    assert isinstance(planned(kind(), X), kind)


def test_no_derived_class_is_counted() -> None:
    planned(Counting(), X)
    assert Counting.derived == 0


def test_no_class_is_registered() -> None:
    before = list(Registering.made)
    planned(Registered(), X)
    assert Registering.made == before
