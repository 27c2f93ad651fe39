"""A bound module is planned when it trains, and planned again when a step is not one that it has a plan for."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import (
    InputMismatchError,
    UnsupportedModuleError,
    original,
    plan_of,
    plans_of,
    within_budget,
)
from ogc_plan.planner.errors import AdapterError, BudgetSyntaxError, InfeasibleBudgetError
from torch import Tensor, nn

from models.meters.storage_meter import StorageMeter
from tests.modules.devices import cpu_only
from tests.modules.threads import faults_of
from tests.modules.torch_training import alternating, bits, train

SMALL, LARGE = torch.randn(64, 16), torch.randn(192, 16)
SOFT = "70%"

again_is_expected = pytest.mark.filterwarnings("ignore:planned .* again")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    wide = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.GELU(),
            nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU()]  # fmt: skip
    return nn.Sequential(*wide, nn.Linear(64, 4))


def planned(module: nn.Module, budget: str | int = SOFT, **options: Any) -> Any:
    return within_budget(module, (SMALL,), budget=budget, device="cpu", strategy="greedy", **options)


def unplanned(module: nn.Module, budget: str | int = SOFT, **options: Any) -> Any:
    return within_budget(module, budget=budget, device="cpu", strategy="greedy", **options)


def activation_peak(module: nn.Module, batch: Tensor) -> int:
    module.zero_grad()
    with StorageMeter([*module.parameters(), *module.buffers(), batch]) as meter:
        module(batch).square().mean().backward()
    return meter.activation_peak([p.grad for p in module.parameters() if p.grad is not None]).nbytes


@pytest.fixture
def trained() -> Any:
    return planned(network())


@pytest.fixture
def both(trained: nn.Module) -> nn.Module:
    """A module that has met the large batch after the small one."""
    with pytest.warns(UserWarning, match="planned Sequential again"):
        trained(LARGE)
    return trained


class TestFirstPlan:
    def test_without_arguments_the_first_training_step_makes_it(self) -> None:
        trained = unplanned(network())
        assert alternating(trained, (SMALL,) * 2) == alternating(network(), (SMALL,) * 2)

    def test_it_keeps_the_budget(self) -> None:
        trained = unplanned(network())
        trained(SMALL)
        assert activation_peak(trained, SMALL) <= plan_of(trained).budget.nbytes

    def test_it_is_no_reason_for_a_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            unplanned(network())(SMALL)

    def test_before_it_there_is_no_plan_to_show(self) -> None:
        with pytest.raises(AdapterError, match="planned in its first training step and has not been called"):
            plan_of(unplanned(network()))

    def test_evaluation_makes_none(self) -> None:
        trained = unplanned(network())
        trained.eval()(SMALL), trained.train()
        with torch.no_grad():
            trained(SMALL)
        assert plans_of(trained) == ()

    def test_a_module_in_evaluation_mode_is_planned_when_it_trains(self) -> None:
        trained = planned(network().eval()).train()
        assert alternating(trained, (SMALL,) * 2) == alternating(network(), (SMALL,) * 2)

    def test_a_budget_that_is_none_is_refused_at_once(self) -> None:
        with pytest.raises(BudgetSyntaxError):
            unplanned(network(), "plenty")

    def test_a_copy_made_before_it_makes_its_own(self) -> None:
        trained = copy.deepcopy(unplanned(network()))
        assert alternating(trained, (SMALL,) * 2) == alternating(network(), (SMALL,) * 2)

    def test_it_is_made_outside_of_the_modes_that_watch_calls(self) -> None:
        trained = unplanned(network())
        with StorageMeter([*trained.parameters(), *trained.buffers(), SMALL]) as meter:
            trained(SMALL).square().mean().backward()
        gradients = [p.grad for p in trained.parameters()]
        assert meter.activation_peak(gradients).nbytes <= plan_of(trained).peak.activation_nbytes


class Switch(nn.Module):
    """A layer and a dropout, and an attribute that the forward reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.last = nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4)
        self.gain, self.act = 1.0, torch.tanh

    def scaled(self, y: Tensor) -> Tensor:
        return y * self.gain

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        y = self.scaled(self.last(self.drop(self.act(self.first(x)))))
        y = y + torch.ones(4, device=y.device)  # of the default dtype
        return (y if scale is None else y * scale).square().sum()


