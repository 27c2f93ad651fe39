"""The storage meter counts the bytes of tensors that are alive, and agrees with the allocator's record."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn

from models.meters import allocator_meter
from models.meters.storage_meter import StorageMeter, measure_step, training_step

KIB = 1024


def float_tensor(nbytes: int) -> Tensor:
    return torch.zeros(nbytes // 4)


def test_the_meter_counts_a_new_storage_until_its_last_tensor_goes() -> None:
    with StorageMeter() as meter:
        first = float_tensor(4 * KIB)
        before = meter.live_nbytes
        del first
        after = meter.live_nbytes
    assert (before, after) == (4 * KIB, 0)


def test_the_meter_counts_views_once_and_as_long_as_any_lives() -> None:
    with StorageMeter() as meter:
        whole = float_tensor(4 * KIB)
        part = whole[:8]
        del whole
        live = meter.live_nbytes
    assert (live, part.shape) == (4 * KIB, (8,))


def test_the_meter_ignores_stationary_tensors_and_what_is_done_to_them_in_place() -> None:
    stationary = float_tensor(4 * KIB)
    with StorageMeter([stationary]) as meter:
        stationary.add_(1).view(-1)
    assert meter.peak().nbytes == 0


def test_the_peak_is_what_was_alive_at_once_and_names_its_operator() -> None:
    with StorageMeter() as meter:
        first = float_tensor(4 * KIB)
        second = first.exp()
        del first, second
        third = float_tensor(2 * KIB)
    del third
    assert (meter.peak().nbytes, meter.peak().operator) == (8 * KIB, "aten.exp.default")


def test_a_storage_resized_in_place_counts_at_its_new_size() -> None:
    with StorageMeter() as meter:
        target = torch.empty(0)
        torch.add(float_tensor(4 * KIB), 1, out=target)
        gc.collect()
        live = meter.live_nbytes
    assert (live, target.nbytes) == (4 * KIB, 4 * KIB)


def test_the_activation_peak_of_a_step_leaves_out_parameter_gradients() -> None:
    """A 64 x 64 linear layer on 16 rows: the output, its gradient and the loss and its gradient of 4 bytes each."""
    module = nn.Linear(64, 64, bias=False)
    peaks = measure_step(module, (torch.zeros(16, 64),))
    assert (peaks.activations.nbytes, peaks.total.nbytes) == (2 * 4 * KIB + 8, 2 * 4 * KIB + 8 + 16 * KIB)


def test_the_allocator_record_agrees_with_the_meter_where_kernels_need_no_workspace() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    inputs = (torch.zeros(512, 64),)
    metered = measure_step(module, inputs).activations.nbytes
    module.zero_grad()
    events = allocator_meter.record(lambda: training_step(module, inputs))
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert allocator_meter.peaks(events, without=gradients).activation_nbytes == metered
