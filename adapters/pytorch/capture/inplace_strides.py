"""Keeps the layout of tensors that are written in place.

Tracing replaces a call in place by one that returns a new tensor, which may have another layout: packed where eager
training writes into a slice, in the order of its dimensions where eager training writes over a transposed tensor.
Kernels take other paths through other layouts, which shows in the last bit of a sum or a sigmoid.

- The pieces of ``unsafe_split``, over which recurrent layers write their gates, are traced as the views they are.
- A tensor that is written as a whole, itself or through a view of all of it, keeps its layout. If the call that
  tracing puts in its place gives another one, the result is copied.
- Random numbers are drawn into the layout that eager training draws into (torch_private.direct). ``bernoulli_`` is
  traced as ``bernoulli``. If the forward itself calls ``bernoulli``, which packs its result, it gets a packed tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from .. import torch_private
from ..memory.strides import is_dense, same_layout
from ..torch_private import FunctionalTensor, FunctionalTensorMode

_aten = torch.ops.aten
_AS_VIEWS = {
    _aten.unsafe_split.Tensor: _aten.split.Tensor,
    _aten.unsafe_split_with_sizes.default: _aten.split_with_sizes.default,
}


def inplace_strides() -> AbstractContextManager[None]:
    """Trace inside: a tensor that is written in place keeps its layout."""
    traced = FunctionalTensorMode.__torch_dispatch__

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten.bernoulli.p and not args[0].is_contiguous():
            with mode:
                args = (torch.empty_like(args[0], memory_format=torch.contiguous_format), *args[1:])
        view = _AS_VIEWS.get(func)
        if view is not None and args[0].is_base_tensor():
            func = view
        result = traced(mode, func, types, args, kwargs)
        of_torch = isinstance(func, torch_private.OpOverload) and func.namespace == "aten"
        if of_torch and torch_private.schema_of(func).is_mutable:
            for written in _written(func, args, kwargs or {}):
                _restore_layout(mode, written)
        return result

    return torch_private.patched(FunctionalTensorMode, "__torch_dispatch__", dispatch)


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[FunctionalTensor]:
    """The tensors that a call writes in place."""
    for i, argument in enumerate(torch_private.schema_of(func).arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        alias = argument.alias_info
        if alias is not None and alias.is_write and isinstance(value, FunctionalTensor):
            yield value


def _restore_layout(mode: Any, written: FunctionalTensor) -> None:
    """Give a written tensor its layout back. One with gaps is a slice of another, and is read from there again."""
    before, after = written, written.elem
    if before.shape != after.shape or not is_dense(before):
        return
    if not written.is_base_tensor():
        written.sync()  # regenerates the view from its base
    if same_layout(before, after):
        return
    order = sorted(range(before.dim()), key=before.stride, reverse=True)
    inverse = sorted(range(before.dim()), key=order.__getitem__)
    with mode:
        restored = written.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)
    torch_private.exchange(written, restored)
