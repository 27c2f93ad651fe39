"""A tensor that a module returns several times is one output, as in eager training; views of one memory are several.

Tracing would make one output of each time, and each would get a gradient of its own: a sum of sums, where
autograd adds up the uses of one tensor in another order. Of outputs that look at one memory tracing would take the
gradient of that memory alone, and the module's own uses of a view would be summed after the caller's; so each of
them passes a node of its own at the end of the forward, which hands on the gradient of that output. What takes no
gradient and is an argument, a parameter or a buffer comes back as that very object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from .. import torch_private
from ..torch_private import pytree


class _Apart(torch.autograd.Function):  # type: ignore[misc]
    """An output that shares memory, for autograd a tensor that does not."""

    @staticmethod
    def forward(_: Any, output: torch.Tensor) -> torch.Tensor:
        """The same memory."""
        return output.detach()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """The gradient as it is."""
        return gradients[0]


class DistinctOutputs:
    """The structure of what a forward returned last, and which of its leaves are one and the same tensor.

    ``places[i]`` is the place of the i-th leaf among the distinct ones; those at ``detached`` take no gradient.
    ``of_given`` says which of the distinct ones that take no gradient look at the memory of an argument leaf (by its
    number), a parameter or a buffer (by name), and whether they are that very tensor.
    """

    def __init__(self, detached: Collection[int] = ()) -> None:
        self._detached = frozenset(detached)
        self.spec: pytree.TreeSpec = pytree.tree_flatten(None)[1]
        self.places: tuple[int, ...] = ()
        self.of_given: dict[int, tuple[int | str, bool]] = {}

    def around(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` of ``module`` returning the distinct leaves of its result."""

        def distinct(*args: Any, **kwargs: Any) -> list[Any]:
            leaves, self.spec = pytree.tree_flatten(forward(*args, **kwargs))
            first: dict[int, int] = {}
            kept: list[Any] = []
            places = []
            for leaf in leaves:
                known = first.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
                if known is None:
                    known = first[id(leaf)] = len(kept)
                    kept.append(leaf)
                places.append(known)
            self.places = tuple(places)
            given: dict[int | str, Any] = dict(enumerate(pytree.tree_leaves((args, kwargs))))
            return self._returned(kept, {**given, **dict(module.named_parameters()), **dict(module.named_buffers())})

        return distinct

    def _returned(self, kept: list[Any], given: dict[int | str, Any]) -> list[Any]:
        """What to return for the distinct leaves of a forward that was given these tensors."""
        owners = {key: name for name, tensor in given.items() for key in _storage(tensor)}
        users = Counter(owners.keys()) + Counter(key for leaf in kept for key in _storage(leaf))
        self.of_given = {}
        returned = []
        for place, leaf in enumerate(kept):
            for key in _storage(leaf):
                if not leaf.requires_grad and key in owners:
                    self.of_given[place] = owners[key], given[owners[key]] is leaf
                if leaf.requires_grad and place in self._detached:
                    leaf = leaf.detach()
                elif leaf.requires_grad and users[key] > 1:
                    leaf = _Apart.apply(leaf)
            returned.append(leaf)
        return returned


def _storage(leaf: Any) -> list[int]:
    """The key of the storage of a dense tensor; nothing for anything else."""
    dense = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    return [torch_private.storage_key(leaf)] if dense else []