class Encoder(nn.Module):
    """A layer that encodes without it: what it returns then takes no gradient, unless it is ``marked``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: Tensor, encode: bool = False, marked: bool = False) -> Tensor:
        return self.layer(x).sum() if not encode else x.square().requires_grad_(marked).tanh()


CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a frozen parameter": ("parameter 'first.weight'", lambda m: m.first.requires_grad_(False)),
    "the mode of a submodule": ("submodule 'drop' changed .*: training is now False", lambda m: m.drop.eval()),
    "an attribute": ("attribute 'gain' changed", lambda m: setattr(m, "gain", 3.0)),
    "the type of the parameters": ("argument 0 is float64", lambda m: m.double()),
    "a replaced submodule": ("a submodule was added, removed or replaced", lambda m: setattr(m, "drop", nn.Identity())),
    "the class of a submodule": (
        "submodule 'drop' changed .*: its class is now",
        lambda m: setattr(m.drop, "__class__", nn.AlphaDropout),
    ),
    "a removed parameter": ("parameter 'last.bias' is gone", lambda m: setattr(m.last, "bias", None)),
    "determinism": ("", lambda _: torch.use_deterministic_algorithms(True)),
    "the default dtype": ("", lambda _: torch.set_default_dtype(torch.float64)),
}


@pytest.fixture(autouse=True)
def _settings() -> Any:
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)


class TestPlannedAgain:
    @again_is_expected
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_changed_module_trains_to_the_bits_of_the_original(self, change: str) -> None:
        trained, eager, (_, do) = planned(Switch(), "min"), Switch(), CHANGES[change]
        trained(SMALL).backward(), eager(SMALL).backward()
        do(trained), do(eager)
        args = (SMALL.to(eager.first.weight.dtype),)
        assert train(trained, args) == train(eager, args)

    @pytest.mark.parametrize("change", [change for change, (message, _) in CHANGES.items() if message])
    def test_the_warning_names_what_changed(self, change: str) -> None:
        trained, (message, do) = planned(Switch(), "min"), CHANGES[change]
        do(trained)
        with pytest.warns(UserWarning, match=f"planned Switch again in .* s, as {message}"):
            trained(SMALL.to(trained.first.weight.dtype))

    @pytest.mark.parametrize("change", [change for change, (message, _) in CHANGES.items() if message])
    def test_on_request_it_raises(self, change: str) -> None:
        trained, (message, do) = planned(Switch(), "min", on_change="raise"), CHANGES[change]
        do(trained)
        with pytest.raises(InputMismatchError, match=message):
            trained(SMALL.to(trained.first.weight.dtype))

    @again_is_expected
    def test_a_number_that_changes_often_is_told_its_place(self) -> None:
        trained = planned(Switch(), "min")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for gain in (2.0, 3.0, 4.0):
                trained.gain = gain
                trained(SMALL)
        assert ["belongs in a tensor" in str(each.message) for each in told] == [False, False, True]

    def test_layers_that_are_thawed_one_by_one_are_told_nothing_of_numbers(self) -> None:
        trained = planned(network().requires_grad_(False).append(nn.Linear(4, 4)), "min")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for layer in (10, 8, 6, 4):
                trained[layer].requires_grad_(True)
                trained(SMALL)
        assert ["belongs in a tensor" in str(each.message) for each in told] == [False] * 4

    @again_is_expected
    def test_another_structure_of_arguments_trains_to_the_bits_of_the_original(self) -> None:
        trained, scale = planned(Switch(), "min"), torch.rand(64, 1)
        assert train(trained, (SMALL, scale)) == train(Switch(), (SMALL, scale))

    def test_a_state_that_comes_back_has_its_plan(self) -> None:
        trained = planned(Switch(), "min")
        trained.first.requires_grad_(False)
        with pytest.warns(UserWarning, match="again"):
            trained(SMALL)
        trained.first.requires_grad_(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trained(SMALL)
        assert len(plans_of(trained)) == 2

    def test_a_step_in_which_nothing_takes_a_gradient_runs_as_the_original(self) -> None:
        trained, eager = planned(Switch(), "min").requires_grad_(False), Switch().requires_grad_(False)
        found = []
        for module in (trained, eager):
            torch.manual_seed(1)
            found.append(bits(module(SMALL)))
        assert (found[0], len(plans_of(trained))) == (found[1], 1)

    @pytest.mark.filterwarnings("ignore:no output of Encoder needs a gradient:UserWarning")
    def test_a_step_none_of_whose_outputs_takes_a_gradient_runs_as_the_original(self) -> None:
        module = Encoder()
        assert bits(planned(module, "min")(SMALL, encode=True)) == bits(module(SMALL, encode=True))

    def test_a_step_whose_gradients_reach_no_parameter_is_refused(self) -> None:
        with pytest.raises(UnsupportedModuleError, match="no parameter or argument gets one"):
            planned(Encoder(), "min")(SMALL, encode=True, marked=True)

    @again_is_expected
    def test_two_batch_sizes_in_turn_train_to_the_bits_of_the_original(self, trained: nn.Module) -> None:
        batches = (SMALL, LARGE) * 3
        assert alternating(trained, batches) == alternating(network(), batches)

    def test_a_shape_is_planned_once(self, both: nn.Module) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            both(SMALL), both(LARGE)
        assert len(plans_of(both)) == 2

    def test_each_plan_keeps_its_budget(self, both: nn.Module) -> None:
        made = {SMALL: plans_of(both)[0], LARGE: plans_of(both)[1]}
        assert all(activation_peak(both, batch) <= plan.budget.nbytes for batch, plan in made.items())

    def test_a_share_is_a_share_of_what_the_new_arguments_need(self, both: nn.Module) -> None:
        small, large = plans_of(both)
        assert large.budget.nbytes > 2 * small.budget.nbytes

    @cpu_only("bytes of a card hold its context too: tests/cuda/test_cap.py")
    def test_a_budget_that_the_new_arguments_cannot_meet_is_refused(self) -> None:
        trained = planned(network(), 400_000)
        with pytest.raises(InfeasibleBudgetError, match="proven infeasible"):
            trained(LARGE.repeat(9, 1))

    def test_the_warning_names_the_arguments(self, trained: nn.Module) -> None:
        message = rf"argument 0 is float32\[192, 16\] .*on {LARGE.device}.*activation peak is .*; others like it are"
        with pytest.warns(UserWarning, match=message):
            trained(LARGE)

    def test_an_input_that_takes_a_gradient_is_another_step(self, trained: nn.Module) -> None:
        batch = SMALL.clone().requires_grad_()
        with pytest.warns(UserWarning, match="takes a gradient"):
            trained(batch).sum().backward()
        assert batch.grad is not None

    @again_is_expected
    def test_planning_in_the_middle_of_a_step_leaves_its_gradients_alone(self, trained: nn.Module) -> None:
        found = []
        for module in (trained, network()):
            torch.manual_seed(1)
            module(SMALL).sum().backward()
            module(LARGE).sum().backward()
            found.append([bits(p.grad) for p in module.parameters() if p.grad is not None])
        assert found[0] == found[1]

    def test_a_copy_has_the_plans_and_trains_its_own_parameters(self, both: nn.Module) -> None:
        other = copy.deepcopy(both)
        other(LARGE).sum().backward()
        assert (plans_of(other), next(both.parameters()).grad) == (plans_of(both), None)

    def test_the_arguments_of_a_step_that_another_plan_ran_are_let_go(self, both: nn.Module) -> None:
        batch = SMALL.clone()
        alive = weakref.ref(batch)
        both(batch)
        del batch
        assert alive() is None


class TestReviewed:
    """What a script may do between binding and a step."""

    @again_is_expected
    def test_a_copy_that_is_changed_before_its_first_step_trains_to_the_bits_of_the_original(self) -> None:
        copied, eager = copy.deepcopy(planned(Switch(), "min")), Switch()
        copied.act = eager.act = torch.sin
        assert train(copied, (SMALL,)) == train(eager, (SMALL,))

    @again_is_expected
    def test_a_method_that_is_replaced_in_the_class_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        trained = planned(Switch(), "min")
        monkeypatch.setattr(Switch, "scaled", lambda self, y: 5 * y)
        assert train(trained, (SMALL,)) == train(Switch(), (SMALL,))

    def test_a_replaced_submodule_is_let_go(self) -> None:
        trained = planned(Switch(), "min")
        old = weakref.ref(trained.first)
        trained.first = nn.Linear(16, 16)
        with pytest.warns(UserWarning, match="a submodule was added, removed or replaced"):
            trained(SMALL)
        gc.collect()
        assert old() is None

    def test_a_plan_is_kept_where_warnings_are_errors(self) -> None:
        trained = planned(network())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning):
                trained(LARGE)
            trained(LARGE)
        assert len(plans_of(trained)) == 2

    def test_a_functional_call_may_be_the_first_step(self) -> None:
        trained = unplanned(Switch(), "min")
        tensors = {name: value.detach().clone().requires_grad_() for name, value in trained.named_parameters()}
        torch.manual_seed(1)
        found = torch.func.functional_call(trained, tensors, (SMALL,))
        eager = Switch()
        torch.manual_seed(1)
        assert bits(found) == bits(eager(SMALL))

    def test_the_arguments_of_a_step_that_raises_are_let_go(self) -> None:
        trained, batch = planned(network(), on_change="raise"), LARGE.clone()
        alive = weakref.ref(batch)
        with contextlib.suppress(InputMismatchError):
            trained(batch)
        del batch
        assert alive() is None


class TestLimit:
    def test_a_step_that_needs_more_plans_than_are_kept_is_refused(self) -> None:
        trained = planned(network(), max_plans=1)
        with pytest.raises(
            AdapterError, match=r"has 1 plan and this step needs another: argument 0 .* takes a gradient"
        ):
            trained(SMALL.clone().requires_grad_())

    @again_is_expected
    def test_its_remedy_works(self) -> None:
        trained = planned(network(), max_plans=2)
        trained(SMALL.clone().requires_grad_())
        assert len(plans_of(trained)) == 2

    @again_is_expected
    def test_plans_that_no_longer_hold_for_the_module_make_room(self) -> None:
        trained = planned(network(), "min", max_plans=2)
        for layer in list(trained)[:6]:
            layer.requires_grad_(False)
            trained(SMALL)
        assert len(plans_of(trained)) == 2


class Wrapped(Switch):
    """Its instances have a forward of their own, which scales what the class's forward returns."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = types.MethodType(lambda self, x: 2 * Switch.forward(self, x), self)  # type: ignore[method-assign]


