"""An optimizer's states and temporaries, foretold from the optimizer and measured in real steps."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, predict, within_budget
from ogc_plan.adapters.pytorch.binding.optimizer_memory import memory_of
from ogc_plan.planner.errors import AdapterError, UsageError
from torch import Tensor, nn, optim

from models.meters import allocator_meter
from models.meters.step_meters import by_allocator
from tests.modules.devices import cpu_only
from tests.modules.torch_modules import WithLoss

pytestmark = cpu_only("an optimizer's steps are measured by the record of the CPU's allocator")
Make = Callable[[Iterable[Tensor]], optim.Optimizer]
SCALARS_NBYTES = 64
"""A step makes numbers for the parameters that it counts in."""


class Factored(optim.Optimizer):
    """A class that torch does not know: a vector for each matrix, a copy of other parameters, and one set at first."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.detach().clone()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for p in (p for group in self.param_groups for p in group["params"]):
                state = self.state[p]
                if "rows" not in state:
                    state["rows"] = torch.zeros(p.shape[:1], device=p.device, dtype=torch.float64)
                state["rows"] += p.grad.flatten(1).square().sum(1) if p.ndim > 1 else p.grad.square()
                p -= p.grad


class Asking(optim.SGD):
    """A class that asks for the value of a tensor before it makes a state."""

    __module__ = "theirs"

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p]["scale"] = torch.zeros(round(float(p.sum().item())))


