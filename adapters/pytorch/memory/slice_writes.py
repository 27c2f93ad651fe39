"""Writes into slices of a tensor: eager training writes in place, tracing makes calls that return a second tensor.

``x[1].add_(y)`` is traced as a view, an ``add`` of the view, and a ``select_scatter`` of the sum into ``x``;
``x[:, 0] = y`` as a view, a ``copy`` over it, and a scatter. The first call may write over the view; the scatter then
finds its work done. SLICE_KERNELS has the calls that round once, and those that eager training runs in place on the
gates of recurrent layers. Eager training may run others out of place, and their layout could show in the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .inplace_kernels import KERNELS, InPlaceKernel

aten = torch.ops.aten

VIEWS = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}
"""Scatter -> the view of its first argument that it writes its second one into."""


def _scatter(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def scatter_(tensor: torch.Tensor, source: torch.Tensor, *where: int) -> torch.Tensor:
        """``tensor`` with ``source`` written into a slice of it, unless ``source`` is that slice."""
        part = view(tensor, *where)
        if part.data_ptr() != source.data_ptr():
            part.copy_(source)
        return tensor

    return scatter_


WRITES: dict[Any, InPlaceKernel] = {
    aten.copy.default: InPlaceKernel(aten.copy_.default),
    **{scatter: InPlaceKernel(_scatter(view)) for scatter, view in VIEWS.items()},
}
"""Calls that return their first argument with values written into it."""

SLICE_KERNELS: dict[Any, InPlaceKernel] = {aten.fill.Scalar: InPlaceKernel(aten.fill_.Scalar)} | {
    call: KERNELS[call]
    for call in (
        aten.abs.default, aten.add.Tensor, aten.clamp.default, aten.clamp_min.default, aten.div.Tensor,
        aten.hardtanh.default, aten.masked_fill.Scalar, aten.mul.Scalar, aten.mul.Tensor, aten.neg.default,
        aten.relu.default, aten.sigmoid.default, aten.sub.Tensor, aten.tanh.default, aten.threshold.default,
    )
} | WRITES  # fmt: skip
"""Calls that may write over a view of a slice of a tensor."""


def scatters_of(
    node: fx.Node, view: fx.Node, nbytes: int, readers: Callable[[fx.Node], Sequence[fx.Node]]
) -> list[fx.Node]:
    """The scatters that write the result of ``node`` back into the slice that ``view`` is, innermost first.

    The last one makes a tensor of ``nbytes``; each is the only reader (``readers``) of the one before it. Empty if the
    result goes elsewhere.
    """
    found: list[fx.Node] = []
    while True:
        reading = readers(node)
        scatter = reading[0] if len(reading) == 1 else node
        if scatter.target not in VIEWS or scatter.args[1] is not node or scatter.kwargs:
            return []
        base, _, *where = scatter.args
        if not isinstance(base, fx.Node) or not _is_slice(view.meta["val"], base.meta["val"], scatter.target, where):
            return []
        found.append(scatter)
        whole = base.meta["val"]
        if whole.numel() * whole.element_size() == nbytes:
            return found
        node, view = scatter, base


def _is_slice(view: torch.Tensor, base: torch.Tensor, scatter: Any, where: Sequence[Any]) -> bool:
    """Whether ``view`` is the slice of ``base``, in the same storage, that a scatter writes into."""
    written = VIEWS[scatter](torch.empty_strided(base.shape, base.stride(), device="meta"), *where)
    offset = written.storage_offset() + base.storage_offset()
    layouts = (view.shape, view.stride(), view.storage_offset()), (written.shape, written.stride(), offset)
    return view.dtype is base.dtype and layouts[0] == layouts[1]
