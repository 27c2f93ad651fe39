"""Generator states are put back for re-runs without memory that a plan does not count."""

from __future__ import annotations

import torch
from ogc_plan.adapters.pytorch.memory.rng_state import restore_state, save_state, state_nbytes, swap_state

from models.meters import allocator_meter

CPU = torch.device("cpu")


def test_putting_a_state_back_takes_no_memory() -> None:
    state = save_state(CPU)
    events = allocator_meter.record(lambda: restore_state(state, CPU))
    assert allocator_meter.peaks(events).total_nbytes == 0


def test_exchanging_it_takes_one_state() -> None:
    state, kept = save_state(CPU), []
    events = allocator_meter.record(lambda: kept.append(swap_state(state, CPU)))
    assert allocator_meter.peaks(events).total_nbytes == state_nbytes(CPU)


def test_a_restored_state_repeats_the_random_numbers() -> None:
    state = save_state(CPU)
    first = torch.rand(3)
    restore_state(state, CPU)
    assert torch.equal(torch.rand(3), first)
