"""Gathering, whose gradient adds up at the indices, and scattering, whose gradient is gathered."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable


def _wrapped(indices: Tensor, size: int) -> Tensor:
    """Indices counted from the front, as int64."""
    wide = indices.cast("int64")
    return (wide < 0).where(wide + size, wide)


def _scattered(call: Backward, indices: Tensor, g: Tensor) -> Tensor:
    """``g`` added up in zeros of the first input's shape at blocks of indices."""
    zeros = call.w.full(call.shape, 0.0, call.dtype)
    return call.w.op("ScatterND", zeros, indices, g, shape=call.shape, dtype=call.dtype, reduction="add")


def _gather(call: Backward) -> None:
    """Rows of the dimension brought to the front are added up at their indices."""
    axis, known = call.axis(0), call.operand(1).known
    g = call.g
    if known is not None and known.size == 1:
        start = int(known.ravel()[0]) % call.shape[axis]
        before = [start if at == axis else 0 for at in range(call.rank)]
        after = [call.shape[axis] - start - 1 if at == axis else 0 for at in range(call.rank)]
        ones = [1 if at == axis else size for at, size in enumerate(call.shape)]
        return call.give(0, g.reshape(ones).pad(before, after))
    indices = call.w.constant(np.asarray(known)) if known is not None else call.x(1)
    rank, count = indices.rank, prod(indices.shape)
    front = (*range(axis, axis + rank), *range(axis), *range(axis + rank, g.rank))
    rest = [size for at, size in enumerate(call.shape) if at != axis]
    rows = g.transpose(front).reshape((count, *rest))
    flat = _wrapped(indices, call.shape[axis]).reshape((count, 1))
    shape = (call.shape[axis], *rest)
    zeros = call.w.full(shape, 0.0, call.dtype)
    made = call.w.op("ScatterND", zeros, flat, rows, shape=shape, dtype=call.dtype, reduction="add")
    back = (*range(1, axis + 1), 0, *range(axis + 1, call.rank))
    return call.give(0, made.transpose(back))


def _gather_elements(call: Backward) -> None:
    axis = call.axis(0)
    zeros = call.w.full(call.shape, 0.0, call.dtype)
    indices = call.x(1)
    call.give(0, call.w.op(
        "ScatterElements", zeros, indices, call.g, shape=call.shape, dtype=call.dtype, axis=axis, reduction="add"
    ))  # fmt: skip


def _gather_blocks(call: Backward) -> None:
    """With batch dimensions, the places in these go before the indices."""
    batch, indices = int(call.attr("batch_dims", 0)), call.x(1).cast("int64")
    if batch:
        lead = indices.shape[:-1]
        places = np.stack(list(np.indices(lead))[:batch], -1).astype(np.int64)
        indices = call.w.concat([call.w.constant(places), indices], len(lead))
    call.give(0, _scattered(call, indices, call.g))


def _scatter_elements(call: Backward) -> None:
    axis, how = call.axis(0), str(call.attr("reduction", "none"))
    if how not in ("none", "add"):
        raise call.refused(f"reduction {how} has no gradient here")
    g, shape = call.g, call.shape_of(1)
    if call.needs(2):
        call.give(2, call.w.op("GatherElements", g, call.x(1), shape=shape, dtype=g.dtype, axis=axis))
    if call.needs(0):
        if how == "none":
            zeros = call.w.full(shape, 0.0, g.dtype)
            g = call.w.op("ScatterElements", g, call.x(1), zeros, shape=g.shape, dtype=g.dtype, axis=axis)
        call.give(0, g)


def _scatter_blocks(call: Backward) -> None:
    how = str(call.attr("reduction", "none"))
    if how not in ("none", "add"):
        raise call.refused(f"reduction {how} has no gradient here")
    g, shape = call.g, call.shape_of(2)
    if call.needs(2):
        call.give(2, call.w.op("GatherND", g, call.x(1), shape=shape, dtype=g.dtype))
    if call.needs(0):
        if how == "none":
            zeros = call.w.full(shape, 0.0, g.dtype)
            g = call.w.op("ScatterND", g, call.x(1), zeros, shape=g.shape, dtype=g.dtype)
        call.give(0, g)


def _compress(call: Backward) -> None:
    wanted = [at for at, kept in enumerate(call.known(1).ravel().tolist()) if kept]
    whole = "axis" not in call.call.attributes
    axis = 0 if whole else call.axis(0)
    shape = (prod(call.shape),) if whole else call.shape
    rest = [size for at, size in enumerate(shape) if at != axis]
    rows = call.g.transpose((axis, *(at for at in range(len(shape)) if at != axis)))
    zeros = call.w.full((shape[axis], *rest), 0.0, call.dtype)
    index = call.w.constant(np.asarray(wanted, np.int64).reshape(-1, 1))
    made = call.w.op("ScatterND", zeros, index, rows, shape=zeros.shape, dtype=call.dtype)
    back = (*range(1, axis + 1), 0, *range(axis + 1, len(shape)))
    call.give(0, made.transpose(back).reshape(call.shape))


def _reverse_sequence(call: Backward) -> None:
    """The same turn back."""
    known = call.operand(1).known
    lengths = call.x(1) if known is None else call.w.constant(np.asarray(known))
    settings: dict[str, Any] = {
        "batch_axis": int(call.attr("batch_axis", 1)),
        "time_axis": int(call.attr("time_axis", 0)),
    }
    call.give(0, call.w.op("ReverseSequence", call.g, lengths, shape=call.shape, dtype=call.dtype, **settings))


INDEXING: GradientTable = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_blocks,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_blocks,
    "Compress": _compress,
    "ReverseSequence": _reverse_sequence,
}
