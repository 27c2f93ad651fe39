"""What no byte budget can be kept for under torch.compile is refused by name; the rest holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ogc_plan.adapters.inductor import budget, planned_graphs
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.planner.errors import AdapterError, BudgetSyntaxError, UsageError
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

X = torch.randn(64, 16)
STAND_IN = SimpleNamespace(bucket_bytes_cap=1_000_000)
"""A DistributedDataParallel that is active, as far as torch.compile asks it."""


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))


def step(size: str = "1MB", x: Tensor = X, wrap: Callable[[nn.Module], Any] = lambda it: it, **options: Any) -> None:
    """One compiled step; other options are Inductor's, but for ``dynamic``."""
    dynamic = options.pop("dynamic", False)
    compiled = torch.compile(wrap(network()), options={**budget(size), **options}, dynamic=dynamic)
    compiled(x).square().mean().backward()


@pytest.mark.parametrize("option", ["triton.cudagraphs", "cpp_wrapper", "max_autotune"])
def test_an_option_of_inductor_that_changes_memory_is_refused(option: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=f"{option} is not supported with a byte budget"):
        step(**{option: True})


def test_a_size_that_is_not_fixed_is_refused() -> None:
    x = torch.randn(64, 16)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(BackendCompilerFailed, match="not fixed, and its bytes are unknown"):
        step(x=x, dynamic=None)


def test_the_buckets_of_data_parallel_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.nn.parallel.DistributedDataParallel, "_get_active_ddp_module", classmethod(lambda _: STAND_IN)
    )
    with pytest.raises(BackendCompilerFailed, match="optimize_ddp = False"):
        step()


def test_a_machine_without_a_compiler_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    with pytest.raises(AdapterError, match="no C\\+\\+ compiler"):
        budget("1MB")


@pytest.mark.parametrize("size", ["8 parrots", None])
def test_a_budget_that_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(BudgetSyntaxError):
        budget(size)


def test_options_of_another_maker_have_no_plans() -> None:
    with pytest.raises(AdapterError, match="not made by budget"):
        planned_graphs({})


@pytest.mark.parametrize("option", [{"scope": "total"}, {"headroom": "5%"}, {"strategy": "greedy"}, {"args": (X,)}])
def test_options_of_uncompiled_plans_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(option))} has no meaning with compile=True"):
        within_budget(network(), budget="1MB", compile=True, **option)


def test_a_compiled_module_trains_within_its_budget() -> None:
    module = within_budget(network(), budget="1MB", compile=True)
    module(X).square().mean().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
