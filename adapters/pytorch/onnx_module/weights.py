"""The numbers of a file as tensors of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....planner.onnx_import.values.constant_folding import Array, array_of
from ....planner.onnx_import.values.values import Call, Value
from .node import torch_dtype


def tensor_of(value: Value, folder: Path) -> Tensor:
    """The values of a leaf, external data included, or those that the reader computed.

    Raises InvalidModelError and StorageError where they cannot be read.
    """
    if isinstance(value.source, Call):
        fill = value.source.attributes.get("value", (0,))
        assert isinstance(fill, tuple)
        return torch.full(value.shape, fill[0], dtype=torch_dtype(value.dtype))
    array = value.known if value.known is not None else array_of(value.source, folder, f"constant {value.name!r}")
    return as_tensor(array, value.dtype).reshape(value.shape)


def as_tensor(array: Array, dtype: str) -> Tensor:
    """A copy of an array, whose element type may be one that NumPy itself has not."""
    wanted = torch_dtype(dtype)
    if array.dtype.type.__module__ == "numpy":
        return torch.from_numpy(np.array(array)).to(wanted)
    if array.dtype.itemsize == wanted.itemsize and not dtype.startswith(("int", "uint")):
        plain = np.array(array).view(np.uint8 if wanted.itemsize == 1 else np.int16)
        return torch.from_numpy(plain).view(wanted)
    return torch.from_numpy(array.astype(np.int16)).to(wanted)
