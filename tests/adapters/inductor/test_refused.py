"""What no byte budget can be kept for under torch.compile is refused by name; the rest holds it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.inductor import budget, planned_graphs
from ogc_plan.adapters.inductor.partitioner import Planned
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.planner.errors import AdapterError, BudgetSyntaxError, UsageError
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from tests.modules.devices import cpu_only

pytestmark = cpu_only("compiled steps of a card are refused")
X = torch.randn(64, 16)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Network(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(torch.tanh(self.expand(x)))


def network() -> nn.Module:
    torch.manual_seed(0)
    return Network()


def step(
    size: str = "1MB", x: Tensor = X, wrap: Callable[[nn.Module], Any] = lambda it: it, **options: Any
) -> tuple[Planned, ...]:
    """What one compiled step planned; other options are Inductor's, but for ``dynamic``."""
    dynamic = options.pop("dynamic", False)
    all_options = {**budget(size), **options}
    torch.compile(wrap(network()), options=all_options, dynamic=dynamic)(x).square().mean().backward()
    return planned_graphs(all_options)


@pytest.mark.parametrize("option", ["triton.cudagraphs", "cpp_wrapper", "max_autotune"])
def test_an_option_of_inductor_that_changes_memory_is_refused(option: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=f"{option} is not supported with a byte budget"):
        step(**{option: True})


def test_a_size_that_is_not_fixed_is_refused() -> None:
    x = torch.randn(64, 16)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(BackendCompilerFailed, match="not fixed, and its bytes are unknown"):
        step(x=x, dynamic=None)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("processes")
def test_the_buckets_of_data_parallel_are_refused() -> None:
    with pytest.raises(BackendCompilerFailed, match="optimize_ddp = False"):
        step(wrap=nn.parallel.DistributedDataParallel)


@pytest.mark.usefixtures("processes")
def test_data_parallel_as_one_graph_is_planned_once() -> None:
    with torch._dynamo.config.patch(optimize_ddp=False):
        assert len(step(wrap=nn.parallel.DistributedDataParallel)) == 1


class Breaking(Network):
    """The graph breaks between the layers."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.expand(x)
        torch._dynamo.graph_break()
        return self.contract(torch.tanh(x))


class BreakingLoop(nn.ModuleList):
    """The graph breaks in a loop, whose function is not compiled; those that it calls are, one by one."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
            torch._dynamo.graph_break()
        return x


@pytest.mark.parametrize("breaking", [Breaking, lambda: BreakingLoop([network(), network()])], ids=["once", "loop"])
def test_several_graphs_of_a_step_are_refused(breaking: Callable[[], nn.Module]) -> None:
    with pytest.raises(BackendCompilerFailed, match="the step has several graphs"):
        step(wrap=lambda _: breaking())


class Branching(Network):
    """One of two functions, by a value."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.expand(x)
        return torch.cond(x.sum() > 0, lambda it: it.sin(), lambda it: it.cos(), (x,))


class Masking(Network):
    """The mean of those elements that are positive."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x.sin()[x > 0].square().mean()


class Sparse(nn.Module):
    """An embedding with a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 16, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding((x > 0).long())


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Branching, "has cond, and which branch"),
        (Masking, "depends on values, and its bytes are unknown; compute on all elements"),
        (Sparse, "sparse tensor, whose bytes depend on values; make it dense"),
    ],
)
def test_bytes_that_depend_on_values_are_refused_by_name(module: Callable[[], nn.Module], reason: str) -> None:
    captured = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with captured, pytest.raises(BackendCompilerFailed, match=reason):
        step(wrap=lambda _: module())


def test_what_nobody_foresaw_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("buf7")

    monkeypatch.setattr("ogc_plan.adapters.inductor.partitioner.Search", fails)
    with pytest.raises(BackendCompilerFailed, match="not be planned: KeyError: 'buf7'; use within_budget without"):
        step()


def test_a_forward_wrapped_in_autocast_is_one_graph() -> None:
    def wrapped(module: nn.Module) -> nn.Module:
        module.forward = torch.autocast("cpu", torch.bfloat16)(module.forward)
        return module

    assert len(step(wrap=wrapped)) == 1


def test_one_layer_holds_its_smallest_peak() -> None:
    assert len(step("min", wrap=lambda _: nn.Sequential(nn.Linear(16, 8), nn.Tanh()))) == 1


class Unread(Network):
    """A layer and a buffer that the forward leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(200, 200)
        self.register_buffer("table", torch.zeros(50_000))


def test_what_a_module_holds_and_does_not_read_is_within_its_budget() -> None:
    torch.manual_seed(0)
    with pytest.raises(BackendCompilerFailed, match="smallest peak found"):
        within_budget(Unread(), budget="360KB", compile=True)(X).square().mean().backward()


def test_an_argument_counts_with_its_whole_storage() -> None:
    (planned,) = step("8MB", x=torch.randn(64, 100, 16)[:, 3])
    assert planned.peak_nbytes > 64 * 100 * 16 * 4


def test_a_budget_says_what_to_save_in_its_place() -> None:
    with pytest.raises(TypeError, match="save the module's state_dict"):
        pickle.dumps(budget("1MB"))


def test_a_machine_without_a_compiler_gets_one_line() -> None:
    none = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with none, pytest.raises(AdapterError, match="no C\\+\\+ compiler"):
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
