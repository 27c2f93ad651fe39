"""What a trace does not carry of arguments: that two are one tensor, and constants such as a dtype.

A forward may ask ``key is query``, and one tensor takes one gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import nn

from ..torch_private import pytree
from .tensor_attributes import attributes_of

_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, Enum)
"""Classes of arguments that no trace takes, and that a plan is made for, as numbers are."""

Same = tuple[int | str | None, ...]
"""For each argument leaf: the index of an earlier leaf, or the name of a tensor of the module, that is the same tensor;
None if it is neither.
"""


def same_tensors(leaves: Sequence[Any], own: Iterable[tuple[str, torch.Tensor]]) -> Same:
    """Which argument leaves are another one, or one of the module's ``own`` tensors."""
    first: dict[int, int | str] = {}
    for name, tensor in own:
        first.setdefault(id(tensor), name)
    found: list[int | str | None] = []
    for index, leaf in enumerate(leaves):
        known = first.setdefault(id(leaf), index) if isinstance(leaf, torch.Tensor) else index
        found.append(None if known == index else known)
    return tuple(found)


def own_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a module by name, in the order of a plan's primals."""
    return [*module.named_parameters(), *module.named_buffers(), *attributes_of(module).items()]


def without_constants(leaves: Sequence[Any]) -> list[Any]:
    """The leaves, with a text in place of those that no trace takes and `with_arguments_as_given` puts back.

    Not with None, which dataclasses leave out of their leaves.
    """
    return ["" if isinstance(leaf, _CONSTANTS) else leaf for leaf in leaves]


def with_arguments_as_given(
    module: nn.Module, forward: Callable[..., Any], given: Sequence[Any], same: Same
) -> Callable[..., Any]:
    """``forward`` of ``module``, with one traced tensor where one tensor was ``given``, and with its constants."""
    constants: dict[int | str, Any] = {i: leaf for i, leaf in enumerate(given) if isinstance(leaf, _CONSTANTS)}
    if not constants and not any(known is not None for known in same):
        return forward

    def as_given(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        known: dict[int | str, Any] = {**dict(enumerate(leaves)), **constants}
        known.update(own_tensors(module))
        args, kwargs = pytree.tree_unflatten([known[i if s is None else s] for i, s in enumerate(same)], spec)
        return forward(*args, **kwargs)

    return as_given
