"""Traces ``tensor.data = value`` as the write that it is. PyTorch does not dispatch it, so no trace would see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import UnsupportedModuleError
from ..torch_private import FunctionalTensor


@contextmanager
def data_assignments() -> Iterator[None]:
    """Trace an assignment to ``data`` inside as a write of the value into the tensor.

    Raises UnsupportedModuleError for a value that the tensor has no room for.
    """
    real = torch.Tensor.data

    def write(tensor: torch.Tensor, value: Any) -> None:
        if not isinstance(tensor, FunctionalTensor):
            real.__set__(tensor, value)
            return
        found, new = ((t.shape, t.stride(), t.dtype, t.device) for t in (tensor, value))
        if found != new:
            raise UnsupportedModuleError(
                f"a tensor of shape {list(tensor.shape)} is given data of another shape, type, device or strides: "
                f"{list(value.shape)}, {value.dtype}",
                remedy="assign data of the same kind, or write outside of the forward",
            )
        with torch.no_grad():
            tensor.copy_(value)

    # Of all tensors, since code may say `torch.Tensor.data.__set__(tensor, value)`.
    torch.Tensor.data = property(real.__get__, write)
    try:
        yield
    finally:
        del torch.Tensor.data
