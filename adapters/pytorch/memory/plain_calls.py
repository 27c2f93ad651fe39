"""Calls on a CPU that take no memory but their results, whatever their sizes.

One of them that was measured holds, at another size, its results of that size. Other kernels choose by size: a sum may
keep a buffer for each thread, a convolution take another algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from ..torch_private import pytree
from .inplace_kernels import KERNELS, InPlace
from .strides import Layout

_aten = torch.ops.aten
_COMPOSED = frozenset({_aten.native_dropout.default, _aten.native_dropout_backward.default})
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default})
_BY_INDEX = frozenset({
    _aten.embedding.default, _aten.embedding_dense_backward.default,
    _aten.nll_loss_forward.default, _aten.nll_loss_backward.default,
})  # fmt: skip
_PLAIN = frozenset({
    *(call for call in KERNELS if call not in _COMPOSED), *_PRODUCTS, *_BY_INDEX, _aten.clone.default,
    _aten._softmax.default, _aten._softmax_backward_data.default,
    _aten._log_softmax.default, _aten._log_softmax_backward_data.default,
})  # fmt: skip
"""Elementwise calls, those of the last dimension or of an index, and the matrix products of MKL."""

_FLOATS = (torch.float32, torch.float64)
_NUMBER_NBYTES = 16
"""A number among the arguments may become a tensor of so many bytes."""
_TELLING_NBYTES = 1024


class Form(NamedTuple):
    """What calls that differ in sizes alone have in common, and the bytes of the largest tensor of one of them."""

    key: str
    largest_nbytes: int

    @property
    def tells(self) -> bool:
        """Whether a call tells what calls of other sizes hold: a copy of a small tensor could be taken for a number."""
        return self.largest_nbytes >= _TELLING_NBYTES


def form_of(node: fx.Node, layouts: Callable[[fx.Node], Any], in_place: InPlace | None) -> Form | None:
    """The form of a call, None if its size may decide what memory it takes.

    Tensors are dense, so that no kernel copies them, and of one floating-point type, so that none is converted.
    """
    if node.target not in _PLAIN or (node.target in _PRODUCTS and not _by_mkl()):
        return None
    results = pytree.tree_map_only(torch.Tensor, Layout.of, node.meta["val"])
    given = fx.map_arg((node.args, node.kwargs), layouts)
    found = [leaf for leaf in pytree.tree_leaves((given, results), is_leaf=is_layout) if is_layout(leaf)]
    types = {layout.dtype for layout in found} - ({torch.int64} if node.target in _BY_INDEX else set())
    one_type = len(types) == 1 and types.issubset(_FLOATS)
    if not one_type or any(layout.device.type != "cpu" or not layout.is_dense for layout in found):
        return None
    form = _order if node.target in KERNELS else _order_and_ones
    forms = pytree.tree_map_only(Layout, form, (given, results), is_leaf=is_layout)
    key = repr((str(node.target), forms, None if in_place is None else in_place.argument))
    return Form(key, max(layout.nbytes for layout in found))


def is_number(nbytes: int) -> bool:
    """Whether memory inside a call is that of a number, which does not grow."""
    return abs(nbytes) <= _NUMBER_NBYTES


def is_layout(value: Any) -> bool:
    """Whether a leaf is a layout, which is a tuple itself."""
    return isinstance(value, Layout)


def _order(layout: Layout) -> Any:
    """What matters to elementwise calls: the order of the dimensions, if it is not that of the memory."""
    is_contiguous = list(layout.order) == sorted(layout.order, reverse=True)
    return layout.dtype, None if is_contiguous else layout.order


def _order_and_ones(layout: Layout) -> Any:
    """What matters to others: the order, and which dimensions have one element."""
    return layout.dtype, layout.order, tuple(min(size, 2) for size in layout.shape)


def _by_mkl() -> bool:
    """Whether matrix products of 32 and 64 bits are those of MKL, which takes no memory of PyTorch's allocator."""
    return torch.backends.mkl.is_available() and torch.backends.mkldnn.matmul.fp32_precision in ("none", "ieee")
