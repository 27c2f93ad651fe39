"""Planned steps share a pool of the allocator that has one large segment."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, predict, within_budget
from ogc_plan.adapters.pytorch.binding.bound_module import runner_of
from ogc_plan.adapters.pytorch.execution.codegen import EventKind
from ogc_plan.adapters.pytorch.execution.request_trace import Request, RequestTrace
from ogc_plan.adapters.pytorch.execution.step_pool import StepPool
from ogc_plan.adapters.pytorch.execution.step_space import StepSpace
from ogc_plan.adapters.pytorch.memory.caching_allocator import AllocatorSettings
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.meters.step_meters import clear_gradients
from models.networks.gpt2 import GPT2Config
from models.training.cases import gpt_case, unet_case
from tests.modules.threads import faults_of

MIB = 1 << 20
CASE = gpt_case(4, GPT2Config(vocabulary=2048, context=128, layers=4, heads=4, width=256, dropout=0.1))


@pytest.fixture(autouse=True)
def whole_card() -> Iterator[None]:
    """Each test ends with no limit on the process, and the default segments."""
    yield
    expandable(False, "large_segment_size_mb:20")  # which keeps its value where it is not named
    torch.cuda.set_per_process_memory_fraction(1.0)


def pool() -> StepPool:
    return StepPool.of(torch.device("cuda", 0))


def limited(nbytes: int) -> None:
    torch.cuda.set_per_process_memory_fraction(nbytes / torch.cuda.get_device_properties(0).total_memory)


def expandable(wanted: bool, *others: str) -> str:
    """Set the kind of segments and other settings of the allocator; all that is set, as text."""
    settings = ",".join([f"expandable_segments:{wanted}", *others])
    torch._C._accelerator_setAllocatorSettings(settings)
    return settings


def bound(budget: str | int = "60%", **options: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
    module, arguments = CASE.build().cuda(), CASE.arguments(0, "cuda")
    planned = within_budget(module, arguments, budget=budget, **options)
    gc.collect()
    return planned, arguments


def step(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    """A forward and backward that leaves nothing."""
    module(*arguments).backward()
    clear_gradients(module, arguments)


def pool_of(tensor: Tensor) -> tuple[int, int]:
    """The id of the allocator's pool that a tensor lies in."""
    below = [segment for segment in torch.cuda.memory_snapshot() if segment["address"] <= tensor.data_ptr()]
    found: tuple[int, int] = max(below, key=lambda segment: int(segment["address"]))["segment_pool_id"]
    return found


def segments_of(pool_id: tuple[int, int]) -> list[dict[str, Any]]:
    return [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == pool_id]


def has_gradients(module: nn.Module) -> bool:
    return all(parameter.grad is not None for parameter in module.parameters())


def test_steps_take_nothing_more_of_the_card_than_the_first() -> None:
    module, arguments = bound()
    module(*arguments).backward()
    first = torch.cuda.memory_reserved()
    for _ in range(4):
        clear_gradients(module, arguments)
        module(*arguments).backward()
    assert torch.cuda.memory_reserved() == first


def test_tensors_of_the_step_lie_in_the_pool_and_others_do_not() -> None:
    module, arguments = bound()
    loss = module(*arguments)
    loss.backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    assert {pool_of(tensor) for tensor in gradients if tensor is not None} == {pool().id}
    assert {pool_of(tensor) for tensor in (loss, *arguments, torch.empty(4 * MIB, device="cuda"))} == {(0, 0)}


