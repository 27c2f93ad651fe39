"""Hooks of all modules: those of submodules are part of the step and guarded, the root's run around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, UnsupportedModuleError, within_budget
from torch import Tensor, nn
from torch.nn.modules import module as of_all
from torch.utils.flop_counter import FlopCounterMode

from tests.modules.torch_training import planned, train

X = (torch.randn(8, 6),)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Sequential(nn.Linear(6, 6), nn.Flatten(0), nn.Linear(48, 1)))


def bound(module: nn.Module, **options: Any) -> nn.Module:
    return within_budget(module, X, budget="min", strategy="greedy", **options)


def doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def of_layers(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
    return output * 2 if isinstance(module, nn.Linear) else None


def shifted(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


class Method:
    """A hook with a state of its own."""

    def hook(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """See the output."""


HOOKS: dict[str, Callable[[], Any]] = {
    "all": lambda: of_all.register_module_forward_hook(doubled),
    "layers": lambda: of_all.register_module_forward_hook(of_layers),
    "before": lambda: of_all.register_module_forward_pre_hook(shifted),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "backward": (lambda: of_all.register_module_full_backward_hook(lambda *_: None), "runs in the backward"),
    "method": (lambda: of_all.register_module_forward_hook(Method().hook), "has a state of its own"),
}


@contextmanager
def registered(make: Callable[[], Any]) -> Iterator[None]:
    handle = make()
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("kind", HOOKS)
class TestTraced:
    def test_it_trains_to_the_bits_of_eager(self, kind: str) -> None:
        with registered(HOOKS[kind]):
            assert train(planned(net(), X, "min"), X, steps=2) == train(net(), X, steps=2)

    @pytest.mark.filterwarnings("ignore:planned .* again")
    def test_one_that_is_registered_later_makes_another_plan(self, kind: str) -> None:
        trained = bound(net())
        with registered(HOOKS[kind]):
            assert train(trained, X, steps=2) == train(net(), X, steps=2)

    @pytest.mark.filterwarnings("ignore:planned .* again")
    def test_one_that_is_removed_makes_another_plan(self, kind: str) -> None:
        with registered(HOOKS[kind]):
            trained = bound(net())
        assert train(trained, X, steps=2) == train(net(), X, steps=2)

    def test_it_is_another_step(self, kind: str) -> None:
        trained = bound(net(), on_change="raise")
        with registered(HOOKS[kind]), pytest.raises(InputMismatchError, match="the hooks of all modules"):
            trained(*X)

    def test_planning_leaves_it_registered(self, kind: str) -> None:
        with registered(HOOKS[kind]):
            before = [dict(of_all._global_forward_hooks), dict(of_all._global_forward_pre_hooks)]
            planned(net(), X)
            assert [dict(of_all._global_forward_hooks), dict(of_all._global_forward_pre_hooks)] == before


@pytest.mark.parametrize("kind", REFUSED)
class TestRefused:
    def test_it_is_refused_by_name(self, kind: str) -> None:
        make, why = REFUSED[kind]
        with registered(make), pytest.raises(UnsupportedModuleError, match=f"of all modules {why}"):
            planned(net(), X)

    def test_a_step_that_meets_it_later_is_refused(self, kind: str) -> None:
        trained = bound(net())
        with registered(REFUSED[kind][0]), pytest.raises(UnsupportedModuleError, match="of all modules"):
            trained(*X)

    def test_removing_it_helps(self, kind: str) -> None:
        with registered(REFUSED[kind][0]), pytest.raises(UnsupportedModuleError, match="remove it by the handle"):
            planned(net(), X)
        assert train(planned(net(), X), X) == train(net(), X)


def test_hooks_of_pytorch_itself_observe_a_planned_step() -> None:
    trained = bound(net())
    with FlopCounterMode(display=False) as counted:
        trained(*X).backward()
    with FlopCounterMode(display=False) as eager:
        net()(*X).backward()
    assert counted.get_total_flops() >= eager.get_total_flops() > 0


def test_a_module_without_submodules_runs_all_of_them_around_its_step() -> None:
    calls: list[int] = []
    x = (torch.randn(8, 6, requires_grad=True),)
    trained = planned(nn.Linear(6, 6), x)
    with registered(lambda: of_all.register_module_full_backward_hook(lambda *_: calls.append(1))):
        trained(*x).sum().backward()
    assert calls == [1]
