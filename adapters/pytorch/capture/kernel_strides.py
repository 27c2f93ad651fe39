"""Tracing is told the strides that kernels give their results, where it would guess.

Torch describes some calls on transposed tensors with other strides than their kernels give (batch norm, the
backwards of dropout, layer norm and losses). Whatever asks for strides, a ``view`` first, would then be traced
for another tensor than there will be. Each such call is run once, on stand-ins, while tracing. A call whose kernel
refuses those stays as torch describes it, and is named in a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .. import torch_private
from ..torch_private import FakeTensorMode, OpOverload, pytree, schema_of

_Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides."""

_KNOWN = frozenset({
    torch.ops.aten.addmm, torch.ops.aten.baddbmm, torch.ops.aten.bmm, torch.ops.aten.mm, torch.ops.aten.embedding,
    torch.ops.aten.convolution, torch.ops.aten.convolution_backward, torch.ops.aten._to_copy, torch.ops.aten.clone,
    torch.ops.aten.copy, torch.ops.aten.cat, torch.ops.aten._unsafe_view,
})  # fmt: skip
"""Calls that torch describes right, of which some take long to run."""


@contextmanager
def laid_out_as_run() -> Iterator[dict[str, str]]:
    """Trace inside: every result lies as its kernel lays it out.

    Gives the calls of which that is not known, each with what its kernel had against the stand-ins.
    """
    described = FakeTensorMode.dispatch
    layouts = _Layouts()

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if layouts.busy or not _may_differ(func, (args, kwargs)):
            return described(mode, func, types, args, kwargs or {})
        layouts.busy = True
        try:
            made = described(mode, func, types, args, kwargs or {})
            return layouts.corrected(mode, func, args, kwargs or {}, made)
        finally:
            layouts.busy = False

    FakeTensorMode.dispatch = dispatch
    try:
        yield layouts.unknown
    finally:
        FakeTensorMode.dispatch = described


class _Layouts:
    """The layouts of what calls return, by call; ``busy`` while one is described, ``unknown`` those that are not."""

    def __init__(self) -> None:
        self.busy = False
        self.unknown: dict[str, str] = {}
        self._known: dict[str, list[_Layout | None]] = {}

    def corrected(self, mode: Any, func: OpOverload, args: Any, kwargs: Any, made: Any) -> Any:
        """``made`` with each new tensor laid out as the kernel lays it out; views are as they are."""
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        old = {torch_private.storage_key(tensor) for tensor in given}
        leaves, spec = pytree.tree_flatten(made)
        fresh = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
        if not fresh or any(torch_private.storage_key(tensor) in old for tensor in fresh):
            return made
        signature = repr((func, pytree.tree_map_only(torch.Tensor, _signed, (args, kwargs))))
        if signature not in self._known:
            try:
                self._known[signature] = _as_run(func, args, kwargs)
            except (RuntimeError, IndexError, ValueError) as error:  # what kernels say of values that do not suit them
                self._known[signature] = []
                self.unknown[str(func)] = str(error).strip().partition("\n")[0]
        found = self._known[signature]
        for place, (leaf, layout) in enumerate(zip(leaves, found, strict=False)):
            if layout is not None and any(leaf is tensor for tensor in fresh):
                shape, strides = layout
                if shape == tuple(leaf.shape) and strides != leaf.stride():
                    with mode:
                        leaves[place] = torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)
        return pytree.tree_unflatten(leaves, spec)


def _may_differ(func: Any, arguments: Any) -> bool:
    """Whether a call makes tensors of ones that do not lie in the order of their dimensions."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func.overloadpacket in _KNOWN:
        return False
    if func.is_view or schema_of(func).is_mutable:
        return False
    given = (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor))
    return any(leaf.layout is torch.strided and not leaf.is_contiguous() for leaf in given)


def _as_run(func: OpOverload, args: Any, kwargs: Any) -> list[_Layout | None]:
    """The layout of each tensor that a call of the kernel returns on stand-ins. Raises what the kernel does."""
    devices = {leaf.device for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    generators = [device for device in devices if device.type == "cuda"]
    with ExitStack() as stack:
        stack.enter_context(torch_private.outside_of_modes())
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch_private.WithoutAutocast())
        stack.enter_context(torch.random.fork_rng(generators, device_type="cuda"))
        args, kwargs = pytree.tree_map_only(torch.Tensor, _stand_in, (args, kwargs))
        made = torch_private.direct(func)(*args, **kwargs)
    return [_layout(leaf) for leaf in pytree.tree_leaves(made)]


def _layout(value: Any) -> _Layout | None:
    dense = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return (tuple(value.shape), tuple(value.stride())) if dense else None


def _signed(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor laid out alike, of values that every kernel takes: one half, or zero of whole numbers."""
    extent = 0
    if 0 not in tensor.shape:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    value = 0.5 if tensor.dtype.is_floating_point or tensor.dtype.is_complex else 0
    flat = torch.full((extent,), value, dtype=tensor.dtype, device=tensor.device)
    return flat.as_strided(tensor.shape, tensor.stride())
