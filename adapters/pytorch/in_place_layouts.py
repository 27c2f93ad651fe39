"""Tracing keeps the layout of what is written in place.

Tracing makes calls in place ones that return a new tensor, which may lie otherwise: packed where eager writes into a
part, in the order of its dimensions where eager writes over a transposed tensor. Kernels take other paths through
other layouts, and the last bit of a sum or a sigmoid tells which.

- The pieces of ``unsafe_split``, over which recurrent layers write their gates, are traced as the views they are.
- What is written over a whole tensor is laid out as that was, by a copy where the call in its place does otherwise.
- ``bernoulli_`` is traced as ``bernoulli``, which packs its result; the call of that name (torch_api.direct) does not,
  and is handed a packed tensor where the forward itself calls ``bernoulli``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import torch_api
from .strides import is_dense, lies_like
from .torch_api import FunctionalTensor, FunctionalTensorMode

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
        result = traced(mode, _AS_VIEWS.get(func, func), types, args, kwargs)
        if isinstance(func, torch_api.OpOverload) and func.namespace == "aten" and result is not None:
            for written in _written(func, args):
                _restore(mode, written)
        return result

    FunctionalTensorMode.__torch_dispatch__ = dispatch
    try:
        yield
    finally:
        FunctionalTensorMode.__torch_dispatch__ = traced


def _written(func: Any, args: Any) -> Iterator[FunctionalTensor]:
    """The tensors that a call writes over, but for those it resizes."""
    for argument, value in zip(torch_api.schema_of(func).arguments, args, strict=False):
        alias = argument.alias_info
        if alias is not None and alias.is_write and isinstance(value, FunctionalTensor):
            yield value


def _restore(mode: Any, written: FunctionalTensor) -> None:
    """Lay a written tensor out as it was; a view is read from what it looks at again, and keeps its layout so."""
    was, now = written, written.elem
    if not written.is_base_tensor() or was.shape != now.shape or lies_like(was, now) or not is_dense(was):
        return
    order = sorted(range(was.dim()), key=was.stride, reverse=True)
    back = sorted(range(was.dim()), key=order.__getitem__)
    with mode:
        again = written.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    written.replace_(torch._from_functional_tensor(again.elem))
    written.commit_update()
    written.sync()