class Outputs(nn.Module):
    """Returns a product, a view of what a product reads, and, detached, what a batch norm makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))
        self.norm = nn.BatchNorm1d(256)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = (layer(x).relu() for layer in self.layers[:2])
        normed = self.norm(first + second)
        return self.layers[2](normed), second[:, ::2], normed.detach()


def test_outputs_that_the_caller_keeps_leave_the_pool_idle() -> None:
    module, x = Outputs().cuda(), torch.randn(4096, 256, device="cuda")
    planned = within_budget(module, (x,), budget="100%")
    outputs = planned(x)
    (outputs[0].sum() + outputs[1].sum()).backward()
    clear_gradients(planned, (x,))
    assert {pool_of(output) for output in outputs} == {(0, 0)}
    assert (pool().reserved_nbytes > 0, pool().release()) == (True, True)


def test_a_loop_that_keeps_the_outputs_until_the_next_is_within_its_budget() -> None:
    module, x = Outputs().cuda(), torch.randn(16384, 256, device="cuda")
    planned = within_budget(module, (x,), budget="100%")
    gc.collect()
    found = predict(planned).card
    assert found is not None
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        outputs = planned(x)
        ((2 * outputs[0]).sum() + (2 * outputs[1]).sum()).backward()
        clear_gradients(planned, (x,))
    assert found.reserved_nbytes < torch.cuda.max_memory_reserved() <= found.most_reserved_nbytes


def test_the_segment_outlives_an_emptied_cache() -> None:
    module, arguments = bound()
    step(module, arguments)
    reserved = pool().reserved_nbytes
    torch.cuda.empty_cache()
    assert (reserved > 0, pool().reserved_nbytes) == (True, reserved)


def test_the_memory_goes_with_the_last_module() -> None:
    module, arguments = bound()
    step(module, arguments)
    del module
    gc.collect()
    assert pool().reserved_nbytes == 0


def test_others_get_its_memory_where_they_would_run_out() -> None:
    module, arguments = bound()
    step(module, arguments)
    limited(torch.cuda.memory_reserved() + 2 * MIB)
    other = torch.empty(pool().reserved_nbytes // 2, dtype=torch.uint8, device="cuda")
    assert (module is not None, other.is_cuda) == (True, True)


def test_a_larger_plan_replaces_the_segment() -> None:
    smaller, arguments = bound("60%")
    step(smaller, arguments)
    before = pool().reserved_nbytes
    larger = within_budget(smaller, arguments, budget="100%", strategy="keep-all")
    step(larger, arguments)
    after = pool().reserved_nbytes
    step(smaller, arguments)
    card = predict(larger).card
    assert card is not None
    assert (after > before, pool().reserved_nbytes, torch.cuda.memory_reserved()) == (
        True, after, card.reserved_nbytes,
    )  # fmt: skip


def test_a_larger_step_beside_gradients_of_another_is_predicted() -> None:
    smaller, arguments = bound("60%")
    smaller(*arguments).backward()
    other = CASE.build().cuda()
    larger = within_budget(other, arguments, budget="100%", strategy="keep-all")
    gc.collect()
    card = predict(larger).card
    torch.cuda.reset_peak_memory_stats()
    larger(*arguments).backward()
    assert card is not None
    assert torch.cuda.max_memory_reserved() == card.reserved_nbytes


def test_gradients_live_on_without_the_module_that_made_them() -> None:
    module, arguments = bound()
    module(*arguments).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    del module
    gc.collect()
    torch.cuda.empty_cache()
    assert all(gradient is not None and gradient.add_(1).is_cuda for gradient in gradients)


def test_two_forwards_before_their_backwards_run() -> None:
    module, arguments = bound()
    losses = [module(*arguments) for _ in range(2)]
    for loss in losses:
        loss.backward()
    assert has_gradients(module)


def test_training_with_an_optimizer_stays_within_a_card_of_the_budget() -> None:
    least = bound("min", optimizer="adamw")[0]
    card = predict(least).card
    assert card is not None
    budget = card.step_nbytes + plan_of(least).graph.stationary.optimizer_nbytes + 64 * MIB
    del least
    gc.collect()
    module, arguments = bound(budget, optimizer="adamw")
    optimizer = torch.optim.AdamW(module.parameters())
    limited(budget)
    for _ in range(4):
        module(*arguments).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.cuda.max_memory_reserved() <= budget


def test_a_segment_is_taken_where_others_have_cached_the_memory() -> None:
    module, arguments = bound()
    rest = torch.cuda.memory_reserved()
    cached = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
    del cached
    limited(rest + 400 * MIB)
    step(module, arguments)
    assert pool().reserved_nbytes > 0


def test_a_step_that_runs_out_of_memory_leaves_the_pool_usable() -> None:
    module, arguments = bound()
    limited(torch.cuda.memory_reserved() + 4 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        module(*arguments).backward()
    limited(torch.cuda.get_device_properties(0).total_memory)
    gc.collect()
    step(module, arguments)
    other = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert pool_of(other) == (0, 0)


def test_a_step_that_ran_out_of_memory_leaves_no_pieces_beside_the_segment_of_the_next() -> None:
    module, arguments, _ = bound_with_fillers()
    card = predict(module).card
    limited(torch.cuda.memory_reserved() + 80 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        module(*arguments).backward()
    clear_gradients(module, arguments)
    gc.collect()
    pieces = pool().reserved_nbytes
    limited(torch.cuda.get_device_properties(0).total_memory)
    for _ in range(3):
        step(module, arguments)
    assert card is not None
    assert (pieces > 20 * MIB, torch.cuda.memory_reserved()) == (True, card.reserved_nbytes)


def test_a_step_is_captured_as_a_graph() -> None:
    module, arguments = bound()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        module(*arguments).backward()
    torch.cuda.synchronize()
    clear_gradients(module, arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(*arguments).backward()
    graph.replay()
    assert (has_gradients(module), pool().reserved_nbytes) == (True, 0)


def peaks_of_two_steps(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The peaks of what is requested and reserved on the current stream: predicted, and by PyTorch's statistics."""
    card = predict(module).card
    assert card is not None
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step(module, arguments)
    found = torch.cuda.memory_stats()
    return (
        (card.requested_nbytes, card.reserved_nbytes),
        (int(found["requested_bytes.all.peak"]), int(found["reserved_bytes.all.peak"])),
    )


