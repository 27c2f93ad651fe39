"""What a forward reads of objects, modules and classes that it comes to, wherever they are, is part of its plan."""

from __future__ import annotations

import contextvars
import copy
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, UnsupportedModuleError, within_budget
from torch import Tensor, nn

from tests.modules.torch_training import alternating, bits

X = (torch.randn(6, 4),)


class Gauge:
    """A number, and ways to read it."""

    kind = 1.0

    def __init__(self) -> None:
        self.scale, self.unread, self.seen = 1.0, 0, 0

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scale

    def of_kind(self, x: Tensor) -> Tensor:
        return x * type(self).kind

    def counted(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x * self.seen

    def hook(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        return output * self.scale

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.scale


class Slotted:
    """Keeps its number in a slot."""

    __slots__ = ("gauge",)

    def __init__(self) -> None:
        self.gauge = Gauge()


class Settings:
    """A class used as a configuration."""

    scale = 1.0
    unread = 0


CONFIGURATION: Any = types.ModuleType("configuration_of_a_test")
sys.modules[CONFIGURATION.__name__] = CONFIGURATION
SHARED = Gauge()
CONTEXT: contextvars.ContextVar[Gauge] = contextvars.ContextVar("CONTEXT", default=SHARED)
HELD: dict[str, Any] = {"drop": nn.Dropout(0.5)}
activation: Any = torch.tanh


class Net(nn.Module):
    """A layer, and what ``use`` makes of its result and of what the module has: [6, 4] -> []."""

    own = 1.0

    def __init__(self, use: Callable[[Any, Tensor], Tensor], **has: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.use = nn.Linear(4, 4), use
        for key, value in has.items():
            object.__setattr__(self, key, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, self.linear(x).tanh()).square().sum()


def hooked(hook_of: Callable[[Gauge], Any]) -> Net:
    gauge = Gauge()
    net = Net(lambda _, y: y, gauge=gauge)
    net.linear.register_forward_hook(hook_of(gauge))
    return net


def by_method() -> Net:
    gauge = Gauge()
    return Net(lambda net, y: net.call(y), call=gauge.scaled)


def imported(_: Any, y: Tensor) -> Tensor:
    import configuration_of_a_test  # type: ignore[import-not-found]

    return y * configuration_of_a_test.scale


def imported_name(_: Any, y: Tensor) -> Tensor:
    from configuration_of_a_test import scale

    return y * scale


def deep(net: Any, y: Tensor) -> Tensor:
    return y * net.config.text[0].attention["gauge"].scale


def deep_net() -> Net:
    kind = types.SimpleNamespace
    return Net(deep, config=kind(text=[kind(attention={"gauge": Gauge()})]))


def in_a_closure() -> Net:
    gauge = Gauge()
    return Net(lambda _, y: gauge.scaled(y), gauge=gauge)


def dropped_in_a_closure() -> Net:
    drop = nn.Dropout(0.5)
    return Net(lambda _, y: drop(y), drop=drop)


def listed() -> Net:
    return Net(lambda net, y: net.held[0](y), held=[nn.Sequential(nn.Dropout(0.5))])


def scale(gauge: Any) -> object:
    return setattr(gauge, "scale", 3.0)


def behind(net: Any) -> object:
    return scale(net.call.__self__)


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "a method": (by_method, behind),
    "a partial call": (
        lambda: Net(lambda net, y: net.call(y), call=functools.partial(Gauge.scaled, Gauge())),
        lambda net: scale(net.call.args[0]),
    ),
    "a partial call of a method": (
        lambda: Net(lambda net, y: net.call(y), call=functools.partial(Gauge().scaled)),
        lambda net: scale(net.call.func.__self__),
    ),
    "an object that is called": (lambda: Net(lambda net, y: net.gauge(y), gauge=Gauge()), lambda net: scale(net.gauge)),
    "a hook that is a method": (lambda: hooked(lambda gauge: gauge.hook), lambda net: scale(net.gauge)),
    "a hook that is a partial call": (
        lambda: hooked(lambda gauge: functools.partial(Gauge.hook, gauge)), lambda net: scale(net.gauge)
    ),
    "a method around": (in_a_closure, lambda net: scale(net.gauge)),
    "a method of a global": (lambda: Net(lambda _, y: SHARED.scaled(y)), lambda net: scale(SHARED)),
    "a slot's object": (lambda: Net(lambda net, y: net.has.gauge(y), has=Slotted()), lambda net: scale(net.has.gauge)),
    "another object in a slot": (
        lambda: Net(lambda net, y: net.has.gauge(y), has=Slotted()),
        lambda net: (setattr(net.has, "gauge", Gauge()), scale(net.has.gauge)),
    ),
    "deep in a configuration": (deep_net, lambda net: scale(net.config.text[0].attention["gauge"])),
    "another dictionary of attributes": (
        by_method, lambda net: setattr(net.call.__self__, "__dict__", {"scale": 3.0})
    ),
    "a mode of a module in a list": (listed, lambda net: net.held[0].eval()),
    "a rate of a module in a list": (listed, lambda net: setattr(net.held[0][0], "p", 0.9)),
    "a hook of a module in a list": (
        listed, lambda net: net.held[0][0].register_forward_hook(lambda _, __, output: output * 2)
    ),
    "another module in one": (listed, lambda net: net.held[0].__setitem__(0, nn.Tanh())),
    "a mode of a module around": (dropped_in_a_closure, lambda net: net.drop.eval()),
    "a mode of a module in a global": (lambda: Net(lambda _, y: HELD["drop"](y)), lambda _: HELD["drop"].eval()),
    "an object behind a weak reference": (
        lambda: Net(lambda net, y: y * net.gauge_of().scale, gauge_of=weakref.ref(SHARED)), lambda _: scale(SHARED)
    ),
    "an object in a context variable": (
        lambda: Net(lambda _, y: y * CONTEXT.get().scale), lambda _: scale(SHARED)
    ),
    "a class": (
        lambda: Net(lambda net, y: y * net.settings.scale, settings=Settings),
        lambda _: setattr(Settings, "scale", 3.0),
    ),
    "a Python module": (
        lambda: Net(lambda net, y: y * net.settings.scale, settings=CONFIGURATION),
        lambda _: setattr(CONFIGURATION, "scale", 3.0),
    ),
    "an imported module": (lambda: Net(imported), lambda _: setattr(CONFIGURATION, "scale", 3.0)),
    "an imported name": (lambda: Net(imported_name), lambda _: setattr(CONFIGURATION, "scale", 3.0)),
    "the type of the module": (lambda: Net(lambda net, y: y * type(net).own), lambda _: setattr(Net, "own", 3.0)),
    "the class of the module": (lambda: Net(lambda net, y: y * net.__class__.own), lambda _: setattr(Net, "own", 3.0)),
    "the type of an object": (
        lambda: Net(lambda net, y: net.gauge.of_kind(y), gauge=Gauge()), lambda _: setattr(Gauge, "kind", 3.0)
    ),
    "a function in a global": (lambda: Net(lambda _, y: activation(y)), lambda _: _replace_activation()),
}  # fmt: skip


def _replace_activation() -> None:
    global activation
    activation = torch.sigmoid


def put_back() -> None:
    global activation
    activation = torch.tanh
    SHARED.scale, Settings.scale, CONFIGURATION.scale, Net.own, Gauge.kind = 1.0, 1.0, 1.0, 1.0, 1.0
    HELD["drop"].train()


@pytest.fixture(autouse=True)
def outside_as_it_was() -> Iterator[None]:
    """What is changed outside of modules is put back."""
    put_back()
    yield
    put_back()


def bound(net: nn.Module, **options: Any) -> Any:
    return within_budget(net, X, budget="min", device="cpu", strategy="greedy", **options)


def trained(net: Any, change: Callable[[Any], object]) -> list[bytes]:
    """Three steps, with the change before the last one."""
    torch.manual_seed(1)
    made = alternating(net, X * 2)
    change(net)
    return made + alternating(net, X)


@pytest.mark.values
@pytest.mark.filterwarnings("ignore:planned .* again")
@pytest.mark.parametrize("case", CASES)
def test_a_change_trains_to_the_bits_of_eager(case: str) -> None:
    make, change = CASES[case]
    eager = trained(make(), change)
    put_back()
    assert trained(bound(make()), change) == eager


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_another_step(case: str) -> None:
    make, change = CASES[case]
    net = bound(make(), on_change="raise")
    change(net)
    with pytest.raises(InputMismatchError, match="changed since the plan was bound"):
        net(*X)


UNREAD: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "an object behind a method": (by_method, lambda net: setattr(net.call.__self__, "unread", 1)),
    "a deep configuration": (deep_net, lambda net: setattr(net.config.text[0].attention["gauge"], "unread", 1)),
    "a class": (CASES["a class"][0], lambda _: setattr(Settings, "unread", 1)),
    "a module in a list": (listed, lambda net: setattr(net.held[0], "unread", 1)),
}


@pytest.mark.parametrize("case", UNREAD)
def test_what_no_forward_reads_may_change(case: str) -> None:
    make, change = UNREAD[case]
    net = bound(make(), on_change="raise")
    change(net)
    assert net(*X).requires_grad


class TestCopied:
    def test_a_copy_has_objects_of_its_own(self) -> None:
        net = bound(deep_net(), on_change="raise")
        copied = copy.deepcopy(net)
        scale(net.config.text[0].attention["gauge"])
        assert copied(*X).requires_grad

    def test_a_change_of_its_own_objects_is_another_step(self) -> None:
        copied = copy.deepcopy(bound(deep_net(), on_change="raise"))
        scale(copied.config.text[0].attention["gauge"])
        with pytest.raises(InputMismatchError, match=r"config\.text\[0\]\.attention\['gauge'\]\.scale"):
            copied(*X)

    def test_a_change_behind_its_own_method_is_another_step(self) -> None:
        copied = copy.deepcopy(bound(by_method(), on_change="raise"))
        behind(copied)
        with pytest.raises(InputMismatchError, match=r"call\.__self__\.scale"):
            copied(*X)


class TestWritten:
    def test_a_count_behind_a_method_is_refused(self) -> None:
        net = Net(lambda net, y: net.call(y), call=Gauge().counted)
        with pytest.raises(UnsupportedModuleError, match="changes 'seen' of a Gauge"):
            bound(net)

    def test_a_refusal_puts_it_back(self) -> None:
        gauge = Gauge()
        with pytest.raises(UnsupportedModuleError):
            bound(Net(lambda net, y: net.call(y), call=gauge.counted))
        assert gauge.seen == 0

    def test_an_attribute_that_comes_to_be_is_taken_away_again(self) -> None:
        gauge = Gauge()
        with pytest.raises(UnsupportedModuleError, match="changes 'fresh' of a Gauge"):
            bound(Net(lambda net, y: net.call(y), call=lambda y: (setattr(gauge, "fresh", 1), y)[1]))
        assert not hasattr(gauge, "fresh")

    def test_objects_that_a_forward_makes_are_its_own(self) -> None:
        def use(_: Any, y: Tensor) -> Tensor:
            made = Gauge()
            return made.counted(made.counted(y))

        assert bits(bound(Net(use))(*X)) == bits(Net(use)(*X))

    def test_a_backward_hook_of_a_module_in_a_list_is_refused(self) -> None:
        net = listed()
        net.held[0].register_full_backward_hook(lambda *_: None)  # type: ignore[operator]
        with pytest.raises(UnsupportedModuleError, match=r"a Sequential that the forward .* calls has a backward hook"):
            bound(net)

    @pytest.mark.parametrize("held", [nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)])
    def test_tensors_of_a_module_in_a_list_are_refused(self, held: nn.Module) -> None:
        with pytest.raises(UnsupportedModuleError, match=r"as a submodule \(nn\.ModuleList\)"):
            bound(Net(lambda net, y: net.held[0](y), held=[held]))


class Nested:
    """A configuration with a part that is a class, too."""

    class Part:
        """The part."""

        scale = 1.0


@pytest.mark.filterwarnings("ignore:planned .* again")
def test_a_class_inside_of_a_class_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    make = lambda: Net(lambda net, y: y * net.settings.Part.scale, settings=Nested)  # noqa: E731
    trained = within_budget(make(), X, budget="min", strategy="greedy", device="cpu")
    monkeypatch.setattr(Nested.Part, "scale", 3.0)
    assert bits(trained(*X)) == bits(make()(*X))
