"""Ops that move elements: each gradient moves them back."""

from __future__ import annotations

import numpy as np

from ....planner.onnx_import.meaning.element_sources import padded_sources
from ..forward.upgrade import pad_sizes, slice_numbers
from ..nodes.call_view import CallView
from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable


def unviewed(at: CallView, g: Tensor) -> Tensor:
    """The gradient of the input of a bijective view, of that of its output."""
    if at.call.op_type == "Transpose":
        order = tuple(at.attr("perm", tuple(reversed(range(at.rank)))))
        return g.transpose([order.index(axis) for axis in range(at.rank)])
    return g.reshape(at.shape)


def _reshape(call: Backward) -> None:
    call.give(0, unviewed(call, call.g))


def _concat(call: Backward) -> None:
    axis, start, g = call.axis(0), 0, call.g
    for position, value in enumerate(call.call.inputs):
        if value is None:
            continue
        if call.needs(position):
            call.give(position, g.cut(axis, start, start + value.shape[axis]))
        start += value.shape[axis]


def _split(call: Backward) -> None:
    parts = [
        call.arriving(at) or call.w.full(tuple(output.shape), 0.0, output.dtype)
        for at, output in enumerate(call.call.outputs)
    ]
    axis = call.axis(0)
    missing = call.shape[axis] - sum(part.shape[axis] for part in parts)
    if missing:
        shape = (*call.shape[:axis], missing, *call.shape[axis + 1 :])
        parts.append(call.w.full(shape, 0.0, call.dtype))
    call.give(0, call.w.concat(parts, axis))


def _slice(call: Backward) -> None:
    """Padded with zeros; where it steps, scattered along one dimension after the other."""
    starts, ends, axes, steps = slice_numbers(call)
    g = call.g
    before, after = [0] * call.rank, [0] * call.rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = call.shape[axis]
        taken = range(size)[slice(start, end if step > 0 or end >= -size else None, step)]
        if step == 1:
            before[axis], after[axis] = taken.start, size - taken.start - len(taken)
        else:
            g = _placed(g, [*taken], axis, size)
    call.give(0, g.pad(before, after))


def _placed(g: Tensor, places: list[int], axis: int, size: int) -> Tensor:
    """Entries of a dimension at their places in a longer one: a gather of them and of a zero behind them."""
    where = {place: at for at, place in enumerate(places)}
    wide = g.pad([0] * g.rank, [int(at == axis) for at in range(g.rank)])
    index = g.writer.ints(where.get(at, len(places)) for at in range(size))
    return g.writer.op(
        "Gather", wide, index, shape=(*g.shape[:axis], size, *g.shape[axis + 1 :]), dtype=g.dtype, axis=axis
    )


def _expand(call: Backward) -> None:
    call.give(0, call.g)


def _tile(call: Backward) -> None:
    sizes, axes = list[int](), list[int]()
    for old, new in zip(call.shape, call.out, strict=True):
        axes.append(len(sizes))
        sizes += [new // max(old, 1), old]
    call.give(0, call.g.reshape(sizes).sum(axes, keep=False))


def _pad(call: Backward) -> None:
    before, after = pad_sizes(call)
    mode, g = str(call.attr("mode", "constant")), call.g
    if call.needs(2):
        raise call.refused("a fill that is trained has no gradient here")
    if mode == "constant":
        return call.give(0, g.pad([-size for size in before], [-size for size in after]))
    for axis, size in enumerate(call.shape):
        if before[axis] or after[axis]:
            g = _folded(g, axis, padded_sources(size, before[axis], after[axis], mode), size)
    return call.give(0, g)


def _folded(g: Tensor, axis: int, sources: list[int], size: int) -> Tensor:
    """Entries of a dimension added up where they came from."""
    shape = (*g.shape[:axis], size, *g.shape[axis + 1 :])
    index = np.asarray(sources, np.int64).reshape([-1 if at == axis else 1 for at in range(g.rank)])
    places = g.writer.constant(index).expand(g.shape)
    zeros = g.writer.full(shape, 0.0, g.dtype)
    return g.writer.op("ScatterElements", zeros, places, g, shape=shape, axis=axis, reduction="add")


def _depth_to_space(call: Backward) -> None:
    block, (batch, channels, height, width) = int(call.attr("blocksize")), call.shape
    inner = channels // block**2
    g = call.g.reshape((batch, inner, height, block, width, block))
    order = (0, 1, 3, 5, 2, 4) if call.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    call.give(0, g.transpose(order).reshape(call.shape))


def _space_to_depth(call: Backward) -> None:
    block, (batch, channels, height, width) = int(call.attr("blocksize")), call.shape
    rows, columns = height // block, width // block
    if call.attr("mode", "DCR") == "CRD":
        g = call.g.reshape((batch, channels, block, block, rows, columns)).transpose((0, 1, 4, 2, 5, 3))
    else:
        g = call.g.reshape((batch, block, block, channels, rows, columns)).transpose((0, 3, 4, 1, 5, 2))
    call.give(0, g.reshape(call.shape))


def _trilu(call: Backward) -> None:
    k = call.w.constant(call.known(1).reshape(())) if call.has(1) else None
    call.give(0, call.w.op("Trilu", call.g, k, shape=call.shape, dtype=call.g.dtype, upper=int(call.attr("upper", 1))))


def _crop_or_pad(call: Backward) -> None:
    before, after = [0] * call.rank, [0] * call.rank
    for axis, (old, new) in enumerate(zip(call.shape, call.out, strict=True)):
        change = new - old
        before[axis] = change // 2 if change >= 0 else -(-change // 2)
        after[axis] = change - before[axis]
    call.give(0, call.g.pad([-size for size in before], [-size for size in after]))


MOVING: GradientTable = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"), _reshape),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "CenterCropPad": _crop_or_pad,
}
