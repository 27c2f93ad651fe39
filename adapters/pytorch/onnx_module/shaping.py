"""Ops that move elements and read shapes: views, concatenation, padding, resizing."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....planner.onnx_import.meaning.element_sources import (
    COORDINATES,
    nearest_sources,
    padded_sources,
    resize_positions,
)
from .node import Node, Run, Table

_ALIGNED = ("half_pixel", "pytorch_half_pixel")


def _reshape(node: Node) -> Run:
    shape = node.out
    return lambda x, *_: x.reshape(shape)


def _transpose(node: Node) -> Run:
    order = node.attr("perm", tuple(range(node.rank))[::-1])
    return lambda x: x.permute(order)


def _concat(node: Node) -> Run:
    axis = node.axis(1, len(node.out))
    return lambda *parts: torch.cat(parts, axis)


def _split(node: Node) -> Run:
    axis = node.axis(0)
    sizes = [output.shape[axis] for output in node.call.outputs]
    cut = [*sizes, node.shape()[axis] - sum(sizes)]  # the reader leaves unused parts at the end out
    return lambda x, *_: x.split(cut, axis)[: len(sizes)]


def _slice(node: Node) -> Run:
    starts, ends = node.ints("starts", 1), node.ints("ends", 2)
    if starts is None or ends is None:
        raise node.refused("it has no bounds")
    axes = node.ints("axes", 3) or tuple(range(len(starts)))
    steps = node.ints("steps", 4) or (1,) * len(starts)
    shape = node.shape()
    cuts, flips = [slice(None)] * node.rank, list[int]()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= node.rank
        taken = range(shape[axis])[slice(start, end if step > 0 or end >= -shape[axis] else None, step)]
        if step > 0:
            cuts[axis] = slice(taken.start, max(taken.stop, taken.start), step)
        else:
            flips.append(axis)
            first, last = (taken[-1], taken[0]) if len(taken) else (0, -1)
            cuts[axis] = slice(first, last + 1, -step)
    index = tuple(cuts)
    return (lambda x, *_: x[index].flip(flips)) if flips else (lambda x, *_: x[index])


def _expand(node: Node) -> Run:
    shape = node.out
    return lambda x, *_: x.expand(shape)


def _tile(node: Node) -> Run:
    counts = [new // max(old, 1) for new, old in zip(node.out, node.shape(), strict=True)]
    return lambda x, *_: x.repeat(counts)


def _trilu(node: Node) -> Run:
    diagonal = int(node.number("k", 1, 0))
    return (lambda x, *_: x.triu(diagonal)) if node.attr("upper", 1) else (lambda x, *_: x.tril(diagonal))


def _depth_to_space(node: Node) -> Run:
    block, shape = node.attr("blocksize"), node.shape()
    if node.attr("mode", "DCR") == "CRD":
        return lambda x: F.pixel_shuffle(x, block)
    batch, channels, height, width = shape
    inner = (batch, block, block, channels // block**2, height, width)
    out = node.out
    return lambda x: x.view(inner).permute(0, 3, 4, 1, 5, 2).reshape(out)


def _space_to_depth(node: Node) -> Run:
    block = node.attr("blocksize")
    if node.attr("mode", "DCR") == "CRD":
        return lambda x: F.pixel_unshuffle(x, block)
    batch, channels, height, width = node.shape()
    inner, out = (batch, channels, height // block, block, width // block, block), node.out
    return lambda x: x.view(inner).permute(0, 3, 5, 1, 2, 4).reshape(out)


def _pad(node: Node) -> Run:
    mode, rank = str(node.attr("mode", "constant")), node.rank
    pads = node.ints("pads", 1) or node.ints("paddings") or ()
    axes = [axis % rank for axis in node.ints("axes", 3) or range(rank)]
    before, after = [0] * rank, [0] * rank
    for at, axis in enumerate(axes):
        before[axis], after[axis] = pads[at], pads[len(axes) + at]
    flat = [size for pair in zip(before[::-1], after[::-1], strict=True) for size in pair]
    if mode == "constant":
        fill = node.number("value", 2, 0) or 0
        return lambda x, *_: F.pad(x, flat, value=fill)
    first = next((axis for axis in range(rank) if before[axis] or after[axis]), rank)
    shape = node.shape()
    most = [size - (mode == "reflect") for size in shape]
    fits = mode == "edge" or all(max(sizes) <= limit for *sizes, limit in zip(before, after, most, strict=True))
    if rank - first > 3 or min(flat) < 0 or not fits:  # torch crops last, and wraps and reflects once
        moved = [axis for axis in range(rank) if before[axis] or after[axis]]
        picks = [(axis, padded_sources(shape[axis], before[axis], after[axis], mode)) for axis in moved]
        return lambda x, *_: _taken(x, picks)
    names = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}
    # torch wants one or two dimensions in front of the padded ones
    cut, out = flat[: 2 * max(rank - first, 1)], node.out
    lead = (1, prod(shape[:first]), *shape[first:])
    return lambda x, *_: F.pad(x.reshape(lead), cut, mode=names[mode]).reshape(out)


def _resize(node: Node) -> Run:
    mode, how = str(node.attr("mode", "nearest")), str(node.attr("coordinate_transformation_mode", "half_pixel"))
    old, new = node.shape(), node.out
    at = 1 if node.call.op_type == "Upsample" or node.opset < 11 else 2
    if node.call.op_type == "Upsample" or node.opset < 11:
        how = "asymmetric"
    scales = node.attr("scales")
    if scales is None and node.has(at) and node.shape(at) != (0,):
        scales = tuple(map(float, node.known(at)))
    axes = [axis % node.rank for axis in node.attr("axes", ())] or range(node.rank)
    factors = [b / max(a, 1) for a, b in zip(old, new, strict=True)]
    for axis, scale in zip(axes, scales or (), strict=False):
        factors[axis] = float(scale)
    if old == new:  # a copy whatever the factors
        return lambda x, *_: x.clone()
    moved = [axis for axis in range(node.rank) if old[axis] != new[axis] or factors[axis] != 1]
    if node.attr("antialias", 0) or node.attr("exclude_outside", 0) or how not in COORDINATES:
        raise node.refused("antialias, exclude_outside and cropping are not built")
    if mode == "nearest":
        rounding = node.attr("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
        return _nearest([(axis, nearest_sources(old[axis], new[axis], factors[axis], how, rounding)) for axis in moved])
    smooth = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}
    kind = smooth.get((mode, node.rank - 2))
    corners = how == "align_corners"
    exact = all(abs(factors[axis] * old[axis] - new[axis]) < 1e-3 for axis in moved)
    if corners and not exact:
        raise node.refused("align_corners with a scale that gives no whole size is not built")
    single = how == "half_pixel" or all(new[axis] > 1 for axis in moved)
    fits = corners or (how in _ALIGNED and exact and single)
    if kind is None or not fits or moved[0] < 2 or (mode == "cubic" and node.attr("cubic_coeff_a", -0.75) != -0.75):
        if mode == "linear":
            places = [resize_positions(old[axis], new[axis], factors[axis], how) for axis in moved]
            return _linear([*zip(moved, map(torch.from_numpy, places), strict=True)])
        raise node.refused(f"mode {mode} with {how} over dimensions {moved} of {node.rank} is not torch's")
    size = new[2:]
    return lambda x, *_: F.interpolate(x, size, mode=kind, align_corners=corners)


def _nearest(picks: list[tuple[int, list[int]]]) -> Run:
    """Nearest neighbours: F.interpolate where it takes the same ones, else the rows one axis at a time."""

    def run(x: Tensor, *_: Any) -> Tensor:
        sizes = list(x.shape)
        for axis, index in picks:
            sizes[axis] = len(index)
        spatial = [axis for axis, _ in picks]
        if min(spatial) >= 2 and x.dim() in (3, 4, 5) and _floors(x.shape, picks):
            return F.interpolate(x, sizes[2:], mode="nearest")
        return _taken(x, picks)

    return run


def _taken(x: Tensor, picks: list[tuple[int, list[int]]]) -> Tensor:
    """The rows of a tensor, one axis at a time."""
    for axis, index in picks:
        x = x.index_select(axis, torch.tensor(index, device=x.device))
    return x


def _floors(shape: Any, picks: list[tuple[int, list[int]]]) -> bool:
    """Whether an axis takes the elements that F.interpolate does: it multiplies by a float32 factor."""
    for axis, index in picks:
        factor = torch.tensor(shape[axis] / len(index), dtype=torch.float32)
        if index != (torch.arange(len(index)) * factor).long().clamp(max=shape[axis] - 1).tolist():
            return False
    return True


def _linear(picks: list[tuple[int, Tensor]]) -> Run:
    """Linear interpolation that F.interpolate has no setting for, one axis at a time."""

    def run(x: Tensor, *_: Any) -> Tensor:
        for axis, positions in picks:
            at = positions.to(x.device).clamp(0, x.shape[axis] - 1)
            low = at.floor().long()
            high = (low + 1).clamp(max=x.shape[axis] - 1)
            share = (at - low).to(x.dtype).reshape([-1 if k == axis else 1 for k in range(x.dim())])
            x = x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share
        return x

    return run


def _crop_or_pad(node: Node) -> Run:
    flat = list[int]()
    node.known(1)
    for old, new in zip(node.shape()[::-1], node.out[::-1], strict=True):
        change = new - old
        before = change // 2 if change >= 0 else -(-change // 2)
        flat += [before, change - before]
    return lambda x, *_: F.pad(x, flat)


def _shape_of(node: Node) -> Run:
    part = slice(node.attr("start", 0), node.attr("end"))
    numbers = [node.operand(0).numel] if node.call.op_type == "Size" else list(node.shape()[part])
    out = node.out
    return lambda x: torch.tensor(numbers, dtype=torch.int64, device=x.device).reshape(out)


def _filled(node: Node) -> Run:
    shape, dtype, fill = node.out, node.out_dtype, (node.attr("value") or (0,))[0]
    return lambda *_: torch.full(shape, fill, dtype=dtype)


def _range(node: Node) -> Run:
    dtype, count = node.out_dtype, node.out[0]
    return lambda start, _, step: start + torch.arange(count, dtype=dtype, device=start.device) * step


def _eye(node: Node) -> Run:
    rows, columns = node.out
    shift, dtype = node.attr("k", 0), node.out_dtype
    node.taken.add(0)  # it reads the shape alone
    return lambda _: torch.ones(rows, columns, dtype=dtype).triu(shift).tril(shift)


def _fold(node: Node) -> Run:
    size, block = node.ints("image_shape", 1), node.ints("block_shape", 2)
    if size is None or block is None or len(size) != 2:
        raise node.refused("torch folds images of two dimensions")
    pads = node.attr("pads", (0, 0, 0, 0))
    if pads[:2] != pads[2:]:
        raise node.refused("torch folds with equal pads on both sides")
    dilation, strides = node.attr("dilations", (1, 1)), node.attr("strides", (1, 1))
    return lambda x, *_: F.fold(x, size, block, dilation, pads[:2], strides)


OPS: Table = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "Trilu": _trilu,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "CenterCropPad": _crop_or_pad,
    "Shape": _shape_of,
    "Size": _shape_of,
    "ConstantOfShape": _filled,
    "Range": _range,
    "EyeLike": _eye,
    "Col2Im": _fold,
}
FUSED: Table = {"Split": _split}