def test_steps_on_another_stream_are_predicted_and_use_no_pool() -> None:
    module, arguments = bound()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        (predicted, _), (found, _) = peaks_of_two_steps(module, arguments)
    assert (pool().reserved_nbytes, found) == (0, predicted)


def test_steps_and_planning_work_within_a_pool_of_the_user() -> None:
    own = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(own):
        module, arguments = bound()
        step(module, arguments)
        larger = within_budget(module, arguments, budget="100%", strategy="keep-all")
        step(larger, arguments)
        del module, larger, arguments
        gc.collect()
    assert pool().reserved_nbytes == 0


def bound_with_fillers(budget: int | str = 200_000_000) -> tuple[nn.Module, tuple[Tensor, ...], int]:
    """A U-Net whose step has fillers under a budget in bytes, and how many it has."""
    case = unet_case(2, 256, (32, 64, 128, 256))
    arguments = case.arguments(0, "cuda")
    module = within_budget(
        case.build().cuda(), arguments, budget=budget, strategy="greedy", device="a100", optimizer="none"
    )
    gc.collect()
    return module, arguments, fillers_of(module)


def fillers_of(module: nn.Module, *, backward: bool = True) -> int:
    program = runner_of(module).executor.program
    events = (*program.forward_events, *(program.backward_events if backward else ()))
    return sum(len(event.about) for event in events if event.kind is EventKind.FILL)


def allocations(run: Callable[[], object]) -> int:
    """How many blocks are taken."""
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    run()
    return int(torch.cuda.memory_stats()["allocation.all.allocated"]) - before


def grown_pool() -> StepPool:
    """A pool with a free expandable segment that has grown twice."""
    own = StepPool(torch.device("cuda", 0))
    expandable(True)
    with own.entered():
        pieces = [torch.empty(nbytes, dtype=torch.uint8, device="cuda") for nbytes in (100 * MIB, 20 * MIB)]
    pieces.clear()
    return own


def test_a_pool_with_expandable_segments_gives_its_memory_back_and_serves_on() -> None:
    own = grown_pool()
    released = own.release(), own.reserved_nbytes
    with own.entered():
        again = torch.empty(110 * MIB, dtype=torch.uint8, device="cuda")
    assert (released, pool_of(again)) == ((True, 0), own.id)


