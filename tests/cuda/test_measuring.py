"""Measuring calls on the card: bytes as they were asked for, one call at a time, nothing left behind."""

from __future__ import annotations

import gc
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import plan_of, profile, within_budget
from ogc_plan.adapters.pytorch.execution.attachment import InputMismatchError
from ogc_plan.adapters.pytorch.memory.call_time import call_time
from ogc_plan.planner.errors import AdapterError
from torch import Tensor, nn

from models.meters.storage_meter import StorageMeter
from tests.cuda_standin import log

MIB = 1 << 20


class Scores(nn.Module):
    """A small trunk and scores over many words: the largest call takes nearly all of the step's memory."""

    def __init__(self, words: int = 50257) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 64)
        self.trunk = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, words, bias=False)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.trunk(self.embedding(x))), target)


def words(count: int = 1024) -> tuple[Tensor, Tensor]:
    return tuple(torch.zeros(count, dtype=torch.long, device="cuda") for _ in range(2))  # type: ignore[return-value]


def kept(module: nn.Module, *args: Tensor) -> nn.Module:
    """The module bound to a plan that recomputes nothing."""
    return within_budget(module, args, budget="100%", strategy="keep-all")


def test_no_workspace_is_charged_for_the_rounding_of_a_cached_block() -> None:
    larger = torch.empty(12 * MIB - 100_000, dtype=torch.uint8, device="cuda")
    del larger
    images = torch.randn(2816, 1024, device="cuda")  # 11 MiB: the cached block serves, and is not split
    plan = plan_of(kept(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()).cuda(), images))
    assert [c.forward_workspace_nbytes for op, c in zip(plan.graph.ops, plan.costs, strict=True)] == [0, 0]


def test_binding_takes_no_more_of_the_card_than_the_step() -> None:
    module, args = Scores().cuda(), words()
    module(*args).backward()
    module.zero_grad()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    bound = kept(module, *args)
    binding = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    bound(*args).backward()
    assert binding <= torch.cuda.max_memory_allocated()


def test_binding_leaves_nothing_reserved() -> None:
    module, args = Scores().cuda(), words()
    module(*args).backward()
    module.zero_grad()
    torch.cuda.empty_cache()
    gc.collect()
    before = torch.cuda.memory_reserved()
    bound = kept(module, *args)
    gc.collect()
    torch.cuda.empty_cache()
    assert (bound is not None, torch.cuda.memory_reserved()) == (True, before)


def test_a_call_that_does_not_fit_is_an_error_that_names_it() -> None:
    module, args = Scores().cuda(), words(8192)
    torch.cuda.set_per_process_memory_fraction(2e9 / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(AdapterError, match=r"cuda:0 ran out of memory while aten\.\S+ ran alone"):
            kept(module, *args)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_every_op_has_a_time() -> None:
    plan = plan_of(kept(Scores().cuda(), *words()))
    assert all(cost.forward_ns > 0 for cost in plan.costs)


def test_a_running_history_is_an_error() -> None:
    torch.cuda.memory._record_memory_history(max_entries=10)
    try:
        with pytest.raises(AdapterError, match="history is being recorded"):
            kept(nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def convolved() -> tuple[nn.Module, Tensor]:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).cuda()
    images = torch.randn(4, 3, 16, 16, device="cuda")
    return kept(module, images), images


def test_a_step_without_cudnn_does_not_run_by_a_plan_made_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module, images = nn.Conv2d(3, 8, 3).cuda(), torch.randn(4, 3, 16, 16, device="cuda")
    bound = within_budget(module, (images,), budget="100%", strategy="keep-all", on_change="raise")
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    with pytest.raises(InputMismatchError, match="cuDNN is False"):
        bound(images)


def test_another_way_of_choosing_algorithms_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bound, images = convolved()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            bound(images).sum().backward()
    assert sum("cudnn.benchmark=False, this step runs with True" in str(warning.message) for warning in told) == 1


@pytest.mark.usefixtures("launches")
def test_a_planned_step_never_waits_for_the_card() -> None:
    module, args = Scores().cuda(), words()
    bound = kept(module, *args)
    bound(*args).backward()
    before = log.wait_count()
    bound(*args).backward()
    assert log.wait_count() == before


def test_a_planned_step_is_captured_as_a_graph() -> None:
    module, args = Scores().cuda(), words()
    bound = kept(module, *args)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            bound(*args).backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound(*args).backward()
    graph.replay()
    torch.cuda.synchronize()
    assert module.head.weight.grad is not None


def launched(found: log.Launches, name: str) -> int:
    """How many kernels with ``name`` in their name were launched."""
    return sum(count for kernel, count in found.names().items() if name in kernel)


class Counted:
    """A call with one kernel and one result."""

    def __init__(self, nbytes: int) -> None:
        self.x = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        self.waits: list[int] = []

    def __call__(self) -> Tensor:
        self.waits.append(log.wait_count())
        return self.x.neg()


@pytest.mark.usefixtures("launches")
def test_a_short_call_is_timed_over_many_runs_without_a_wait_between() -> None:
    call = Counted(1024)
    call()
    call.waits.clear()
    with log.launches() as found:
        call_time(call, torch.device("cuda:0"))
    alone, *together = call.waits
    assert (len(together) >= 2, len(set(together)), together[0] - alone) == (True, 1, 1)
    assert (launched(found, "neg"), launched(found, "spin_kernel")) == (len(call.waits), 1)


@pytest.mark.usefixtures("launches")
def test_timing_holds_one_result_at_a_time() -> None:
    call = Counted(8 * MIB)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call_time(call, torch.device("cuda:0"))
    assert torch.cuda.max_memory_allocated() == before + 8 * MIB


@pytest.mark.usefixtures("launches")
def test_a_long_call_is_timed_over_few_runs() -> None:
    def call() -> None:
        time.sleep(0.005)
        runs.append(1)

    runs: list[int] = []
    call_time(call, torch.device("cuda:0"))
    assert len(runs) == 3


@pytest.mark.usefixtures("launches")
def test_a_profiled_step_is_launched_while_the_card_is_busy() -> None:
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(100))).cuda()
    x = torch.ones(4, 8, device="cuda", requires_grad=True)
    with log.launches() as found:
        measured = profile(module, (x,), rounds=2)
    assert min(min(op.forward_ns, op.backward_ns) for op in measured.ops if "addmm" in op.name) > 0
    assert launched(found, "spin_kernel") >= 6  # in each of three rounds, before every 64 steps


def test_the_storage_meter_of_a_card_counts_no_host_memory() -> None:
    x = torch.zeros(64, device="cuda")
    with StorageMeter([x]) as meter:
        kept_on_host, made = torch.empty(1000), x * 2
    assert meter.peak().nbytes == made.nbytes < kept_on_host.nbytes
