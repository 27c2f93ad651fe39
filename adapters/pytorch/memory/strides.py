"""Layouts of tensors. The stride of a dimension of size 1 has no meaning and is ignored."""

from __future__ import annotations

import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a range of memory without gaps or overlap, in some order of the dimensions."""
    expected = 1
    for stride, size in sorted(pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[1] > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape and the same offset for every element."""
    return one.shape == other.shape and all(
        a == b for a, b, size in zip(one.stride(), other.stride(), one.shape, strict=True) if size > 1
    )


def example(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A real tensor of this layout, with values that every kernel accepts.

    Floating-point values are one half (a probability), others are zero (an index, a mask).
    """
    extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    value = 0.5 if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full((extent,), value, dtype=dtype, device=device).as_strided(shape, strides)