def test_others_run_out_of_memory_as_ever_beside_a_pool_that_was_renewed() -> None:
    own = grown_pool()
    own.release()
    limited(torch.cuda.memory_reserved() + 100 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")


def test_a_segment_is_of_one_piece_whatever_the_setting() -> None:
    settings = expandable(True, "large_segment_size_mb:40")
    module, arguments = bound()
    step(module, arguments)
    other = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    large = {segment["is_expandable"] for segment in segments_of(pool().id) if segment["segment_type"] == "large"}
    assert (large, torch._C._accelerator_getAllocatorSettings(), other.is_cuda) == (
        {False}, settings, True,
    )  # fmt: skip


def test_a_budget_on_the_activations_brings_no_fillers() -> None:
    module, _, fillers = bound_with_fillers("40%")
    assert (plan_of(module).budget.scope, fillers) == ("activations", 0)


def test_a_step_with_fillers_takes_what_is_predicted() -> None:
    module, arguments, fillers = bound_with_fillers()
    predicted, found = peaks_of_two_steps(module, arguments)
    assert (fillers > 0, found) == (True, predicted)


def test_on_another_stream_a_step_is_predicted_without_its_fillers() -> None:
    module, arguments, fillers = bound_with_fillers()
    torch.cuda.empty_cache()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        predicted, found = peaks_of_two_steps(module, arguments)
    assert (fillers > 0, found) == (True, predicted)


def test_fillers_are_taken_in_the_pool_alone() -> None:
    module, arguments, fillers = bound_with_fillers()
    step(module, arguments)
    inside = allocations(lambda: step(module, arguments))
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        step(module, arguments)
        outside = allocations(lambda: step(module, arguments))
    assert (fillers > 0, inside - outside) == (True, fillers)


def test_a_step_beside_gradients_of_another_takes_no_fillers() -> None:
    module, arguments, fillers = bound_with_fillers()
    step(module, arguments)
    alone = allocations(lambda: module(*arguments).backward())
    beside = allocations(lambda: module(*arguments).backward())
    assert (fillers > 0, alone - beside) == (True, fillers)


def test_a_step_begun_beside_a_pending_one_takes_no_fillers_nor_does_that_from_then_on() -> None:
    module, arguments, fillers = bound_with_fillers()
    step(module, arguments)
    alone = allocations(lambda: step(module, arguments))

    def both() -> None:
        for loss in [module(*arguments) for _ in range(2)]:
            loss.backward()

    beside = allocations(both)
    assert (fillers > 0, 2 * alone - beside) == (True, 2 * fillers - fillers_of(module, backward=False))


def test_a_filler_that_cannot_be_had_is_left_out() -> None:
    module, arguments, _ = bound_with_fillers()
    step(module, arguments)
    with pool().entered():
        found = pool().fill(1 << 20, 1 << 50, 1 << 20)
    assert [storage.nbytes() for storage in found] == [1 << 20]


class Calls(TorchDispatchMode):  # type: ignore[misc]
    """Notes the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made.append(func)
        return func(*args, **(kwargs or {}))


def test_fillers_run_no_operator_which_deterministic_algorithms_would_fill_them_with() -> None:
    module, arguments, _ = bound_with_fillers()
    step(module, arguments)
    with pool().entered(), Calls() as calls:
        found = pool().fill(1 << 20)
    assert (len(found), calls.made) == (1, [])


UNET = (256, (32, 64, 128, 256))


@pytest.mark.parametrize("free", [0, 30_000_000], ids=["whole", "with headroom"])
@pytest.mark.parametrize("kind", [False, True], ids=["plain", "expandable"])
@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "held to the next"])
def test_plans_for_several_shapes_stay_within_their_budget_in_turn(kept: bool, kind: bool, free: int) -> None:
    expandable(kind)
    module = within_budget(
        unet_case(2, *UNET).build().cuda(), budget=290_000_000 + free, headroom=f"{free}B", optimizer="sgd"
    )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for batch in (2, 1, 2, 1, 1, 2):
        arguments = unet_case(batch, *UNET).arguments(0, "cuda")
        if not kept:
            step(module, arguments)
            continue
        loss = module(*(each.detach() for each in arguments))  # an input's gradient would lie in the pool
        loss.backward()
        clear_gradients(module, ())
    room = 2 * MIB  # one segment, where the arguments of two batches are there at a time
    assert (len(runner_of(module).plans), torch.cuda.max_memory_reserved() <= 290_000_000 + room) == (2, True)


def test_steps_that_accumulate_leave_the_pool_idle() -> None:
    module, arguments = bound(grad_accumulation=True)
    for _ in range(2):
        loss = module(*arguments)
        loss.backward()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert {pool_of(tensor) for tensor in gradients} == {(0, 0)}
    assert (loss.is_cuda, pool().reserved_nbytes > 0, pool().release()) == (True, True, True)


def test_so_they_do_where_gradients_are_dropped_after_the_forward() -> None:
    module, arguments = bound(grad_accumulation=True)
    for _ in range(2):
        loss = module(*arguments)
        clear_gradients(module, arguments)
        loss.backward()
    assert (loss.is_cuda, has_gradients(module), pool().release()) == (True, True, True)


def test_accumulating_steps_of_several_shapes_stay_within_their_budget() -> None:
    limit = 320_000_000
    module = within_budget(unet_case(2, *UNET).build().cuda(), budget=limit, optimizer="sgd", grad_accumulation=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for batches in ((2, 1), (1, 2), (1, 1, 2), (2, 2, 1)):
        for batch in batches:
            loss = module(*(each.detach() for each in unet_case(batch, *UNET).arguments(0, "cuda")))
            loss.backward()
        clear_gradients(module, ())
    arguments = 2 * MIB  # one segment, where those of two batches are there at a time
    assert (len(runner_of(module).plans), torch.cuda.max_memory_reserved() <= limit + arguments) == (2, True)


def held(pool: StepPool, nbytes: int) -> Tensor:
    """Memory of the pool, as a gradient that outlives a step."""
    with pool.entered():
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def space_of(nbytes: int, *, small: int = 0, most_nbytes: int | None = None) -> StepSpace:
    """The space of a step with one large request, and some small ones of half a MiB."""
    smalls = [Request(key, MIB // 2) for key in range(1, small + 1)]
    requests = (Request(0, nbytes), *smalls, *(Request(key, 0) for key in range(small + 1)))
    trace = RequestTrace(requests, (), (0,) * len(requests))
    return StepSpace(trace, nbytes, nbytes, AllocatorSettings(), most_nbytes=most_nbytes)


@pytest.mark.parametrize("cycle", [2, 3, 4, 8])
def test_the_first_of_some_steps_that_accumulate_gets_its_segment(cycle: int) -> None:
    own, space = StepPool(torch.device("cuda", 0)), space_of(40 * MIB)
    gradients = [held(own, 2 * MIB)]
    for number in range(200):
        if number % cycle == cycle - 1:
            gradients.clear()
        own.require(space)
        gradients = gradients or [held(own, 2 * MIB)]
    assert [segment["total_size"] for segment in segments_of(own.id)] == [40 * MIB]


@pytest.mark.parametrize(("most", "empties"), [(40, True), (44, False)], ids=["beyond", "within"])
def test_a_step_empties_a_pool_in_which_it_would_exceed_its_budget(most: int, empties: bool) -> None:
    own, space = StepPool(torch.device("cuda", 0)), space_of(20 * MIB, small=8, most_nbytes=most * MIB)
    own.require(space_of(40 * MIB))
    foreseen = own.takes(space)
    own.require(space)
    assert (foreseen, own.reserved_nbytes) == (empties, (20 if empties else 40) * MIB)


def test_steps_that_take_turns_are_replayed_once_for_each_state_of_the_pool() -> None:
    own = StepPool(torch.device("cuda", 0))
    spaces = [space_of(nbytes * MIB, most_nbytes=60 * MIB) for nbytes in (40, 20, 30)]
    for _ in range(5):
        for space in spaces:
            own.require(space)
    assert [len(space.replayed) for space in spaces] == [0, 1, 1]


def test_a_step_is_back_within_its_budget_after_gradients_were_left_once() -> None:
    module, arguments, _ = bound_with_fillers()
    for _ in range(2):
        step(module, arguments)
    usual = pool().reserved_nbytes
    for _ in range(3):
        module(*arguments).backward()
    beside = pool().reserved_nbytes
    for _ in range(10):
        step(module, arguments)
    assert (beside > usual, pool().reserved_nbytes) == (True, usual)


def test_steps_that_exceed_their_budget_beside_pending_ones_seldom_empty_the_pool() -> None:
    module, arguments, _ = bound_with_fillers()
    step(module, arguments)
    taken = []
    for _ in range(40):
        before = torch.cuda.memory_stats()["num_device_alloc"]
        (module(*arguments) + module(*arguments)).backward()
        clear_gradients(module, arguments)
        taken.append(torch.cuda.memory_stats()["num_device_alloc"] > before)
    assert sum(taken) < 10


def test_threads_step_at_the_same_time() -> None:
    given = [bound() for _ in range(2)]

    def train(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        for _ in range(20):
            step(module, arguments)

    assert faults_of(*(partial(train, *each) for each in given)) == []


def test_numbers_of_pools_are_not_released() -> None:
    kept = [torch.cuda.MemPool() for _ in range(300)]  # from 257 on numbers are objects of their own
    own = StepPool(torch.device("cuda", 0))
    number = own.id[1]
    before = sys.getrefcount(number)
    assert (own.reserved_nbytes, len(kept)) == (0, 300)
    own.release()
    assert (number > 256, sys.getrefcount(number)) == (True, before)
