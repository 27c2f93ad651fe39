"""Bound modules inside DistributedDataParallel and fully_shard, on two processes, against the plain ones."""

from __future__ import annotations

import contextlib
import copy
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ogc_plan.adapters.pytorch import bind, plan_of, within_budget
from ogc_plan.adapters.pytorch.step import gradient_release
from ogc_plan.planner.errors import AdapterError
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.modules.devices import cpu_only, random_state
from tests.modules.torch_training import bits, planned

RANKS, BATCH = 2, 4
State = list[bytes | None]


class Shared(nn.Module):
    """A layer applied twice, a weight with two names, a norm, dropout, and a second output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 32), nn.BatchNorm1d(32)
        self.twice, self.last, self.aside = nn.Linear(32, 32), nn.Linear(32, 6), nn.Linear(32, 3)
        self.alias = self.twice.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.dropout(self.twice(torch.relu(self.norm(self.first(x)))), 0.3, True)
        h = torch.relu(self.twice(h))
        return torch.tanh(self.last(h)), self.aside(h)


class Blocks(nn.Module):
    """Equal blocks in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Tanh()) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for block in self.blocks:
            h = h + block(h)
        return h


def batch_of(rank: int) -> Tensor:
    return torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(rank))


def steps(module: nn.Module, rank: int, accumulated: int, unused: bool) -> State:
    """Three steps of AdamW; all bits they leave. The first step never accumulates: static graphs need that."""
    optimizer = torch.optim.AdamW(module.parameters())
    torch.manual_seed(7 + rank)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(count := accumulated if step else 1):
            with module.no_sync() if part < count - 1 else contextlib.nullcontext():
                one, other = module(batch_of(rank + part))
                loss = one.square().sum() + (0 if unused else other.sum())
                loss.backward()
        optimizer.step()
    own = [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters())]
    return [None if value is None else bits(value) for value in own] + [bits(random_state())]


def data_parallel(rank: int, *, accumulated: int = 1, unused: bool = False, **options: Any) -> bool:
    """Whether a planned module trains as the plain one, both wrapped the same way."""
    torch.manual_seed(0)
    plain = Shared()
    trained = planned(copy.deepcopy(plain), (batch_of(rank),), "min", "greedy")
    found = [steps(DistributedDataParallel(m, **options), rank, accumulated, unused) for m in (plain, trained)]
    return found[0] == found[1]


def sharded(rank: int) -> bool:
    """Whether blocks that are bound to one plan train as the plain ones, each sharded, and the whole."""
    torch.manual_seed(0)
    plain = Blocks()
    trained = copy.deepcopy(plain)
    example = (torch.randn(BATCH, 16, requires_grad=True),)
    plan = plan_of(planned(trained.blocks[0], example, "min", "greedy"))
    for place, block in enumerate(trained.blocks):
        trained.blocks[place] = bind(block, plan, example)
    for module in (plain, trained):
        for block in module.blocks:
            fully_shard(block)
        fully_shard(module)
    return trained_sharded(plain, rank) == trained_sharded(trained, rank)


def without_example(module: nn.Module) -> nn.Module:
    """Bound without arguments: planned in its first step, wherever that runs."""
    return within_budget(module, budget="min", strategy="greedy", device="cpu")


def data_parallel_planned_inside(rank: int, *, bind_first: bool) -> bool:
    """Whether a module that is planned inside DistributedDataParallel trains as the plain one."""
    torch.manual_seed(0)
    plain = Shared()
    trained: Any = copy.deepcopy(plain)
    if bind_first:
        trained = DistributedDataParallel(without_example(trained))
    else:
        trained = DistributedDataParallel(trained)
        trained.module = without_example(trained.module)
    found = [steps(module, rank, 2, False) for module in (DistributedDataParallel(plain), trained)]
    return found[0] == found[1] and bool(plan_of(trained.module).recomputed)


def sharded_planned_inside(rank: int, *, bind_first: bool) -> bool:
    """Whether blocks that are planned inside fully_shard train as the plain ones, and the whole."""
    torch.manual_seed(0)
    plain = Blocks()
    trained: Any = copy.deepcopy(plain)
    for place in range(len(trained.blocks)):
        if bind_first:
            trained.blocks[place] = without_example(trained.blocks[place])
        fully_shard(trained.blocks[place])
        if not bind_first:
            trained.blocks[place] = without_example(trained.blocks[place])
    fully_shard(trained)
    for block in plain.blocks:
        fully_shard(block)
    fully_shard(plain)
    return trained_sharded(plain, rank) == trained_sharded(trained, rank) and bool(
        plan_of(trained.blocks[0]).recomputed
    )


