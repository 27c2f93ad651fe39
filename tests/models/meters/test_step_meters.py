"""The meters of a step, on a chain of linear layers without bias, 64 x 64, on 512 rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.meters.step_meters import StepPeak, by_allocator, by_storages, clear_gradients

KIB = 1024


def chain() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(512, 64),)


def chain_step(module: nn.Module, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    def step() -> Tensor:
        loss: Tensor = module(*arguments).sum()
        loss.backward()
        return loss

    return step


Meter = Callable[[Callable[[], Tensor], nn.Module, tuple[Tensor, ...]], StepPeak]
METERS = pytest.mark.parametrize("meter", [by_storages, by_allocator])


@METERS
def test_activations_are_saved_outputs_and_a_gradient_and_the_total_also_parameters_inputs_gradients(
    meter: Meter,
) -> None:
    """Both tanh outputs and the gradient of the second's input; the loss and its gradient, 4 bytes each."""
    module, arguments = chain()
    peak = meter(chain_step(module, arguments), module, arguments)
    at_the_first_tanh = 3 * 128 * KIB + 8 + 16 * KIB  # its output, two gradients, and that of the second weight
    total = 128 * KIB + 2 * 16 * KIB + at_the_first_tanh
    assert (peak.activation_nbytes, peak.total_nbytes) == (3 * 128 * KIB + 8, total)


@METERS
def test_gradients_present_and_what_is_added_to_them_are_no_activations_but_count_in_the_total(meter: Meter) -> None:
    module, arguments = chain()
    step = chain_step(module, arguments)
    first, second = (meter(step, module, arguments) for _ in range(2))
    assert second.activation_nbytes == first.activation_nbytes
    assert second.total_nbytes >= first.total_nbytes + 2 * 16 * KIB


@METERS
def test_memory_that_is_older_than_the_step_does_not_lower_its_peak(meter: Meter) -> None:
    module, arguments = chain()
    step = chain_step(module, arguments)
    old: list[Tensor] = []

    def making() -> Tensor:
        old.append(torch.zeros(1024 * KIB))
        return step()

    def freeing() -> Tensor:
        old.clear()
        return step()

    peaks = []
    for run in (making, step, freeing):
        clear_gradients(module, arguments)
        peaks.append(meter(run, module, arguments))
    assert peaks[2] == peaks[1]
