"""A storage meter: the bytes of every storage torch makes, from the call that makes it to its release.

The meter sees tensors, not the allocator: memory that a kernel takes and gives back inside one call is
invisible, and no rounding is added. Under any dispatch mode autograd sums gradients out of place (it
refuses to reuse a buffer it cannot own), which is also what an ahead-of-time backward graph does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes alive at once, and the operator that reached it."""

    nbytes: int
    operator: str


class StorageMeter(TorchDispatchMode):
    """Counts live bytes of the storages made while it is active; ``stationary`` tensors never count.

    A storage is counted once however many tensors view it, and is released when torch releases it: the
    meter holds weak references only, and remembers the order of allocations and releases. ``gradients``
    are the parameters' ``.grad`` tensors that exist already: stationary too, and what is added into one of
    them in place is a parameter's gradient, not an activation. If a stationary tensor is on a card, host memory
    is left out, such as saved states of the card's generator.
    """

    supports_higher_order_operators = True

    def __init__(self, stationary: Iterable[Tensor] = (), *, gradients: Iterable[Tensor] = ()) -> None:
        super().__init__()
        stationary = list(stationary)
        self._of_card = any(tensor.is_cuda for tensor in stationary)
        present = [tensor.untyped_storage() for tensor in gradients]
        self._stationary = [tensor.untyped_storage() for tensor in stationary] + present
        self._ignored = {storage._cdata for storage in self._stationary}
        self._gradients = {storage._cdata for storage in present}
        self._accumulated: set[int] = set()  # records
        self._records: list[Peak] = []  # the bytes of each storage, and the operator that made it
        self._events: list[tuple[int, int]] = []  # (record, +1 alive / -1 released)
        self._alive: dict[int, tuple[int, Any]] = {}  # storage address -> (record, weak reference)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets compiled regions run while the meter watches."""
        return True

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, then note each new storage among its outputs."""
        if func is torch.ops.aten.add_.Tensor and args[0].untyped_storage()._cdata in self._gradients:
            added = args[1].untyped_storage()._cdata
            if added in self._alive:
                self._accumulated.add(self._alive[added][0])
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf, str(func))
        return result

    def _note(self, tensor: Tensor, operator: str) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._ignored or (self._of_card and not tensor.is_cuda):
            return
        if address in self._alive:
            if self._records[self._alive[address][0]].nbytes == storage.nbytes():
                return
            self._release(address)  # resized in place: the old extent ends here
        record = len(self._records)
        self._records.append(Peak(storage.nbytes(), operator))
        reference = weakref.ref(storage, lambda _: self._release(address))
        self._alive[address] = (record, reference)
        self._events.append((record, 1))

    def _release(self, address: int) -> None:
        if address in self._alive:
            record, _ = self._alive.pop(address)
            self._events.append((record, -1))

    @property
    def live_nbytes(self) -> int:
        """Bytes alive now."""
        return sum(self._records[record].nbytes for record, _ in self._alive.values())

    def peak(self) -> Peak:
        """The peak over the whole recording."""
        return self._peak(set())

    def activation_peak(self, gradients: Iterable[Tensor]) -> Peak:
        """The peak without what became, or was added into, a parameter's gradient.

        Pass the parameters' final ``.grad`` tensors. A gradient counts out from its allocation; a partial
        sum that is no final gradient counts as an activation.
        """
        addresses = {tensor.untyped_storage()._cdata for tensor in gradients}
        return self._peak({self._alive[address][0] for address in addresses & self._alive.keys()} | self._accumulated)

    def _peak(self, excluded: set[int]) -> Peak:
        nbytes, peak = 0, Peak(0, "")
        for record, change in self._events:
            if record in excluded:
                continue
            nbytes += change * self._records[record].nbytes
            if nbytes > peak.nbytes:
                peak = Peak(nbytes, self._records[record].operator)
        return peak


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """Peaks of one training step above parameters, buffers and inputs, in bytes.

    ``activations`` leaves out the parameters' final gradients; ``total`` counts them.
    """

    total: Peak
    activations: Peak


class _Loss(torch.autograd.Function):
    """A loss that costs nothing: its backward hands the output a dense gradient of ones, held by nobody else."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.like = (output.shape, output.dtype, output.device)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        shape, dtype, device = ctx.like
        return torch.ones(shape, dtype=dtype, device=device)


LOSS_NBYTES = 8
"""What `training_step` holds of a float32 output's loss and its gradient, which no plan of the module contains."""


def training_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """One eager forward and backward; returns the output, which the caller thus holds to the end.

    The output's gradient comes in dense from the loss, as in the planner's memory model. Calling
    ``output.backward(gradient)`` instead would hold that gradient in the caller's frame all along.
    """
    output: Tensor = model(*inputs)
    _Loss.apply(output).backward()
    return output


def measure_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> StepPeaks:
    """Meter one `training_step`; ``.grad`` is cleared before it and left in place after it."""
    model.zero_grad(set_to_none=True)
    with StorageMeter([*model.parameters(), *model.buffers(), *inputs]) as meter:
        output = training_step(model, inputs)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    peaks = StepPeaks(meter.peak(), meter.activation_peak(gradients))
    del output
    return peaks
