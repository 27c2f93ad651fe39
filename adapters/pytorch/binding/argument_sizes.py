"""The sizes of arguments, the one that they share along a dimension, and arguments of another size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..torch_private import pytree


def shapes_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of the tensors."""
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    return [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def size_along(axis: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """The size of the first tensor that has the dimension; None if none has."""
    return next((leaf.shape[axis] for leaf in pytree.tree_leaves((args, dict(kwargs))) if _has(leaf, axis)), None)


def resized(axis: int, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with another size where tensors have that of the first: samples are repeated or left out."""
    before = size_along(axis, args, kwargs)

    def sized(leaf: Any) -> Any:
        if not _has(leaf, axis) or leaf.shape[axis] != before:
            return leaf
        samples = torch.arange(size, device=leaf.device) % before
        return leaf.detach().index_select(axis, samples).requires_grad_(leaf.requires_grad)

    made: tuple[Any, dict[str, Any]] = pytree.tree_map(sized, (args, dict(kwargs)))
    return made


def _has(leaf: Any, axis: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > axis
