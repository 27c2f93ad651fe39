"""Data outside of its module that the code of a forward names: neither the forward nor other code may change it."""

from __future__ import annotations

import gc
import itertools
import sys
from collections import namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, UnsupportedModuleError
from ogc_plan.adapters.pytorch.guards.sources import is_skipped
from torch import Tensor, nn

from tests.modules.generators import seeded
from tests.modules.torch_training import planned, train

X = (torch.randn(4, 6, generator=seeded(0)),)
HERE = sys.modules[__name__]

SCALE: float = 2.0
STEPS: int = 0
LOG: list[int] = []
CACHE: dict[str, float] = {}
OPTIONS = SimpleNamespace(rate=3.0, inner=SimpleNamespace(rate=3.0))
NUMBERS = itertools.count()
UNREAD = 0


class Settings:
    """Data of a class."""

    shift = 1.0


class Derived(Settings):
    """Inherits data."""


SETTINGS = Settings()


class Through(nn.Module):
    """A linear layer behind ``call``: [4, 6] -> []."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.call = nn.Linear(6, 6), call

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.call(self, x)).square().sum()


def held_around() -> tuple[Callable[[Any, Tensor], Tensor], Callable[[], None]]:
    factor = 2.0

    def call(_: Any, x: Tensor) -> Tensor:
        return x * factor

    def change() -> None:
        nonlocal factor
        factor = 5.0

    return call, change


class Scaled(torch.autograd.Function):
    """Doubles; its backward is written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * SCALE


