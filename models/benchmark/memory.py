"""Memory and seconds of one training step, as the ancestors' benchmark counts them and as this project does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.benchmark.network import Network
from models.meters.step_meters import by_storages, clear_gradients, parameter_gradients
from models.meters.storage_meter import StorageMeter, training_step


@dataclass(frozen=True, slots=True)
class Measured:
    """One step of a module, in bytes and seconds; None is what this device cannot tell.

    ``activation_nbytes``: all that the step makes but finished parameter gradients, which are absent before it.
    ``total_nbytes``: that with gradients, parameters, buffers and inputs. ``protocol_nbytes``: the ancestors'
    figure, gradients there before and inputs made inside. On the CPU and on fake tensors the three count tensors;
    on CUDA the last is the allocator's, as are ``allocated_nbytes`` and ``reserved_nbytes``, peaks of everything.
    """

    activation_nbytes: int
    total_nbytes: int
    protocol_nbytes: int
    allocated_nbytes: int | None = None
    reserved_nbytes: int | None = None
    seconds: float | None = None


def measure(network: Network, module: nn.Module, *, steps: int = 1, warm_up: int = 0) -> Measured:
    """Meter a step of ``module``, the network itself or a variant of it, which shares its parameters."""
    with network.active():
        inputs = network.arguments()
        clear_gradients(module, ())
        found = by_storages(lambda: training_step(module, inputs), module, inputs)
        activation, total = found.activation_nbytes, found.total_nbytes
        if network.place.device.type == "cuda":
            protocol, allocated, reserved, seconds = by_statistics(network, module, torch.cuda, steps, warm_up)
            return Measured(activation, total, protocol, allocated, reserved, seconds)
        protocol = _as_published(network, module)
        timed = None if network.place.fake else _seconds(network, module, steps, warm_up)
        return Measured(activation, total, protocol, seconds=timed)


def _as_published(network: Network, module: nn.Module) -> int:
    """By the storage meter; the step before has left its gradients."""
    present = parameter_gradients(module)
    with StorageMeter([*module.parameters(), *module.buffers()], gradients=present) as meter:
        output = training_step(module, network.arguments())
    del output
    return meter.peak().nbytes


def _one_step(network: Network, module: nn.Module) -> None:
    output: Tensor = module(*network.arguments())
    torch.sum(output).backward()


def by_statistics(
    network: Network, module: nn.Module, statistics: Any, steps: int, warm_up: int
) -> tuple[int, int, int, float]:
    """By the allocator's ``statistics`` (torch.cuda): protocol, allocated and reserved peak, seconds a step."""
    _one_step(network, module)  # leaves gradients, and lets libraries make their handles
    statistics.synchronize()
    statistics.empty_cache()
    statistics.reset_peak_memory_stats()
    before = statistics.memory_allocated()
    seconds = _seconds(network, module, steps, warm_up, statistics.synchronize)
    allocated, reserved = statistics.max_memory_allocated(), statistics.max_memory_reserved()
    return allocated - max(before, statistics.memory_allocated()), allocated, reserved, seconds


def _seconds(network: Network, module: nn.Module, steps: int, warm_up: int, synchronise: Any = lambda: None) -> float:
    """The mean of the steps after the warm-up, each from the end of the one before to the end of its kernels."""
    taken = []
    for _ in range(steps):
        synchronise()
        started = time.perf_counter()
        _one_step(network, module)
        synchronise()
        taken.append(time.perf_counter() - started)
    kept = taken[warm_up:]
    return sum(kept) / len(kept)


def gradient_difference(network: Network, module: nn.Module) -> float | None:
    """The largest difference of a parameter's gradient to plain training's, relative to its largest entry.

    0.0 where all are equal; None on fake tensors, which have no values. The buffers are put back.
    """
    if network.place.fake:
        return None
    with network.active():
        buffers = {name: tensor.clone() for name, tensor in network.module.named_buffers()}
        inputs = network.arguments()
        found = []
        for variant in (network.module, module):
            clear_gradients(variant, inputs)
            torch.sum(variant(*inputs)).backward()
            found.append([gradient.clone() for gradient in parameter_gradients(variant)])
            for name, tensor in network.module.named_buffers():
                tensor.copy_(buffers[name])
        clear_gradients(network.module, inputs)
    if len(found[0]) != len(found[1]):
        return float("inf")
    pairs = zip(*found, strict=True)
    return max((float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in pairs), default=0.0)
