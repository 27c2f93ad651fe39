"""The model of the caching allocator does what PyTorch's own does."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from ogc_plan.adapters.pytorch.memory.caching_allocator import MIB, AllocatorSettings, CachingAllocator, from_snapshot

from models.cuda.settings import STANDIN

PLACED = pytest.mark.skipif(not STANDIN, reason="a driver places segments where it likes")
EXPANDABLE = pytest.mark.parametrize(
    "expandable", [pytest.param(False, marks=PLACED), True], ids=["segments", "expandable"]
)


@pytest.fixture(autouse=True)
def default_segments() -> Iterator[None]:
    """Each test ends with the default kind of segments."""
    yield
    torch.cuda.empty_cache()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


def sizes(seed: int) -> Iterator[int]:
    """Sizes on both sides of every limit of the allocator."""
    draw = random.Random(seed)
    limits = (1, 512, 4096, MIB - 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB, 45 * MIB)
    while True:
        yield max(1, draw.choice((draw.choice(limits) + draw.randint(-700, 700), draw.randint(1, 60 * MIB))))


def real() -> tuple[int, int, int]:
    found = torch.cuda.memory_stats()
    return tuple(int(found[f"{what}_bytes.all.current"]) for what in ("requested", "allocated", "reserved"))


def compared(seed: int, *, expandable: bool, steps: int = 400, start: bool = False) -> list[tuple[object, object]]:
    """What the model and the allocator report after each of some random requests and releases, where they differ."""
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{expandable}")
    draw, size = random.Random(seed), sizes(seed + 1)
    before = [torch.empty(next(size), dtype=torch.uint8, device="cuda") for _ in range(12 if start else 0)]
    del before[::2]
    model = from_snapshot(torch.cuda.memory_snapshot(), AllocatorSettings(expandable))
    held: list[tuple[torch.Tensor, object]] = []
    different = []
    for _ in range(steps):
        if draw.random() < 0.03:
            torch.cuda.empty_cache()
            model.empty_cache()
        elif held and draw.random() < 0.48:
            tensor, block = held.pop(draw.randrange(len(held)))
            del tensor
            model.release(block)
        else:
            nbytes = next(size)
            held.append((torch.empty(nbytes, dtype=torch.uint8, device="cuda"), model.allocate(nbytes)))
        now = (model.now.requested_nbytes, model.now.allocated_nbytes, model.now.reserved_nbytes)
        if now != real():
            different.append((now, real()))
    return different


@EXPANDABLE
@pytest.mark.parametrize("seed", range(6))
def test_random_requests_take_what_they_take_of_the_allocator(seed: int, expandable: bool) -> None:
    assert compared(seed, expandable=expandable) == []


@EXPANDABLE
@pytest.mark.parametrize("seed", range(6))
def test_it_goes_on_from_a_snapshot(seed: int, expandable: bool) -> None:
    assert compared(100 + seed, expandable=expandable, start=True) == []


def test_a_range_for_small_requests_lies_apart_from_the_large_one_of_a_snapshot() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch.cuda.empty_cache()
    held = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    model = from_snapshot(torch.cuda.memory_snapshot(), AllocatorSettings(expandable=True))
    made = [model.allocate(nbytes) for nbytes in (512, held.nbytes)]
    assert len({block.address for block in made if block is not None}) == 2


@pytest.mark.parametrize("descending", [False, True])
def test_new_segments_lie_where_the_settings_say(descending: bool) -> None:
    allocator = CachingAllocator(AllocatorSettings(descending=descending))
    first, second = (block.address for _ in range(2) if (block := allocator.allocate(20 * MIB)) is not None)
    assert (second < first) == descending
