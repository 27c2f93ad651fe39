"""Which arguments are one tensor. A forward may ask ``key is query``, and one tensor takes one gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..torch_private import pytree
from .tensor_attributes import attributes_of

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


def with_same_tensors(module: nn.Module, forward: Callable[..., Any], same: Same) -> Callable[..., Any]:
    """``forward`` of ``module``, given one traced tensor where one tensor was given."""
    if not any(known is not None for known in same):
        return forward

    def given_the_same(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        known: dict[int | str, Any] = dict(enumerate(leaves))
        known.update(own_tensors(module))
        args, kwargs = pytree.tree_unflatten([known[i if s is None else s] for i, s in enumerate(same)], spec)
        return forward(*args, **kwargs)

    return given_the_same
