"""A bound module is the original in every respect except how its training step runs."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, UnsupportedModuleError, original, plan_of, within_budget
from ogc_plan.planner.errors import AdapterError
from ogc_plan.planner.limits import gc_paused
from torch import Tensor, nn

from tests.modules.devices import random_state
from tests.modules.torch_modules import WithLoss, convolutional
from tests.modules.torch_training import bits, planned


class Net(nn.Module):
    """Two layers and a dropout; the loss is outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 32)
        self.norm = nn.BatchNorm1d(32)
        self.second = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.relu(self.norm(self.first(x)))))


@pytest.fixture
def plain() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def args() -> tuple[Tensor, ...]:
    return (torch.randn(4, 6),)


@pytest.fixture
def trained(plain: Net, args: tuple[Tensor, ...]) -> nn.Module:
    return planned(plain, args, "min")


def gradients(module: nn.Module) -> list[bytes]:
    return [bits(p.grad) for p in module.parameters() if p.grad is not None]


class TestLooksLikeTheOriginal:
    def test_a_bound_module_is_an_instance_of_the_same_class(self, trained: nn.Module) -> None:
        assert isinstance(trained, Net)

    def test_a_bound_module_shares_the_parameters(self, plain: Net, trained: nn.Module) -> None:
        assert all(a is b for a, b in zip(plain.parameters(), trained.parameters(), strict=True))

    def test_a_bound_module_has_the_same_state_dict_keys(self, plain: Net, trained: nn.Module) -> None:
        assert list(trained.state_dict()) == list(plain.state_dict())

    def test_a_bound_module_prints_like_the_original_with_a_line_on_its_plan(
        self, plain: Net, trained: nn.Module
    ) -> None:
        name, *rest = repr(plain).split("\n")
        assert repr(trained).split("\n") == [name, f"  ogc_plan: {plan_of(trained).outcome}", *rest]

    def test_what_its_class_prints_of_it_stays(self) -> None:
        trained = within_budget(nn.Linear(4, 2), budget="60%")
        told = "ogc_plan: budget 60%: planned in its first training step"
        assert repr(trained) == f"Linear(in_features=4, out_features=2, bias=True, {told})"

    @pytest.mark.values
    def test_evaluation_runs_the_original_forward(self, plain: Net, trained: nn.Module, args: Any) -> None:
        trained.eval()
        plain.eval()
        assert torch.equal(trained(*args), plain(*args))

    def test_evaluation_takes_any_shape(self, trained: nn.Module) -> None:
        assert trained.eval()(torch.randn(9, 6)).shape == (9, 6)

    def test_without_gradients_the_output_has_no_history(self, trained: nn.Module, args: Any) -> None:
        with torch.no_grad():
            assert trained(*args).grad_fn is None

    def test_forward_hooks_run_once(self, plain: Net, args: Any) -> None:
        calls: list[int] = []
        plain.register_forward_hook(lambda *_: calls.append(1))
        planned(plain, args)(*args)
        assert calls == [1]

    def test_a_deep_copy_trains_its_own_parameters(self, trained: nn.Module, args: Any) -> None:
        other = copy.deepcopy(trained)
        other(*args).sum().backward()
        assert (gradients(trained), len(gradients(other))) == ([], 6)

    def test_the_original_can_be_had_back(self, trained: nn.Module) -> None:
        assert type(original(trained)) is Net

    def test_a_plain_module_has_no_plan(self, plain: Net) -> None:
        with pytest.raises(AdapterError, match="Net is not bound to a plan"):
            plan_of(plain)


class TestTraining:
    def test_two_forwards_before_two_backwards_give_the_gradients_of_eager(
        self, plain: Net, trained: nn.Module, args: Any
    ) -> None:
        reference = copy.deepcopy(plain)
        for module in (reference, trained):
            one, two = module(*args), module(args[0] * 2)
            one.sum().backward()
            two.square().sum().backward()
        assert gradients(trained) == gradients(reference)

    def test_a_second_derivative_is_refused(self, trained: nn.Module, args: Any) -> None:
        weight = next(trained.parameters())
        with pytest.raises(RuntimeError, match="has no second derivative"):
            torch.autograd.grad(trained(*args).sum(), [weight], create_graph=True)

    def test_the_original_has_a_second_derivative(self, trained: nn.Module, args: Any) -> None:
        weight = next(trained.parameters())
        (first,) = torch.autograd.grad(original(trained)(*args).sum(), [weight], create_graph=True)
        assert first.requires_grad

    def test_an_output_changed_before_the_backward_is_named(self, trained: nn.Module, args: Any) -> None:
        output = trained(*args)
        with torch.no_grad():
            output.add_(1)
        with pytest.raises(RuntimeError, match="an output was modified in place"):
            output.sum().backward()

    def test_a_loss_that_is_kept_keeps_no_arguments_after_its_backward(self, trained: nn.Module, args: Any) -> None:
        batch = args[0].clone()
        with gc_paused():
            loss, alive = trained(batch).sum(), weakref.ref(batch)
            loss.backward()
            del batch
            assert alive() is None

    def test_a_forward_without_backward_leaves_nothing_behind(self, trained: nn.Module, args: Any) -> None:
        output = trained(*args)
        alive = weakref.ref(output.untyped_storage())
        del output
        assert alive() is None


