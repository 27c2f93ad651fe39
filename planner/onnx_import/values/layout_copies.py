"""The operands that torch copies into a dense layout before an op reads them, and saves instead of the originals."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from .values import Call, Value, row_major
from .view_ops import reshaped


def copied_inputs(call: Call) -> tuple[tuple[int, int], ...]:
    """(position, bytes of the copy) for every input of a call that is copied."""
    if call.domain or not call.outputs:
        return ()
    if call.op_type == "MatMul":
        return tuple(_product_operands(call))
    source = call.inputs[0] if call.inputs else None
    if source is None or is_dense(source):
        return ()
    if call.op_type == "InstanceNormalization" or (call.op_type == "GroupNormalization" and not _channels_last(source)):
        return ((0, source.nbytes),)
    return ()


def is_dense(value: Value) -> bool:
    """Whether a value lies contiguously in the order of its dimensions."""
    dense = row_major(value.shape)
    return all(size == 1 or a == b for size, a, b in zip(value.shape, value.strides, dense, strict=True))


def _channels_last(value: Value) -> bool:
    """Whether an image lies contiguously with its channels innermost, which norms read as it is."""
    if len(value.shape) != 4:
        return False
    moved = tuple(value.strides[axis] for axis in (0, 2, 3, 1))
    return moved == row_major(tuple(value.shape[axis] for axis in (0, 2, 3, 1)))


def _one_of_two_batches(first: Value, second: Value) -> bool:
    """Whether exactly one of two operands of rank three has a batch of one, which torch drops."""
    both = len(first.shape) == len(second.shape) == 3
    return both and (first.shape[0] == 1) != (second.shape[0] == 1)


def _product_operands(call: Call) -> Iterator[tuple[int, int]]:
    """The operands of torch.matmul whose batch dimensions cannot be joined where they lie.

    A product with a matrix joins all rows of the other operand (where the matrix is trained; else torch
    multiplies without a copy). Otherwise both are repeated over the batch and joined for one batched product.
    """
    first, second = call.inputs[0], call.inputs[1]
    if first is None or second is None:
        return
    ranks = len(first.shape), len(second.shape)
    if max(ranks) < 3:
        return
    if min(ranks) < 3 or _one_of_two_batches(first, second):
        by_second = ranks[1] < 3 or (ranks[0] > 2 and second.shape[0] == 1)
        matrix, many = (second, first) if by_second else (first, second)
        if matrix.from_file and not matrix.owner.is_leaf:
            return  # computed from constants: nothing there is trained
        shape, strides = many.shape, many.strides
        if many is second:
            shape, strides = (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
        if reshaped(shape, strides, (prod(shape[:-1]), shape[-1])) is None:
            yield (0 if many is first else 1), many.nbytes
        return
    batch = call.outputs[0].shape[:-2]
    for position, value in enumerate((first, second)):
        lead = (1,) * (len(batch) + 2 - len(value.shape))
        own, steps = lead + value.shape[:-2], (0,) * len(lead) + value.strides[:-2]
        strides = tuple(0 if a == 1 != b else s for a, b, s in zip(own, batch, steps, strict=True))
        rows = value.shape[-2:]
        if reshaped((*batch, *rows), (*strides, *value.strides[-2:]), (prod(batch), *rows)) is None:
            yield position, value.nbytes // max(prod(value.shape[:-2]), 1) * prod(batch)
