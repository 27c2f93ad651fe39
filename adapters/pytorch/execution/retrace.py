"""Traces a step again, after its forward has run, for gradients of its outputs unlike those of the first trace."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ..joint import Joint
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
    """Traces the step on its arguments, which it keeps alive."""

    def __init__(self, trace: Callable[..., Joint], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._trace, self._args, self._kwargs = trace, args, kwargs

    def __call__(self, detached: frozenset[int], strides: Sequence[Strides | None]) -> Joint:
        """The joint graph. Raises what `capture` raises."""
        return self._trace(self._args, self._kwargs, detached, strides)

    def weakly(self) -> Retrace:
        """The same on arguments that may be gone by then."""
        leaves, spec = pytree.tree_flatten((self._args, self._kwargs))
        return _OnGoneArguments(self._trace, [_Weak(leaf) if _is_plain(leaf) else leaf for leaf in leaves], spec)


class _OnGoneArguments:
    """Traces the step on arguments that the caller may have let go: others of the same layout stand for them."""

    def __init__(self, trace: Callable[..., Joint], leaves: list[Any], spec: pytree.TreeSpec) -> None:
        self._trace, self._leaves, self._spec = trace, leaves, spec

    def __call__(self, detached: frozenset[int], strides: Sequence[Strides | None]) -> Joint:
        leaves = [leaf.tensor() if isinstance(leaf, _Weak) else leaf for leaf in self._leaves]
        return self._trace(*pytree.tree_unflatten(leaves, self._spec), detached, strides)

    def weakly(self) -> Retrace:
        return self


class _Weak:
    """A tensor that may be gone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._layout, self._needs = weakref.ref(tensor), Layout.of(tensor), tensor.requires_grad

    def tensor(self) -> torch.Tensor:
        """The tensor, or another one of its layout."""
        found = self._tensor()
        return self._layout.example().requires_grad_(self._needs) if found is None else found


def _is_plain(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided


class _Never:
    """No step is traced once its backward has ended."""

    def __call__(self, detached: frozenset[int], strides: Sequence[Strides | None]) -> Joint:
        raise AssertionError(detached, strides)

    def weakly(self) -> Retrace:
        return self


never: Retrace = _Never()
