"""How tensors lie in their memory; the stride of a dimension of size 1 says nothing."""

from __future__ import annotations

import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements, in some order of the dimensions, lie one after the other without gaps or overlap."""
    expected = 1
    for stride, size in sorted(pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[1] > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def lies_like(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape and every element of theirs the same offset."""
    return one.shape == other.shape and all(
        a == b for a, b, size in zip(one.stride(), other.stride(), one.shape, strict=True) if size > 1
    )