class SetUp(Scaled):
    """The same, with a forward that does not see the context."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""


def scaled(x: Tensor) -> Tensor:
    return x * SCALE


def own_function(_: Any, x: Tensor) -> Tensor:
    return x * own_function.factor  # type: ignore[attr-defined]


own_function.factor = 2.0  # type: ignore[attr-defined]
AROUND, CHANGE_AROUND = held_around()

CHANGES: dict[str, tuple[str, Callable[[Any, Tensor], Tensor], tuple[Any, str, Any] | None]] = {
    "a number": ("global 'SCALE'", lambda _, x: x * SCALE, (HERE, "SCALE", 5.0)),
    "a number in a function that is called": ("global 'SCALE'", lambda _, x: scaled(x), (HERE, "SCALE", 5.0)),
    "a number in a backward": ("global 'SCALE'", lambda net, x: Scaled.apply(net.linear(x)), (HERE, "SCALE", 5.0)),
    "in a backward set up apart": ("global 'SCALE'", lambda net, x: SetUp.apply(net.linear(x)), (HERE, "SCALE", 5.0)),
    "a list": ("global 'LOG'", lambda _, x: x * (1 + len(LOG)), (HERE, "LOG", [1])),
    "an object's attribute": (r"'OPTIONS\.rate'", lambda _, x: x * OPTIONS.rate, (OPTIONS, "rate", 5.0)),
    "a class's attribute": (r"'Settings\.shift'", lambda _, x: x + Settings.shift, (Settings, "shift", 5.0)),
    "an attribute that comes to hide a class's": (r"'SETTINGS\.shift'", lambda _, x: x + SETTINGS.shift, None),
    "a class that comes to hide another's": (r"'Derived\.shift'", lambda _, x: x + Derived.shift, None),
    "a function's attribute": (r"'own_function\.factor'", own_function, (own_function, "factor", 5.0)),
    "a closure's variable": ("'factor' around", AROUND, None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_the_code_names_is_refused(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message, call, place = CHANGES[change]
    trained = planned(Through(call), X)
    if place is None:
        owner = {"SETTINGS": SETTINGS, "Derived": Derived}.get(message[1:].partition("\\")[0])
        CHANGE_AROUND() if owner is None else monkeypatch.setattr(owner, "shift", 5.0, raising=False)
    else:
        monkeypatch.setattr(*place)
    with pytest.raises(InputMismatchError, match=f"{message} .*changed since the plan was bound"):
        trained(*X)


def test_a_function_that_the_collector_has_frozen_is_guarded() -> None:
    call, change = held_around()
    gc.freeze()
    trained = planned(Through(call), X)
    change()
    with pytest.raises(InputMismatchError, match="'factor' around"):
        trained(*X)


def test_one_that_is_frozen_after_an_earlier_plan_is_guarded_too() -> None:
    gc.freeze()
    planned(Through(held_around()[0]), X)
    test_a_function_that_the_collector_has_frozen_is_guarded()


def test_what_is_made_after_a_freeze_is_not_frozen_by_plans() -> None:
    gc.freeze()
    planned(Through(held_around()[0]), X)
    before = gc.get_freeze_count()
    kept = [planned(Through(held_around()[0]), X) for _ in range(2)]
    assert (len(kept), gc.get_freeze_count() <= before) == (2, True)


def shifting(shift: float) -> tuple[type[Through], Callable[[], None]]:
    """A class whose forward reads a variable around it, and what changes the variable."""

    class Shifting(Through):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + shift

    def change() -> None:
        nonlocal shift
        shift = 5.0

    return Shifting, change


@pytest.mark.parametrize("changed", [False, True])
def test_of_two_classes_with_the_same_code_each_has_its_own_closure(changed: bool) -> None:
    (cls, change), (_, change_other) = shifting(1.0), shifting(2.0)
    trained = planned(cls(lambda _, x: x), X)
    (change if changed else change_other)()
    with pytest.raises(InputMismatchError, match="'shift' around") if changed else nullcontext():
        trained(*X)


def test_a_function_is_found_though_a_class_of_its_argument_has_another_of_the_same_code() -> None:
    call, change = held_around()
    trained = planned(type("Another", (Through,), {"call": held_around()[0]})(call), X)
    change()
    with pytest.raises(InputMismatchError, match="'factor' around"):
        trained(*X)


def raised(made: Settings) -> float:
    made.shift += 1.0
    return made.shift


def test_an_object_is_the_forwards_own_though_the_forward_collects_garbage() -> None:
    def counts(_: Any, x: Tensor) -> Tensor:
        made = Settings()
        gc.collect()
        return x * raised(made)

    module = Through(counts)
    assert train(planned(module, X), X) == train(module, X)


def test_what_no_code_of_the_forward_names_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Through(scaled_by_class := lambda _, x: x + Settings.shift)
    trained = planned(module, X)
    monkeypatch.setattr(HERE, "UNREAD", scaled_by_class)
    monkeypatch.setattr(HERE, "SCALE", 5.0)
    assert train(trained, X) == train(module, X)


def counted(_: Any, x: Tensor) -> Tensor:
    global STEPS
    STEPS += 1
    return x * STEPS


def counted_around() -> Callable[[Any, Tensor], Tensor]:
    count = 0

    def call(_: Any, x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * count

    return call


def cached(_: Any, x: Tensor) -> Tensor:
    if "scale" not in CACHE:
        CACHE["scale"] = 2.0
    return x * CACHE["scale"]


EFFECTS: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "a global number": ("changes global 'STEPS'", counted),
    "a global list": ("changes global 'LOG'", lambda _, x: (LOG.append(1), x)[1]),
    "a global cache": ("changes global 'CACHE'", cached),
    "a closure's number": ("changes 'count' around", counted_around()),
    "a global iterator": ("reads global 'NUMBERS'.*, a count", lambda _, x: x * next(NUMBERS)),
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_forward_that_changes_what_its_code_names_is_refused(effect: str) -> None:
    message, call = EFFECTS[effect]
    with pytest.raises(UnsupportedModuleError, match=message):
        planned(Through(call), X)


@pytest.mark.parametrize("effect", [counted, cached, lambda _, x: (LOG.append(1), x)[1]])
def test_a_refusal_leaves_what_the_code_names_as_it_was(effect: Callable[[Any, Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedModuleError):
        planned(Through(effect), X)
    assert (STEPS, LOG, CACHE) == (0, [], {})


def test_a_cache_that_one_forward_has_filled_is_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HERE, "CACHE", {"scale": 2.0})
    module = Through(cached)
    assert train(planned(module, X), X) == train(module, X)


def test_closures_that_a_forward_makes_are_its_own() -> None:
    def around(_: Any, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        count = 0

        def inner(y: Tensor) -> Tensor:
            nonlocal count
            count += 1
            seen.append(y)
            return y * count

        return inner(inner(x)) + seen[0]

    module = Through(around)
    assert train(planned(module, X), X) == train(module, X)


BACKENDS: dict[type, object] = {}
REGISTRY: dict[str, Any] = {"scale": 2.0, "kind": Settings}
LATE: Settings | None = None
METRICS = MagicMock()


def cached_by_type(_: Any, x: Tensor) -> Tensor:
    BACKENDS.setdefault(type(x), object())
    return x


def made_once(_: Any, x: Tensor) -> Tensor:
    global LATE
    LATE = LATE or Settings()
    return x


def told_elsewhere(_: Any, x: Tensor) -> Tensor:
    METRICS.add(1)
    return x


@pytest.mark.parametrize("call", [cached_by_type, made_once, told_elsewhere])
def test_caches_of_objects_are_no_effects(call: Callable[[Any, Tensor], Tensor]) -> None:
    module = Through(call)
    assert train(planned(module, X), X) == train(module, X)


def remembering(x: Tensor, seen: list[int] = [], *, scales: dict[str, float] = {"x": 2.0}) -> Tensor:  # noqa: B006
    seen.append(1)
    return x * scales["x"]


def scaled_by_default(x: Tensor, *, scales: dict[str, float] = {"x": 2.0}) -> Tensor:  # noqa: B006
    return x * scales["x"]


def test_a_default_that_the_forward_changes_is_refused_and_put_back() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"changes the default of 'seen' in remembering .* outside"):
        planned(Through(lambda _, x: remembering(x)), X)
    assert remembering.__defaults__ == ([],)


def test_a_default_may_not_change_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = planned(Through(lambda _, x: scaled_by_default(x)), X)
    assert scaled_by_default.__kwdefaults__ is not None
    monkeypatch.setitem(scaled_by_default.__kwdefaults__["scales"], "x", 3.0)
    with pytest.raises(InputMismatchError, match="the default of 'scales' in scaled_by_default"):
        trained(*X)


def test_a_registry_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = planned(Through(lambda _, x: x * REGISTRY["scale"]), X)
    monkeypatch.setitem(REGISTRY, "other", Through)
    trained(*X)
    monkeypatch.setitem(REGISTRY, "scale", 3.0)
    with pytest.raises(InputMismatchError, match="global 'REGISTRY'"):
        trained(*X)


def test_the_code_that_python_makes_for_a_named_tuple_is_not_looked_at() -> None:
    assert is_skipped(namedtuple("Pair", "first second").__new__.__globals__["__name__"])