class Called:
    """Counts its calls; like much that hooks hold it cannot be copied."""

    def __init__(self) -> None:
        self.times, self.lock = 0, threading.Lock()

    def __call__(self, *_: Any) -> None:
        self.times += 1


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p),
    "sgd, decayed": lambda p: optim.SGD(p, weight_decay=0.1, foreach=True),
    "momentum": lambda p: optim.SGD(p, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: optim.Adam(p),
    "adamw": lambda p: optim.AdamW(p),
    "adamw, foreach": lambda p: optim.AdamW(p, foreach=True),
    "adamw, fused": lambda p: optim.AdamW(p, fused=True),
    "adamw, a tensor as rate": lambda p: optim.AdamW(p, lr=torch.tensor(0.1)),
    "amsgrad": lambda p: optim.AdamW(p, amsgrad=True, foreach=True),
    "adadelta": lambda p: optim.Adadelta(p, foreach=True),
    "adagrad": lambda p: optim.Adagrad(p),
    "adamax": lambda p: optim.Adamax(p),
    "nadam": lambda p: optim.NAdam(p, weight_decay=0.1, foreach=True),
    "radam": lambda p: optim.RAdam(p),
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": lambda p: optim.Rprop(p, foreach=True),
    "asgd": lambda p: optim.ASGD(p),
    "adafactor": lambda p: optim.Adafactor(p),
    "unknown": Factored,
}
MEASURED = [name for name in OPTIMIZERS if name not in ("asgd", "adafactor")]
"""Those whose temporaries are foretold."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 160), nn.GELU(), nn.Linear(160, 32, bias=False))


def with_gradients(module: nn.Module) -> nn.Module:
    for p in module.parameters():
        p.grad = torch.randn_like(p)
    return module


def states_nbytes(optimizer: optim.Optimizer) -> int:
    return sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_that_the_first_step_makes_are_foretold(name: str) -> None:
    module = with_gradients(network())
    optimizer = OPTIMIZERS[name](module.parameters())
    foretold = memory_of(optimizer, module).states_nbytes
    optimizer.step()
    assert foretold == states_nbytes(optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_that_exist_count_as_they_are(name: str) -> None:
    module = with_gradients(network())
    optimizer = OPTIMIZERS[name](module.parameters())
    optimizer.step()
    for state in optimizer.state.values():
        state |= {key: value.half() for key, value in state.items() if isinstance(value, Tensor) and value.ndim}
    assert memory_of(optimizer, module).states_nbytes == states_nbytes(optimizer)


@pytest.mark.parametrize("name", MEASURED)
def test_temporaries_are_what_the_allocator_records(name: str) -> None:
    module = with_gradients(network())
    optimizer = OPTIMIZERS[name](module.parameters())
    foretold = memory_of(optimizer, module).temporaries_nbytes
    optimizer.step()
    taken = allocator_meter.peaks(allocator_meter.record(optimizer.step)).total_nbytes
    assert foretold is not None
    assert 0 <= taken - foretold <= SCALARS_NBYTES


def test_asking_leaves_optimizer_parameters_and_hooks_alone() -> None:
    module, called = with_gradients(network()), Called()
    optimizer = optim.AdamW(module.parameters())
    optimizer.register_step_pre_hook(called)
    optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step = called  # type: ignore[method-assign]
    before = [p.clone() for p in module.parameters()]
    memory_of(optimizer, module)
    same = all(torch.equal(p, old) for p, old in zip(module.parameters(), before, strict=True))
    assert (same, dict(optimizer.state), called.times) == (True, {}, 0)


def test_parameters_of_other_modules_and_frozen_ones_do_not_count() -> None:
    module, other = network(), network()
    module[2].requires_grad_(False)  # type: ignore[union-attr]
    optimizer = optim.SGD([*module.parameters(), *other.parameters()], momentum=0.9)
    assert memory_of(optimizer, module).states_nbytes == (64 + 1) * 160 * 4


@pytest.mark.parametrize("name", ["momentum", "adamw, foreach", "amsgrad", "unknown"])
def test_a_training_step_with_its_optimizer_has_the_predicted_peak(name: str) -> None:
    module, args = WithLoss(network()), (torch.randn(512, 64),)
    optimizer = OPTIMIZERS[name](module.parameters())
    trained = within_budget(module, args, budget="2MB", optimizer=optimizer)
    trained(*args).backward()
    optimizer.step()
    optimizer.zero_grad()
    peak = by_allocator(lambda: trained(*args).backward(), trained, args)
    assert peak.total_nbytes + states_nbytes(optimizer) == predict(trained).total_nbytes


class TestRefused:
    @pytest.mark.parametrize(
        ("optimizer", "says"),
        [
            (optim.LBFGS, "the states of LBFGS are not known: .*closure"),
            (Asking, "the states of Asking are not known: .*meta"),
            (lambda _: optim.SGD(network().parameters()), "SGD holds none of the trained parameters of Sequential"),
            (lambda _: 3, "optimizer 3 is no torch.optim.Optimizer and no name"),
            (lambda _: "lion", "optimizer 'lion' is unknown"),
        ],
    )
    def test_what_cannot_be_counted_is_refused_by_name(self, optimizer: Any, says: str) -> None:
        module = network()
        with pytest.raises((AdapterError, UsageError), match=says):
            within_budget(module, budget="2MB", optimizer=optimizer(module.parameters()))

    def test_the_remedy_works(self) -> None:
        trained = within_budget(network(), (torch.randn(8, 64),), budget="700MB", optimizer="LBFGS:340MB")
        assert plan_of(trained).graph.stationary.optimizer_nbytes == 340_000_000


def warned(budget: str, *batches: int, **options: Any) -> list[str]:
    """What binding a network and its steps warn of, but for planning again."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trained = within_budget(network(), budget=budget, **options)
        for batch in batches or (64,):
            trained(torch.randn(batch, 64))
    return [str(each.message) for each in told if "planned" not in str(each.message)]


class TestWarning:
    def test_a_budget_in_bytes_without_an_optimizer_warns_once_with_the_figure_for_adamw(self) -> None:
        (message,) = warned("2MB", 64, 32)
        assert "no room for the states of an optimizer, which for AdamW take 124.16 KB" in message

    @pytest.mark.parametrize(
        ("budget", "options"),
        [
            ("2MB", {"optimizer": "none"}),
            ("2MB", {"optimizer": "adamw"}),
            ("2MB", {"scope": "activations"}),
            ("90%", {}),
        ],
    )
    def test_it_is_silent_where_states_are_counted_or_no_part_of_the_budget(
        self, budget: str, options: dict[str, Any]
    ) -> None:
        assert warned(budget, **options) == []

    @pytest.mark.parametrize("kind", ["foreach", "fused"])
    def test_an_optimizer_whose_step_goes_beyond_the_budget_is_named(self, kind: str) -> None:
        module, x = network(), torch.randn(8, 64)
        optimizer = optim.AdamW(module.parameters(), **{kind: True})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            within_budget(module, (x,), budget="300KB", optimizer=optimizer)
        says = "AdamW.step() holds 312.46 KB at its peak, 62.08 KB of it temporaries: more than the budget of 300KB"
        assert [str(each.message).startswith(says) for each in told] == [True] * (kind == "foreach")
