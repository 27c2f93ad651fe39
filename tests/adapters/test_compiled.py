"""A bound module inside a compiled one runs by its plan."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError
from torch import Tensor, nn
from torch._dynamo.utils import counters

from models.meters.storage_meter import StorageMeter
from tests.modules.torch_training import bits, planned

X = torch.randn(64, 6)


class Inner(nn.Module):
    """The bound module: norm, dropout and enough layers to recompute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.dropout(torch.relu(self.norm(self.first(x))), 0.2, True)
        return torch.tanh(self.last(torch.sin(torch.exp(-h))))


class Outer(nn.Module):
    """The compiled module: layers before and after the bound one."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(6, 6), Inner(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.sin(self.inner(torch.relu(self.before(x)))))


@pytest.fixture
def plain() -> Outer:
    torch.manual_seed(0)
    return Outer()


@pytest.fixture
def partly(plain: Outer) -> Outer:
    """The outer module with the inner one bound."""
    made = copy.deepcopy(plain)
    made.inner = planned(made.inner, (torch.randn(64, 6, requires_grad=True),), "min", "greedy")
    return made


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def trained(module: Any, owner: nn.Module, steps: int = 2) -> list[bytes]:
    torch.manual_seed(3)
    for _ in range(steps):
        module(X).square().sum().backward()
    return [bits(v) for v in owner.state_dict().values()] + [bits(p.grad) for p in owner.parameters()]


def peak_nbytes(module: Any, owner: nn.Module) -> int:
    """The activation peak of one step under the meter."""
    x = X.clone().requires_grad_()
    with StorageMeter([*owner.parameters(), *owner.buffers(), x]) as meter:
        module(x).square().sum().backward()
    return meter.activation_peak([p.grad for p in owner.parameters() if p.grad is not None]).nbytes


class TestCompiled:
    def test_a_compiled_module_trains_to_the_bits_of_eager(self, plain: Outer, partly: Outer) -> None:
        assert trained(torch.compile(partly, backend="aot_eager"), partly) == trained(plain, plain)

    def test_compiling_a_bound_module_itself_changes_no_bit(self, plain: Outer) -> None:
        bound = planned(copy.deepcopy(plain), (X,), "min", "greedy")
        assert trained(torch.compile(bound, backend="aot_eager"), bound) == trained(plain, plain)

    def test_the_compiler_stops_at_nothing_but_the_planned_step(self, partly: Outer) -> None:
        torch.compile(partly, backend="aot_eager")(X).sum().backward()
        assert ["a planned step runs as it was planned" in reason for reason in counters["graph_break"]] == [True]

    def test_the_planned_step_holds_as_much_as_it_does_uncompiled(self, partly: Outer) -> None:
        bound = partly.inner
        compiled = torch.compile(bound, backend="aot_eager")
        alone = peak_nbytes(bound, bound)
        bound.zero_grad()
        assert peak_nbytes(compiled, bound) == alone

    def test_without_graph_breaks_it_is_refused_by_name(self, partly: Outer) -> None:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="a planned step runs as it was planned"):
            torch.compile(partly, backend="aot_eager", fullgraph=True)(X)

    def test_evaluation_compiles_without_graph_breaks(self, partly: Outer) -> None:
        torch.compile(partly.eval(), backend="aot_eager", fullgraph=True)(X)
        assert not counters["graph_break"]


class TestTypes:
    def test_another_type_of_parameters_is_refused(self, partly: Outer) -> None:
        partly.double()
        with pytest.raises(InputMismatchError, match="float64"):
            partly(X.double())

    def test_the_type_it_was_bound_for_can_be_had_back(self, plain: Outer, partly: Outer) -> None:
        partly.double().float()
        assert trained(partly, partly) == trained(plain, plain)
