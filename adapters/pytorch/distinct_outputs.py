"""A tensor that a module returns several times is one output, as in eager training.

Tracing would make one output of each time, and each would get a gradient of its own: a sum of sums, where
autograd adds up the uses of one tensor in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from .torch_api import pytree


class DistinctOutputs:
    """The structure of what a forward returned last, and which of its leaves are one and the same tensor.

    ``places[i]`` is the place of the i-th leaf among the distinct ones; those at ``detached`` take no gradient.
    """

    def __init__(self, detached: Collection[int] = ()) -> None:
        self._detached = frozenset(detached)
        self.spec: pytree.TreeSpec = pytree.tree_flatten(None)[1]
        self.places: tuple[int, ...] = ()

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` returning the distinct leaves of its result."""

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
            return [leaf.detach() if place in self._detached else leaf for place, leaf in enumerate(kept)]

        return distinct
