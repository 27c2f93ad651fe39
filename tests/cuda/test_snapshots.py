"""What PyTorch's allocator records is what its model gives, also from the middle of a run on."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator

import pytest
import torch

from models.cuda.snapshots.reading import read
from models.cuda.snapshots.replay import replays

MIB = 1 << 20
SIZES = (1, 700, 5000, MIB - 512, MIB + 1, 2 * MIB + 9, 9 * MIB, 10 * MIB, 19 * MIB, 33 * MIB)


@pytest.fixture(autouse=True)
def no_history() -> Iterator[None]:
    """Each test ends without a record, and with the default kind of segments."""
    yield
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.empty_cache()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


def recorded(seed: int, streams: int, most: int) -> bytes:
    """The snapshot of random requests and releases, of which the last ``most`` events are kept."""
    draw = random.Random(seed)
    running = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(streams - 1))]
    held: list[torch.Tensor] = []
    for step in range(500):
        if step == 100:
            torch.cuda.memory._record_memory_history(max_entries=most, stacks="python")
        if draw.random() < 0.02:
            torch.cuda.empty_cache()
        elif held and draw.random() < 0.48:
            del held[draw.randrange(len(held))]
        else:
            with torch.cuda.stream(draw.choice(running)):
                nbytes = draw.choice(SIZES) + draw.randint(0, MIB // 2)
                held.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))
    return pickle.dumps(torch.cuda.memory._snapshot())


@pytest.mark.parametrize("most", [10_000, 300], ids=["all", "cut off"])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_recorded_run_is_replayed(seed: int, streams: int, most: int) -> None:
    (made,) = replays(read(recorded(seed, streams, most)))
    assert (made.why_not, made.first, made.exact) == (None, None, True)
    assert made.events == 300 if most == 300 else made.events > 500
    assert made.streams == streams
    assert made.held
