"""The numbers of a file as tensors of torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....planner.onnx_import.values.constant_folding import Array
from ....planner.onnx_import.values.stored_values import stored_array
from ....planner.onnx_import.values.values import Value
from .node import torch_dtype


def tensor_of(value: Value, folder: Path) -> Tensor:
    """The values of a leaf. Raises what `stored_array` raises."""
    return as_tensor(stored_array(value, folder), value.dtype)


def as_tensor(array: Array, dtype: str) -> Tensor:
    """A copy of an array, whose element type may be one that NumPy itself has not."""
    wanted = torch_dtype(dtype)
    if array.dtype.type.__module__ == "numpy":
        return torch.from_numpy(np.array(array)).to(wanted)
    if array.dtype.itemsize == wanted.itemsize and not dtype.startswith(("int", "uint")):
        plain = np.array(array).view(np.uint8 if wanted.itemsize == 1 else np.int16)
        return torch.from_numpy(plain).view(wanted)
    return torch.from_numpy(array.astype(np.int16)).to(wanted)