def without_onednn(net: nn.Module, x: Tensor) -> Any:
    with torch.backends.mkldnn.flags(enabled=False):
        return net(x)


MISFITS: dict[str, tuple[Callable[[nn.Module, Tensor], Any], str]] = {
    "another shape": (
        lambda net, x: net(torch.cat([x, x])),
        r"argument 0 is float32\[8, 6\].*bound for float32\[4, 6\]",
    ),
    "another structure": (lambda net, x: net([x]), "was bound for other arguments"),
    "other names": (lambda net, x: net(x=x), "the keyword arguments are x; the plan was bound for none"),
    "a submodule in another mode": (
        lambda net, x: (net.norm.eval(), net(x)),
        "'norm' changed since the plan was bound: training is now False",
    ),
    "an added hook": (lambda net, x: (net.norm.register_forward_hook(print), net(x)), "its hooks"),
    "a parameter that is gone": (lambda net, x: (setattr(net.first, "bias", None), net(x)), r"'first\.bias' is gone"),
    "another kernel library": (without_onednn, "oneDNN is False"),
    "a replaced submodule": (lambda net, x: (setattr(net, "second", nn.Linear(32, 6)), net(x)), "removed or replaced"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_step_unlike_the_planned_one_is_refused(misfit: str, trained: nn.Module, args: Any) -> None:
    do, message = MISFITS[misfit]
    with pytest.raises(InputMismatchError, match=message):
        do(trained, *args)


class TestRefusals:
    def test_another_number_is_refused_with_the_advice_to_pass_a_tensor(self) -> None:
        class Divided(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(6, 6)

            def forward(self, x: Tensor, options: dict[str, Any]) -> Tensor:
                return self.linear(x).sum() / options["count"]

        trained = planned(Divided(), (torch.randn(4, 6),), kwargs={"options": {"count": 8}})
        with pytest.raises(
            InputMismatchError, match=r"argument options\['count'\] is int64.*bound for int 8"
        ) as caught:
            trained(torch.randn(4, 6), options={"count": torch.tensor(9)})
        assert "pass a tensor" in str(caught.value.remedy)

    def test_a_module_in_evaluation_mode_is_refused(self, plain: Net, args: Any) -> None:
        with pytest.raises(AdapterError, match="Net is in evaluation mode"):
            planned(plain.eval(), args)

    def test_a_module_without_gradients_is_refused(self, plain: Net, args: Any) -> None:
        with pytest.raises(UnsupportedModuleError, match="no output of Net needs a gradient"):
            planned(plain.requires_grad_(False), args)

    def test_arguments_that_no_step_takes_are_refused_with_the_submodule(self) -> None:
        with pytest.raises(UnsupportedModuleError, match=r"submodule '0\.1' of Sequential cannot be traced: Runtime"):
            planned(nn.Sequential(nn.Sequential(nn.Tanh(), nn.Linear(8, 8))), (torch.randn(4, 9),))

    def test_a_call_that_cannot_be_traced_logs_no_error(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(UnsupportedModuleError, match="Linear cannot be traced"):
            planned(nn.Linear(8, 8), (torch.randn(4, 9),))
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

    def test_an_argument_changed_in_place_is_refused(self) -> None:
        class Changes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(6, 6)

            def forward(self, x: Tensor) -> Tensor:
                x.add_(1)
                return self.linear(x)

        with pytest.raises(UnsupportedModuleError, match="changes input 'argument 0' in place"):
            planned(Changes(), (torch.randn(4, 6),))


class TestCapture:
    def test_nothing_of_the_module_changes(self) -> None:
        module, args = WithLoss(convolutional()), (torch.randn(2, 3, 8, 8),)
        before = {name: bits(value) for name, value in module.state_dict().items()}
        planned(module, args)
        assert {name: bits(value) for name, value in module.state_dict().items()} == before

    def test_the_generator_is_not_touched(self, plain: Net, args: Any) -> None:
        before = bits(random_state())
        planned(plain, args)
        assert bits(random_state()) == before
