"""Tracing keeps the layout of what is written in place.

Tracing makes calls in place ones that return a new tensor, which may lie otherwise: packed where eager writes into a
part, in the order of its dimensions where eager writes over a transposed tensor. Kernels take other paths through
other layouts, and the last bit of a sum or a sigmoid tells which.

- The pieces of ``unsafe_split``, over which recurrent layers write their gates, are traced as the views they are.
- What is written over a whole tensor, itself or as a view of all of it, is laid out as that was, by a copy where the
  call that tracing puts in the place does otherwise.
- Random numbers are drawn into the layout that eager draws into (torch_private.direct). ``bernoulli_`` is traced as
  ``bernoulli``, so where the forward itself calls that, which packs its result, it is handed a packed tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import torch_private
from ..memory.strides import is_dense, lies_like
from ..torch_private import FunctionalTensor, FunctionalTensorMode

_aten = torch.ops.aten
_AS_VIEWS = {
    _aten.unsafe_split.Tensor: _aten.split.Tensor,
    _aten.unsafe_split_with_sizes.default: _aten.split_with_sizes.default,
}


@contextmanager
def laid_out_as_written() -> Iterator[None]:
    """Trace inside: what eager writes in place lies after that as it did before."""
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
                _restore(mode, written)
        return result

    FunctionalTensorMode.__torch_dispatch__ = dispatch
    try:
        yield
    finally:
        FunctionalTensorMode.__torch_dispatch__ = traced


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[FunctionalTensor]:
    """The tensors that a call writes over."""
    for place, argument in enumerate(torch_private.schema_of(func).arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        alias = argument.alias_info
        if alias is not None and alias.is_write and isinstance(value, FunctionalTensor):
            yield value


def _restore(mode: Any, written: FunctionalTensor) -> None:
    """Lay a written tensor out as it was; one with gaps is a part of another, and is read from there again."""
    before, after = written, written.elem
    if before.shape != after.shape or not is_dense(before):
        return
    if not written.is_base_tensor():
        written.sync()  # made anew from what it looks at
    if lies_like(before, after):
        return
    order = sorted(range(before.dim()), key=before.stride, reverse=True)
    inverse = sorted(range(before.dim()), key=order.__getitem__)
    with mode:
        restored = written.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)
    torch_private.exchange(written, restored)
