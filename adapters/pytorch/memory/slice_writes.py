"""Writes into parts of a tensor: tracing makes them calls that return a second tensor; eager training writes in place.

``x[1].add_(y)`` is traced as a view, an ``add`` of it, and a ``select_scatter`` of the sum into ``x``; ``x[:, 0] = y``
as a view, a ``copy`` over it, and a scatter. The first call may write over the view, the scatter then finds its work
done. Calls whose result is that of one rounding have a row for that, and those that eager runs in place on the gates of
recurrent layers; with others, which eager may run out of place, the layout could show in a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .inplace_kernels import ROWS, Row

aten = torch.ops.aten

VIEWS = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}
"""For each scatter the view of its first argument that it writes its second one into."""


def _scatter(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def scatter_(tensor: torch.Tensor, source: torch.Tensor, *where: int) -> torch.Tensor:
        """``source`` written into a part of ``tensor``, unless it is that part."""
        part = view(tensor, *where)
        if part.data_ptr() != source.data_ptr():
            part.copy_(source)
        return tensor

    return scatter_


WRITES: dict[Any, Row] = {
    aten.copy.default: Row(aten.copy_.default),
    **{scatter: Row(_scatter(view)) for scatter, view in VIEWS.items()},
}
"""Calls that return their first argument with something written into it, and rows to write there."""

PARTS: dict[Any, Row] = {aten.fill.Scalar: Row(aten.fill_.Scalar)} | {
    call: ROWS[call]
    for call in (
        aten.abs.default, aten.add.Tensor, aten.clamp.default, aten.clamp_min.default, aten.div.Tensor,
        aten.hardtanh.default, aten.masked_fill.Scalar, aten.mul.Scalar, aten.mul.Tensor, aten.neg.default,
        aten.relu.default, aten.sigmoid.default, aten.sub.Tensor, aten.tanh.default, aten.threshold.default,
    )
} | WRITES  # fmt: skip
"""Calls that may write over a view of a part of a tensor."""


def fill_with_numbers(graph: fx.Graph) -> None:
    """Let ``x[0] = 0.5`` write a number: tracing makes a tensor of it, in a call after the one that made ``x``."""
    for node in graph.find_nodes(op="call_function", target=aten.fill.Tensor):
        lifted = node.args[1]
        if lifted.target is not aten.lift_fresh_copy.default or list(lifted.users) != [node]:
            continue
        constant = lifted.args[0]
        value = getattr(graph.owning_module, str(constant.target)) if constant.op == "get_attr" else None
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
            node.target, node.args = aten.fill.Scalar, (node.args[0], value.item())
            graph.erase_node(lifted)
            if not constant.users:
                graph.erase_node(constant)


def scatters_of(
    node: fx.Node, view: fx.Node, nbytes: int, readers: Callable[[fx.Node], Sequence[fx.Node]]
) -> list[fx.Node]:
    """The scatters that put the result of ``node`` back where ``view`` looks, from the innermost one; none if not so.

    The last one fills memory of ``nbytes``; each is the only one that reads what the one before it made, as
    ``readers`` say.
    """
    found: list[fx.Node] = []
    while True:
        reading = readers(node)
        scatter = reading[0] if len(reading) == 1 else node
        if scatter.target not in VIEWS or scatter.args[1] is not node or scatter.kwargs:
            return []
        base, _, *where = scatter.args
        if not isinstance(base, fx.Node) or not _is_part(view.meta["val"], base.meta["val"], scatter.target, where):
            return []
        found.append(scatter)
        whole = base.meta["val"]
        if whole.numel() * whole.element_size() == nbytes:
            return found
        node, view = scatter, base


def _is_part(looked: torch.Tensor, base: torch.Tensor, scatter: Any, where: Sequence[Any]) -> bool:
    """Whether one tensor looks at the part of another one that a scatter writes into, both in one memory."""
    part = VIEWS[scatter](torch.empty_strided(base.shape, base.stride(), device="meta"), *where)
    offset = part.storage_offset() + base.storage_offset()
    layouts = (looked.shape, looked.stride(), looked.storage_offset()), (part.shape, part.stride(), offset)
    return looked.dtype is base.dtype and layouts[0] == layouts[1]
