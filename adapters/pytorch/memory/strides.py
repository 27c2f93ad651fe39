"""Layouts of tensors. The stride of a dimension of size 1 has no meaning and is ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Layout(NamedTuple):
    """The properties of a tensor that a kernel's result and memory may depend on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """The layout of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    @property
    def extent(self) -> int:
        """Elements of memory from the first to the last."""
        sizes = zip(self.shape, self.strides, strict=True)
        return 0 if 0 in self.shape else 1 + sum((size - 1) * stride for size, stride in sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of that memory."""
        return self.extent * int(self.dtype.itemsize)

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions of more than one element, those with the shortest strides first."""
        dimensions = (i for i, size in enumerate(self.shape) if size != 1)
        return tuple(sorted(dimensions, key=lambda i: (self.strides[i], self.shape[i])))

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill a range of memory without gaps or overlap."""
        packed = self.packed(self.shape)
        return all(self.strides[i] == packed.strides[i] for i in self.order)

    def packed(self, shape: Sequence[int]) -> Layout:
        """The layout of another shape that has no gaps, with the dimensions in this order."""
        strides, step = [1] * len(shape), 1
        for i in self.order:
            strides[i] = step
            step *= shape[i]
        return self._replace(shape=tuple(shape), strides=tuple(strides))

    def example(self) -> torch.Tensor:
        """A real tensor of this layout, with values that every kernel accepts."""
        return self.filled(self.extent).as_strided(self.shape, self.strides)

    def filled(self, extent: int) -> torch.Tensor:
        """``extent`` elements of this type: one half (a probability) for floats, else zero (an index, a mask)."""
        value = 0.5 if self.dtype.is_floating_point or self.dtype.is_complex else 0
        return torch.full((extent,), value, dtype=self.dtype, device=self.device)


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