def sharded_as_a_whole(rank: int, *, bind_first: bool) -> bool:
    """Whether a module that is planned inside fully_shard trains as the plain one, if the whole is one group."""
    torch.manual_seed(0)
    plain = Blocks()
    trained: Any = copy.deepcopy(plain)
    trained = fully_shard(without_example(trained)) if bind_first else without_example(fully_shard(trained))
    return trained_sharded(fully_shard(plain), rank) == trained_sharded(trained, rank)


def refused(rank: int, message: str, **arguments: Any) -> bool:
    """Whether a sharded module with sharded blocks, or arguments, is refused with this message."""
    module = Blocks()
    if not arguments:
        fully_shard(module.blocks[1])
    fully_shard(module)
    with pytest.raises(AdapterError, match=message):
        within_budget(module, budget="min", **arguments)(batch_of(rank))
    return True


def trained_sharded(module: nn.Module, rank: int) -> State:
    """Three steps of AdamW; all bits that they leave of this rank's shards."""
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        module(batch_of(rank)).square().sum().backward()
        optimizer.step()
    return [bits(value.to_local()) for p in module.parameters() for value in (p, p.grad)]


def in_parts(case: Callable[[int], bool]) -> Callable[[int], bool]:
    """The case with backwards in as many parts as can be."""

    def cut(rank: int) -> bool:
        with mock.patch.multiple(gradient_release, LEAST_NBYTES=0, PARTS=2**20):
            return case(rank)

    return cut


class Noting(TorchDispatchMode):
    """Writes down the calls that run inside."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def reducing_early(rank: int) -> bool:
    """Whether the first bucket is reduced while the backward still multiplies matrices."""
    wrapped = DistributedDataParallel(planned(Blocks(), (batch_of(rank),)), bucket_cap_mb=0.001)
    calls: list[str] = []

    def reduce(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        calls.append("bucket")
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped.register_comm_hook(None, lambda _, bucket: reduce(bucket))
    for _ in range(2):  # all is one bucket in the first step
        loss = wrapped(batch_of(rank)).sum()
        calls.clear()
        with Noting(calls):
            loss.backward()
    return "aten.mm.default" in calls[calls.index("bucket") :]


CASES: dict[str, Callable[[int], bool]] = {
    "data parallel, accumulating": lambda rank: data_parallel(rank, accumulated=3),
    "finding unused parameters": lambda rank: data_parallel(rank, find_unused_parameters=True),
    "gradients as views of buckets": lambda rank: data_parallel(rank, gradient_as_bucket_view=True),
    "small buckets": lambda rank: data_parallel(rank, bucket_cap_mb=0.001),
    "in parts, accumulating": in_parts(lambda rank: data_parallel(rank, accumulated=3)),
    "in parts, an output unused": in_parts(lambda rank: data_parallel(rank, find_unused_parameters=True, unused=True)),
    "in parts, static graph": in_parts(lambda rank: data_parallel(rank, static_graph=True, accumulated=3)),
    "in parts, reduced as they come": in_parts(reducing_early),
    "in parts, sharded blocks": in_parts(sharded),
    "sharded blocks of one plan": sharded,
    "planned in the first step, bound before wrapping": lambda rank: data_parallel_planned_inside(
        rank, bind_first=True
    ),
    "planned in the first step, bound after wrapping": lambda rank: data_parallel_planned_inside(
        rank, bind_first=False
    ),
    "sharded, planned in the first step": lambda rank: sharded_planned_inside(rank, bind_first=True),
    "sharded, bound after sharding": lambda rank: sharded_planned_inside(rank, bind_first=False),
    "sharded as a whole": lambda rank: sharded_as_a_whole(rank, bind_first=True),
    "sharded as a whole, bound after sharding": lambda rank: sharded_as_a_whole(rank, bind_first=False),
    "a whole with sharded blocks is refused": lambda rank: refused(rank, "submodule 'blocks.1' is sharded on its own"),
    "arguments for shards are refused": lambda rank: refused(rank, "bind it without arguments", args=(batch_of(rank),)),
}


def work(rank: int, folder: str) -> None:
    """One process: every case, each noted as it ends."""
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS, timeout=limit)
    for name, case in CASES.items():
        try:
            message = str(case(rank))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            import traceback

            traceback.print_exc()
        Path(folder, f"{name} {rank}").write_text(message)
        if message != "True":
            break  # the other rank may be waiting in another call
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("ranks")
    with contextlib.suppress(mp.ProcessRaisedException, mp.ProcessExitedException):
        mp.spawn(work, (str(folder),), nprocs=RANKS)
    files = {name: [folder / f"{name} {rank}" for rank in range(RANKS)] for name in CASES}
    return {name: [f.read_text() if f.exists() else "not reached" for f in found] for name, found in files.items()}


@cpu_only("the processes train on the CPU")
@pytest.mark.parametrize("name", CASES)
def test_every_rank_does_as_the_plain_module(results: dict[str, list[str]], name: str) -> None:
    assert results[name] == ["True"] * RANKS
