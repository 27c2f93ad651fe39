"""Forward hooks of submodules are part of the step: traced with it, guarded, and left as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, UnsupportedModuleError, within_budget
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.modules.torch_training import alternating, bits, planned, train

X = (torch.randn(8, 6),)


class Net(nn.Module):
    """Two layers, and a scalar out: [8, 6] -> []."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).square().sum()


class Scale:
    """A hook with a state of its own."""

    def __init__(self) -> None:
        self.factor, self.calls = 2.0, 0

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * self.factor


class Counting(Scale):
    """A hook that counts its calls."""

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        self.calls += 1
        return output


def doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def noisy(module: nn.Module, args: Any) -> Any:
    return (args[0] + torch.rand_like(args[0]),)


HOOKS: dict[str, Callable[[Net], object]] = {
    "a function": lambda net: net.first.register_forward_hook(doubled),
    "a pre-hook that draws": lambda net: net.second.register_forward_pre_hook(noisy),
    "a hook with keywords": lambda net: net.first.register_forward_hook(lambda m, a, k, out: out * 3, with_kwargs=True),
    "an object": lambda net: net.first.register_forward_hook(Scale()),
    "several": lambda net: (net.first.register_forward_hook(doubled), net.first.register_forward_hook(Scale())),
    "a spectral norm": lambda net: nn.utils.spectral_norm(net.second),
}


def hooked(kind: str) -> Net:
    net = Net()
    HOOKS[kind](net)
    return net


def bound(net: nn.Module, **options: Any) -> Any:
    return within_budget(net, X, budget="min", device="cpu", strategy="greedy", **options)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", HOOKS)
class TestTraced:
    def test_it_trains_to_the_bits_of_eager(self, kind: str) -> None:
        assert train(planned(hooked(kind), X, "min"), X, steps=3) == train(hooked(kind), X, steps=3)

    def test_a_copy_trains_to_the_bits_of_eager(self, kind: str) -> None:
        assert train(copy.deepcopy(planned(hooked(kind), X, "min")), X) == train(hooked(kind), X)

    def test_planning_leaves_the_hooks_as_they_were(self, kind: str) -> None:
        net = hooked(kind)
        before = [dict(child._forward_hooks) | dict(child._forward_pre_hooks) for child in net.modules()]
        planned(net, X)
        assert [dict(child._forward_hooks) | dict(child._forward_pre_hooks) for child in net.modules()] == before


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5)])
def test_a_computed_weight_that_cannot_be_copied_trains_to_the_bits_of_eager(norm: Any) -> None:
    nets = [Net(), Net()]
    for net in nets:
        norm(net.first)
    batches = X * 3
    assert alternating(planned(nets[0], X, "min"), batches) == alternating(nets[1], batches)


CHANGES: dict[str, Callable[[Any], object]] = {
    "one more": lambda net: net.second.register_forward_hook(doubled),
    "one less": lambda net: net.first._forward_hooks.clear(),
    "another": lambda net: net.first._forward_hooks.update(dict.fromkeys(net.first._forward_hooks, doubled)),
    "one with another state": lambda net: setattr(next(iter(net.first._forward_hooks.values())), "factor", 5.0),
}


class TestGuarded:
    @pytest.mark.filterwarnings("ignore:planned .* again")
    @pytest.mark.parametrize("change", CHANGES)
    def test_other_hooks_train_to_the_bits_of_eager(self, change: str) -> None:
        trained, eager = bound(hooked("an object")), hooked("an object")
        CHANGES[change](trained), CHANGES[change](eager)
        assert train(trained, X) == train(eager, X)

    @pytest.mark.parametrize("change", CHANGES)
    def test_other_hooks_are_another_step(self, change: str) -> None:
        trained = bound(hooked("an object"), on_change="raise")
        CHANGES[change](trained)
        with pytest.raises(InputMismatchError, match=r"its hooks|'first\._forward_hooks.* changed"):
            trained(*X)

    def test_state_of_a_hook_that_it_does_not_read_may_change(self) -> None:
        trained = bound(hooked("an object"), on_change="raise")
        next(iter(trained.first._forward_hooks.values())).calls = 7
        assert bits(trained(*X)) == bits(hooked("an object")(*X))


class Installing(Net):
    """Installs a hook in its first forward, and notes that where transformers does."""

    def forward(self, x: Tensor) -> Tensor:
        if not getattr(self, "_output_capturing_hooks_installed", False):
            self.first.register_forward_hook(doubled)
            self._output_capturing_hooks_installed = True
        return super().forward(x)


class TestInstalledWhileTraced:
    def test_it_trains_to_the_bits_of_eager(self) -> None:
        assert train(planned(Installing(), X), X, steps=2) == train(Installing(), X, steps=2)

    def test_none_is_left_behind(self) -> None:
        net = Installing()
        planned(net, X)
        assert not net.first._forward_hooks

    def test_none_is_left_behind_by_a_module_that_is_refused(self) -> None:
        class Refused(Net):
            def forward(self, x: Tensor) -> Tensor:
                self.first.register_forward_hook(doubled)
                self.ready = getattr(self, "ready", 0) + 1
                return super().forward(x)

        net = Refused()
        with pytest.raises(UnsupportedModuleError, match="sets attribute 'ready'"):
            planned(net, X)
        assert not net.first._forward_hooks


class TestRefused:
    def test_one_that_a_first_forward_installs_and_notes(self) -> None:
        class Noting(Net):
            ready: bool | None = None

            def forward(self, x: Tensor) -> Tensor:
                if self.ready is None:
                    self.first.register_forward_hook(doubled)
                    self.ready = True
                return super().forward(x)

        with pytest.raises(UnsupportedModuleError, match="installs a hook while 'ready' is None"):
            planned(Noting(), X)

    def test_a_hook_that_stores_what_it_sees(self) -> None:
        net, seen = Net(), []
        net.first.register_forward_hook(lambda module, args, output: seen.append(output))
        with pytest.raises(UnsupportedModuleError, match="stores a tensor outside the module"):
            planned(net, X)

    def test_a_hook_that_counts_its_calls(self) -> None:
        net = Net()
        net.first.register_forward_hook(Counting())
        with pytest.raises(UnsupportedModuleError, match="sets attribute 'hook "):
            planned(net, X)

    def test_a_backward_hook(self) -> None:
        net = Net()
        net.first.register_full_backward_hook(lambda *_: None)
        with pytest.raises(UnsupportedModuleError, match="submodule 'first' has a backward hook"):
            planned(net, X)

    @pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
    def test_a_norm_on_the_module_itself(self) -> None:
        with pytest.raises(UnsupportedModuleError, match=r"has a norm of torch\.nn\.utils"):
            planned(nn.utils.weight_norm(nn.Linear(6, 6)), X)
