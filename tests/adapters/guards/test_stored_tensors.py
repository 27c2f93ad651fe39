"""What a forward and its hooks store in dictionaries and lists, a planned step stores too, to the bits of eager."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, plans_of, within_budget
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tests.modules.generators import seeded
from tests.modules.torch_training import bits

X = torch.randn(4, 6, generator=seeded(0))


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


class Storing(nn.Module):
    """Layers, and a ``store`` that they are given before the last one: a dictionary or a list."""

    def __init__(self, store: Any, keep: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        self.layers, self.store, self.keep = layers(), store, keep

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers[:-1](x)
        self.keep(self.store, h)
        result: Tensor = self.layers[-1](h)
        return result


def hooked(store: Any, keep: Callable[[Any, str, Tensor], None]) -> nn.Module:
    """Layers with hooks that keep what two of them return, in a closure."""
    module = layers()
    for name in ("1", "3"):
        module[int(name)].register_forward_hook(lambda _, __, output, name=name: keep(store, name, output))
    return module


def under_key(store: Any, name: str, output: Tensor) -> None:
    store[name] = output


def detached_under_key(store: Any, name: str, output: Tensor) -> None:
    store[name] = output.detach()


def appended(store: Any, name: str, output: Tensor) -> None:
    store.append((name, output))


def appended_under_key(store: Any, name: str, output: Tensor) -> None:
    store[name].append(output)


def refilled(store: Any, h: Tensor) -> None:
    store.clear()
    store.extend([h, h.exp()])


def mean(store: Any, h: Tensor) -> None:
    store["mean"] = h.mean().detach()


def both(store: Any, h: Tensor) -> None:
    store["mean"] = h.mean().detach()
    store["features"] = {"h": h, "scale": 2.0}


CASES: dict[str, tuple[Callable[[Any], nn.Module], Callable[[], Any], bool]] = {
    "a dictionary of a closure": (lambda store: hooked(store, under_key), dict, False),
    "detached": (lambda store: hooked(store, detached_under_key), dict, False),
    "an ordered dictionary": (lambda store: hooked(store, under_key), OrderedDict, False),
    "a list of a closure, cleared by the caller": (lambda store: hooked(store, appended), list, True),
    "lists by name, cleared by the caller": (
        lambda store: hooked(store, appended_under_key), lambda: defaultdict(list), True
    ),
    "a list that grows": (lambda store: hooked(store, appended), list, False),
    "a dictionary of the module": (lambda store: Storing(store, both), dict, False),
    "a list of the module that it clears": (lambda store: Storing(store, refilled), list, False),
}  # fmt: skip


def trained(make: Callable[[Any], nn.Module], store: Any, clears: bool, *, plans: bool) -> list[Any]:
    """Three steps whose loss has a part in what was stored; gradients, what was stored, and its keys in order."""
    module = make(store)
    net = within_budget(module, budget="100%", device="cpu", strategy="greedy") if plans else module
    found: list[Any] = []
    for step in range(3):
        if clears:
            store.clear()
        net.zero_grad(set_to_none=True)
        loss = net(X + step).square().sum()
        kept = [leaf for leaf in tree_leaves(store) if isinstance(leaf, Tensor)]
        (loss + kept[-1].exp().sum()).backward()
        found.append([bits(p.grad) for p in net.parameters()] + [bits(leaf.detach()) for leaf in kept])
        found.append(list(store) if isinstance(store, dict) else len(store))
    return found


@pytest.mark.values
@pytest.mark.parametrize("case", CASES)
def test_it_is_stored_as_in_eager_training(case: str) -> None:
    make, store, clears = CASES[case]
    assert trained(make, store(), clears, plans=True) == trained(make, store(), clears, plans=False)


class Deciding(Storing):
    """What it found in its dictionary decides what it computes."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        h = h * 2 if "h" in self.store else h
        self.store["h"] = h.detach()
        return h


@pytest.mark.values
def test_a_plan_holds_only_where_the_key_is_there_as_it_was() -> None:
    def run(net: Any) -> list[bytes]:
        found = []
        for step in range(4):
            if step == 2:
                net.store.clear()
            found.append(bits(net(X).detach()))
        return found

    module = Deciding({}, under_key)  # type: ignore[arg-type]
    plain = copy.deepcopy(module)
    assert run(within_budget(module, budget="100%", device="cpu", strategy="greedy")) == run(plain)


@pytest.mark.filterwarnings("ignore:planned Storing again")
def test_two_plans_are_enough() -> None:
    net = within_budget(Storing({}, both), budget="100%", device="cpu", strategy="greedy")
    for _ in range(4):
        net(X).sum().backward()
    assert len(plans_of(net)) == 2


class Averaging(Storing):
    """A moving average in a dictionary: each step computes from the tensor that the one before stored."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        self.store["mean"] = 0.9 * self.store["mean"] + h.mean().detach()
        return h


def test_a_step_that_computes_from_what_the_last_one_stored_is_refused() -> None:
    net = within_budget(Averaging({"mean": torch.tensor(0.0)}, under_key), budget="100%", device="cpu")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModuleError, match=r"reads a tensor of shape \(\) in aten.mul.Tensor"):
        net(X)


def test_a_list_that_gets_texts_too_is_refused() -> None:
    def keep(store: list[Any], h: Tensor) -> None:
        store.extend(["step", h])

    net = within_budget(Storing([], keep), budget="100%", device="cpu")
    with pytest.raises(UnsupportedModuleError, match="sets attribute 'store', which a planned step would not"):
        net(X)


def test_planning_leaves_a_container_as_it_was() -> None:
    module = Storing({"other": 1}, both)
    within_budget(module, (X,), budget="100%", device="cpu", strategy="greedy")
    assert module.store == {"other": 1}


@pytest.mark.values
def test_a_copy_stores_in_its_own_dictionary() -> None:
    net = within_budget(Storing({}, mean), budget="100%", device="cpu", strategy="greedy")
    net(X).sum().backward()
    other = copy.deepcopy(net)
    other(X + 1)
    assert bits(other.store["mean"]) != bits(net.store["mean"])


@pytest.mark.values
def test_a_loaded_module_stores_too() -> None:
    net = pickle.loads(pickle.dumps(within_budget(Storing({}, both), budget="100%", device="cpu", strategy="greedy")))
    net(X).sum().backward()
    assert "features" in net.store


SCALE: Any = torch.tensor(3.0)
SCALES: dict[str, Tensor] = {"x": torch.tensor(2.0)}


def twice_a_global(x: Tensor) -> Tensor:
    return x * (SCALE * 2)


def an_item_negated(x: Tensor) -> Tensor:
    return x * -SCALES["x"]


def a_number_of_it(x: Tensor) -> Tensor:
    return x * float(SCALE + 1)


class Scaled(nn.Linear):
    """A layer behind a function that computes with a number in a tensor."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__(6, 3)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.call(x))


@pytest.mark.parametrize("call", [twice_a_global, an_item_negated, a_number_of_it])
def test_what_is_computed_of_a_tensor_from_elsewhere_alone_is_refused(call: Callable[[Tensor], Tensor]) -> None:
    """The plan would keep the number of its example when the name gets another tensor."""
    net = within_budget(Scaled(call), budget="100%", device="cpu")
    with pytest.raises(UnsupportedModuleError, match=r"reads a tensor of shape \(\) in aten.* that is no argument"):
        net(X)
