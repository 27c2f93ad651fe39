"""The numbers of a file as tensors of torch."""

from __future__ import annotations

from json import dumps as quoted
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....planner.errors import UnsupportedOpError
from ....planner.onnx_import.values.constant_folding import Array, array_of
from ....planner.onnx_import.values.values import Call, Value
from .node import torch_dtype


def tensor_of(value: Value, folder: Path) -> Tensor:
    """The values of a leaf, external data included, or those that the reader computed.

    Raises InvalidModelError where they cannot be read, and UnsupportedOpError for a constant that has the batch of the
    file and is another for each sample.
    """
    if isinstance(value.source, Call):
        fill = value.source.attributes.get("value", (0,))
        assert isinstance(fill, tuple)
        return torch.full(value.shape, fill[0], dtype=torch_dtype(value.dtype))
    array = value.known if value.known is not None else array_of(value.source, folder, f"constant {value.name!r}")
    return _of_batch(as_tensor(array, value.dtype), value)


def _of_batch(tensor: Tensor, value: Value) -> Tensor:
    """A constant that the reader gave another batch, if it is the same for every sample."""
    for axis, (old, new) in enumerate(zip(tensor.shape, value.shape, strict=True)):
        if old != new:
            first = tensor.narrow(axis, 0, 1)
            if not torch.equal(first.expand_as(tensor), tensor):
                raise UnsupportedOpError(
                    f"constant {quoted(value.name)} has {old} different entries along dimension {axis}, the batch",
                    remedy=f"use the batch of the file, or export the model at batch {new}",
                )
            tensor = first.expand(*tensor.shape[:axis], new, *tensor.shape[axis + 1 :]).contiguous()
    return tensor


def as_tensor(array: Array, dtype: str) -> Tensor:
    """A copy of an array, whose element type may be one that NumPy itself has not."""
    wanted = torch_dtype(dtype)
    if array.dtype.type.__module__ == "numpy":
        return torch.from_numpy(np.array(array)).to(wanted)
    if array.dtype.itemsize == wanted.itemsize and not dtype.startswith(("int", "uint")):
        plain = np.array(array).view(np.uint8 if wanted.itemsize == 1 else np.int16)
        return torch.from_numpy(plain).view(wanted)
    return torch.from_numpy(array.astype(np.int16)).to(wanted)