def tripled(module: Any) -> Any:
    """The module with a forward that wraps the one it has, as Accelerate does it."""
    inner = module.forward.__func__
    module.forward = types.MethodType(lambda self, x: 3 * inner(self, x), module)
    return module


class TestForwardOfTheInstance:
    def test_one_that_it_has_is_planned(self) -> None:
        assert train(planned(Wrapped(), "min"), (SMALL,)) == train(Wrapped(), (SMALL,))

    def test_evaluation_runs_it(self) -> None:
        assert bits(planned(Wrapped(), "min").eval()(SMALL)) == bits(Wrapped().eval()(SMALL))

    def test_the_original_has_it(self) -> None:
        assert bits(original(planned(Wrapped(), "min")).eval()(SMALL)) == bits(Wrapped().eval()(SMALL))

    def test_the_guards_watch_what_it_reads(self) -> None:
        trained = planned(Wrapped(), "min", on_change="raise")
        trained.gain = 3.0
        with pytest.raises(InputMismatchError, match="attribute 'gain' changed"):
            trained(SMALL)

    @pytest.mark.parametrize("kind", [Switch, Wrapped])
    def test_a_wrapper_around_the_bound_one_runs_around_the_plan(self, kind: type[Switch]) -> None:
        assert train(tripled(planned(kind(), "min")), (SMALL,)) == train(tripled(kind()), (SMALL,))

    @pytest.mark.parametrize("kind", [Switch, Wrapped])
    def test_it_may_be_wrapped_before_it_is_planned(self, kind: type[Switch]) -> None:
        trained = unplanned(kind(), "min")
        assert train(tripled(trained), (SMALL,)) == train(tripled(kind()), (SMALL,))

    @again_is_expected
    def test_a_wrapped_one_is_planned_again_without_the_wrapper(self) -> None:
        trained = tripled(planned(Switch(), "min"))
        trained.gain = 3.0
        eager = tripled(Switch())
        eager.gain = 3.0
        assert train(trained, (SMALL,)) == train(eager, (SMALL,))

    def test_one_that_is_a_partial_call_is_planned(self) -> None:
        found = []
        for bind in (lambda module: planned(module, "min"), lambda module: module):
            module = Switch()
            module.forward = functools.partial(lambda self, x: 2 * Switch.forward(self, x), module)  # type: ignore
            found.append(alternating(bind(module), (SMALL,) * 2))
        assert found[0] == found[1]

    def test_one_that_is_no_call_of_the_module_is_refused_at_once(self) -> None:
        module = Switch()
        module.forward = lambda x: x  # type: ignore[method-assign, assignment]
        with pytest.raises(AdapterError, match="was replaced by a function that is no method of it"):
            unplanned(module)

    def test_a_copy_has_the_wrapper(self) -> None:
        assert train(copy.deepcopy(tripled(planned(Switch(), "min"))), (SMALL,)) == train(tripled(Switch()), (SMALL,))


