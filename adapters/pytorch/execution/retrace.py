"""Traces a step again, after its forward has run, for gradients of its outputs unlike those of the first trace."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ..joint import Joint, Meta
from ..memory.strides import Layout
from ..torch_private import pytree

Strides = tuple[int, ...]


class Retrace(Protocol):
    """Traces the step on the arguments of its forward, with some outputs detached and other strides of gradients."""

    def __call__(self, detached: frozenset[int], strides: Sequence[Strides | None]) -> Joint:
        """The joint graph. Raises what `capture` raises."""
        ...

    def weakly(self) -> Retrace:
        """The same without keeping the arguments alive."""
        ...


class OnArguments:
    """Traces the step on its arguments, which it keeps alive: their leaves, in a structure.

    ``described`` has the `meta` of each leaf.
    """

    def __init__(
        self, trace: Callable[..., Joint], leaves: list[Any], spec: pytree.TreeSpec, described: Sequence[Any]
    ) -> None:
        self._trace, self._leaves, self._spec, self._described = trace, leaves, spec, described

    def __call__(self, detached: frozenset[int], strides: Sequence[Strides | None]) -> Joint:
        """The joint graph. Raises what `capture` raises."""
        return self._trace(*pytree.tree_unflatten(self._leaves, self._spec), detached, strides)

    def weakly(self) -> Retrace:
        """The same on arguments that may be gone by then."""
        leaves = [weakref.ref(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        return _OnGoneArguments(self._trace, leaves, self._spec, self._described)


class _OnGoneArguments:
    """Traces the step on arguments that the caller may have let go: others of the same layout stand for them."""

    def __init__(
        self, trace: Callable[..., Joint], leaves: list[Any], spec: pytree.TreeSpec, described: Sequence[Any]
    ) -> None:
        self._trace, self._leaves, self._spec, self._described = trace, leaves, spec, described

    def __call__(self, detached: frozenset[int], strides: Sequence[Strides | None]) -> Joint:
        pairs = zip(self._leaves, self._described, strict=True)
        leaves = [_there(leaf, known) if isinstance(known, Meta) else leaf for leaf, known in pairs]
        return self._trace(*pytree.tree_unflatten(leaves, self._spec), detached, strides)

    def weakly(self) -> Retrace:
        return self


def _there(reference: weakref.ref[torch.Tensor], known: Meta) -> torch.Tensor:
    """A tensor, or another one of its layout if it is gone."""
    found = reference()
    if found is not None:
        return found
    layout = Layout(known.shape, known.strides, known.dtype, known.device)
    return layout.example().requires_grad_(known.requires_grad)


class _Never:
    """No step is traced once its backward has ended."""

    def __call__(self, detached: frozenset[int], strides: Sequence[Strides | None]) -> Joint:
        raise AssertionError(detached, strides)

    def weakly(self) -> Retrace:
        return self


never: Retrace = _Never()
