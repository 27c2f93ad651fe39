"""What one training step of any module holds at most, by the storage meter and by the allocator.

Both meters count the same way. Total: parameters, buffers, inputs and gradients that exist already, and
everything the step makes. Activations: the total without those and without finished parameter gradients,
each from the allocation of the storage that ends up as ``.grad`` or is added into one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from ogc_plan.adapters.pytorch.capture.tensor_attributes import attributes_of
from torch import Tensor, nn

from models.meters import allocator_meter
from models.meters.storage_meter import StorageMeter

Step = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class StepPeak:
    """Total and activation peak of one step in bytes, and the operator that reaches the latter."""

    total_nbytes: int
    activation_nbytes: int
    operator: str


Meter = Callable[[Step, nn.Module, tuple[Tensor, ...]], StepPeak]
"""`by_storages` or `by_allocator`."""


@dataclass(frozen=True, slots=True)
class CudaPeak:
    """Total peaks of one step in bytes: as requested, as allocated (rounded up), as reserved from the device.

    What else was allocated before the step is left out, as far as it was in use.
    """

    requested_nbytes: int
    allocated_nbytes: int
    reserved_nbytes: int


def parameter_gradients(module: nn.Module) -> list[Tensor]:
    """The ``.grad`` tensors that the module's parameters have now."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def clear_gradients(module: nn.Module, arguments: Iterable[Tensor]) -> None:
    """Drop every ``.grad`` of the module's parameters and of the inputs."""
    for tensor in (*module.parameters(), *arguments):
        tensor.grad = None


def stationary_nbytes(module: nn.Module, arguments: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages of parameters, buffers, inputs and the parameters' gradients, as of now."""
    tensors = (*_own_tensors(module), *arguments, *parameter_gradients(module))
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _own_tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, buffers, and tensors that are plain attributes."""
    return [*module.parameters(), *module.buffers(), *attributes_of(module).values()]


def _settle(arguments: Iterable[Tensor]) -> None:
    """Inputs without ``.grad`` (theirs is made by every step anew), and nothing left for the collector to free."""
    for tensor in arguments:
        tensor.grad = None
    gc.collect()


def by_storages(step: Step, module: nn.Module, arguments: tuple[Tensor, ...]) -> StepPeak:
    """The peak of ``step`` in tensors. Gradients that the parameters have before it stay and are added to."""
    _settle(arguments)
    before = stationary_nbytes(module, arguments)
    present = parameter_gradients(module)
    with StorageMeter([*_own_tensors(module), *arguments], gradients=present) as meter:
        kept = step()
    total, activations = meter.peak(), meter.activation_peak(parameter_gradients(module))
    del kept
    return StepPeak(before + total.nbytes, activations.nbytes, activations.operator)


def by_allocator(step: Step, module: nn.Module, arguments: tuple[Tensor, ...]) -> StepPeak:
    """The same by the CPU allocator's record, which also sees what kernels take and give back."""
    _settle(arguments)
    before = stationary_nbytes(module, arguments)
    events = allocator_meter.record(step, gradients=parameter_gradients(module))
    found = allocator_meter.peaks(events, without=parameter_gradients(module))
    return StepPeak(before + found.total_nbytes, found.activation_nbytes, found.operator)


def by_cuda(step: Step, module: nn.Module, arguments: tuple[Tensor, ...]) -> CudaPeak:
    """The same by the statistics of the CUDA allocator, which cannot tell activations from the rest."""
    _settle(arguments)
    before = stationary_nbytes(module, arguments)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    started = torch.cuda.memory_stats()
    kept = step()
    torch.cuda.synchronize()
    ended = torch.cuda.memory_stats()
    del kept

    def above(peak: str, in_use: str) -> int:
        return before + int(ended[f"{peak}.all.peak"]) - int(started[f"{in_use}.all.current"])

    return CudaPeak(
        above("requested_bytes", "requested_bytes"),
        above("allocated_bytes", "allocated_bytes"),
        above("reserved_bytes", "allocated_bytes"),
    )