class TestArguments:
    def test_other_arguments_raise_on_request(self) -> None:
        with pytest.raises(InputMismatchError, match=r"argument 0 is float32\[192, 16\]"):
            planned(network(), on_change="raise")(LARGE)

    def test_without_arguments_on_request_the_first_step_is_planned_and_others_raise(self) -> None:
        trained = unplanned(network(), on_change="raise")
        trained(SMALL)
        with pytest.raises(InputMismatchError, match=r"argument 0 is float32\[192, 16\]"):
            trained(LARGE)

    def test_another_value_of_on_change_is_refused(self) -> None:
        with pytest.raises(AdapterError, match="on_change is 'both'"):
            planned(network(), on_change="both")

    def test_what_is_no_module_is_refused_at_once(self) -> None:
        with pytest.raises(AdapterError, match=r"is no torch\.nn\.Module"):
            within_budget(lambda x: x, budget="60%")  # type: ignore[arg-type]


class InOrder(nn.Module):
    """It applies what it is given by name in that order: it multiplies by ``factor`` and adds all else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, *, last: Tensor, **named: Tensor) -> Tensor:
        x = self.layer(x)
        for name, tensor in named.items():
            x = x * tensor if name == "factor" else x + tensor
        return x - last


@again_is_expected
@cpu_only("values are compared")
@pytest.mark.parametrize("order", [("term", "factor", "last"), ("last", "factor", "term"), ("factor", "last", "term")])
def test_arguments_by_name_are_taken_in_the_order_of_the_call(order: tuple[str, ...]) -> None:
    module, given = InOrder(), {name: torch.randn(64, 16) for name in ("factor", "term", "last")}
    bound = within_budget(copy.deepcopy(module), (SMALL,), kwargs=given, budget="100%", strategy="keep-all")
    bound(SMALL, **given)
    again = {name: given[name] for name in order}
    assert bits(bound(SMALL, **again)) == bits(module(SMALL, **again))


def test_names_that_the_forward_spells_out_may_come_in_any_order() -> None:
    given = {name: torch.randn(64, 16) for name in ("factor", "term", "last")}
    bound = within_budget(InOrder(), (SMALL,), kwargs=given, budget="100%", strategy="keep-all")
    bound(SMALL, **{name: given[name] for name in ("last", "factor", "term")})
    assert len(plans_of(bound)) == 1


@cpu_only("several threads")
def test_threads_whose_steps_take_turns_find_their_plans() -> None:
    bound = planned(network())
    batches = (SMALL, LARGE)
    for batch in batches:
        bound(batch)

    def run(first: int) -> None:
        for number in range(60):
            bound(batches[(first + number) % 2])

    faults = faults_of(functools.partial(run, 0), functools.partial(run, 1))
    assert (faults, len(plans_of(bound))) == ([], 2)
