"""The work of one aten call, computed from the fake tensors that tracing left on its node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from ..memory.allocations import tensors
from ..torch_private import OpOverload, pytree, schema_of, storage_key

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class NodeWork:
    """Floating-point operations (a multiply-add is two), bytes read and written, and kernel launches of one call.

    ``half``: the first floating-point result has at most 16 bits.
    """

    flops: int
    traffic_nbytes: int
    kernels: int
    half: bool


_NOTHING = NodeWork(0, 0, 0, False)

_UNINITIALIZED = frozenset({
    aten.empty, aten.empty_like, aten.empty_permuted, aten.empty_strided, aten.new_empty, aten.new_empty_strided,
})  # fmt: skip

_READS_NO_VALUES = frozenset({
    aten.full_like, aten.new_full, aten.new_ones, aten.new_zeros, aten.ones_like, aten.rand_like, aten.randint_like,
    aten.randn_like, aten.zeros_like,
})  # fmt: skip
"""Ops that take a tensor only for its shape."""

_PICKS_ROWS = frozenset({aten.embedding, aten.gather, aten.index, aten.index_select, aten.take})
"""Ops that read as much of their first tensor as they return."""

_PICKS_BY_TARGET = frozenset({aten.nll_loss_forward, aten.nll_loss2d_forward})
"""Ops that read one element of their first tensor per element of the second."""

_ATTENTION = frozenset({
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_fused_attention_overrideable,
})  # fmt: skip
_ATTENTION_BACKWARD = frozenset({
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
    aten._scaled_dot_product_fused_attention_overrideable_backward,
})  # fmt: skip
_QUERY_AT = {
    aten._scaled_dot_product_flash_attention: 0,
    aten._scaled_dot_product_flash_attention_backward: 1,
    aten._scaled_dot_product_cudnn_attention: 0,
    aten._scaled_dot_product_cudnn_attention_backward: 1,
}
"""The position of the query among the arguments of attention whose heads may be grouped."""
_RECURRENT = frozenset({aten.mkldnn_rnn_layer, aten._cudnn_rnn})
_RECURRENT_BACKWARD = frozenset({aten.mkldnn_rnn_layer_backward, aten._cudnn_rnn_backward})


def work_of(node: fx.Node) -> NodeWork:
    """The work of one call; none for views, elements of a tuple and uninitialized memory."""
    if not isinstance(node.target, OpOverload):
        return _NOTHING
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))
    given = [tensor for argument in node.all_input_nodes for tensor in tensors(argument)]
    op, outputs = node.target.overloadpacket, tensors(node)
    known = {storage_key(tensor) for tensor in given}
    views = not schema_of(node.target).is_mutable and all(storage_key(tensor) in known for tensor in outputs)
    if op in _UNINITIALIZED or views:
        return _NOTHING
    floating = [tensor for tensor in outputs if tensor.is_floating_point()]
    kernels = sum(args[10]) if op is aten.convolution_backward else 1
    traffic = _read_nbytes(op, given, outputs) + sum(_nbytes(tensor) for tensor in outputs)
    flops = _flops(op, args, kwargs, node.meta.get("val"))
    return NodeWork(flops, traffic, kernels, bool(floating) and floating[0].element_size() <= 2)


def _nbytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _read_nbytes(op: Any, given: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    if op in _READS_NO_VALUES or not given:
        return 0
    first, others = _nbytes(given[0]), sum(_nbytes(tensor) for tensor in given[1:])
    if op in _PICKS_ROWS:
        first = min(first, _nbytes(outputs[0]))
    elif op in _PICKS_BY_TARGET:
        first = given[1].numel() * given[0].element_size()
    return first + others


def _flops(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    if op is aten.convolution_backward:
        # Each gradient costs what the forward costs. PyTorch's own formula ignores groups in the weight's gradient.
        gradient, *operands = args[:3]
        forward = flop_registry[aten.convolution](*operands, None, *args[4:8], out_val=gradient)
        return int(forward * sum(args[10][:2]))
    if op in _RECURRENT:
        return _recurrent_flops(args)
    if op in _RECURRENT_BACKWARD:
        return 2 * _recurrent_flops(args)
    if op in _ATTENTION:
        op = aten._scaled_dot_product_flash_attention
    elif op in _ATTENTION_BACKWARD:
        op = aten._scaled_dot_product_flash_attention_backward
    if op not in flop_registry:
        return 0
    if op in _QUERY_AT:
        args = _ungrouped(args, _QUERY_AT[op])
    return int(flop_registry[op](*args, **kwargs, out_val=result))


def _ungrouped(args: tuple[Any, ...], query: int) -> tuple[Any, ...]:
    """Arguments of attention with shapes of key and value as if each head of the query had its own.

    The formula of torch 2.11 refuses groups of heads. The work is the same.
    """
    heads = args[query].shape[1]
    wide = (torch.Size((each.shape[0], heads, *each.shape[2:])) for each in args[query + 1 : query + 3])
    return (*args[: query + 1], *wide, *args[query + 3 :])


def _recurrent_flops(args: tuple[Any, ...]) -> int:
    """Every weight matrix multiplies every row of the first argument, [T, N, C] or packed [T * N, C]."""
    rows = args[0].numel() // args[0].shape[-1]
    matrices = [leaf for leaf in pytree.tree_leaves(args[1:3]) if isinstance(leaf, torch.Tensor) and leaf.dim() == 2]
    return int(2 * rows * sum(matrix.numel() for matrix in matrices))
