"""Ops whose form changed since the opset of the file, written in the opset of the step."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ....planner.onnx_import.values.values import Value
from ..nodes.call_view import CallView
from ..nodes.writer import Tensor, Writer, number_of
from .forward_call import Forward, ForwardTable, Made


def view_of(at: CallView, x: Tensor, output: Value, writer: Writer, name: str) -> Tensor:
    """One output of a call that moves elements of ``x`` only."""
    kind, names, out = at.call.op_type, (name,), tuple(output.shape)
    spec = [(out, output.dtype)]
    if kind in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        settings: dict[str, Any] = {"allowzero": 1} if 0 in out else {}
        return writer.several("Reshape", (x, writer.ints(out)), spec, names=names, **settings)[0]
    if kind == "Transpose":
        order = tuple(at.attr("perm", tuple(reversed(range(at.rank)))))
        return writer.several("Transpose", (x,), spec, names=names, perm=order)[0]
    if kind == "Expand":
        return writer.several("Expand", (x, writer.ints(out)), spec, names=names)[0]
    if kind == "Slice":
        return writer.several("Slice", (x, *map(writer.ints, slice_numbers(at))), spec, names=names)[0]
    if kind == "Split":
        axis = at.axis(0)
        start = 0
        for one in at.call.outputs:
            if one is output:
                break
            start += one.shape[axis]
        ends = (writer.ints((number,)) for number in (start, start + out[axis], axis))
        return writer.several("Slice", (x, *ends), spec, names=names)[0]
    if kind == "Gather":
        return writer.several(
            "Gather", (x, writer.constant(at.known(1))), spec, names=names, axis=at.axis(0)
        )[0]  # fmt: skip
    assert kind in ("Identity", "Cast"), f"{kind} is no view"
    return writer.several("Identity", (x,), spec, names=names)[0]


def slice_numbers(at: CallView) -> tuple[tuple[int, ...], ...]:
    """Starts, ends, axes and steps of a Slice."""
    starts, ends = at.ints("starts", 1) or (), at.ints("ends", 2) or ()
    axes = at.ints("axes", 3) or tuple(range(len(starts)))
    steps = at.ints("steps", 4) or (1,) * len(starts)
    return starts, ends, tuple(axis % at.rank for axis in axes), steps


def _moved(call: Forward) -> Made:
    names = iter((*call.names, *("",) * len(call.call.outputs)))
    return Made(
        tuple(view_of(call, call.x(), output, call.w, next(names) or output.name) for output in call.call.outputs)
    )


def _reduction(call: Forward) -> Made:
    axes = call.axes()
    settings: dict[str, object] = {"keepdims": int(call.attr("keepdims", 1))}
    if not axes:
        settings["noop_with_empty_axes"] = 1
    if call.x().dtype != call.call.outputs[0].dtype:
        return Made((call.x().cast(call.call.outputs[0].dtype).reduce(
            call.call.op_type, axes, keep=bool(settings["keepdims"])),))  # fmt: skip
    return call.made(call.call.op_type, call.x(), call.w.ints(axes) if axes else None, **settings)


def softmax_axes(at: CallView) -> tuple[tuple[int, ...], int]:
    """The shape in which a softmax runs, and its axis; before opset 13 the dimensions from ``axis`` on are one."""
    axis = at.axis(-1 if at.opset >= 13 else 1)
    if at.opset >= 13 or axis == at.rank - 1:
        return at.shape, axis
    return (prod(at.shape[:axis]), prod(at.shape[axis:])), 1


def _softmax(call: Forward) -> Made:
    shape, axis = softmax_axes(call)
    x = call.x().cast(call.call.outputs[0].dtype)
    if shape == call.shape:
        return call.made(call.call.op_type, x, axis=axis)
    return Made((x.reshape(shape).apply(call.call.op_type, axis=axis).reshape(call.shape),))


def _clip(call: Forward) -> Made:
    ends = [call.args[at] if call.has(at) else call.attr(name) for at, name in ((1, "min"), (2, "max"))]
    return call.made("Clip", call.x(), *(float(end) if isinstance(end, int | float) else end for end in ends))


def _pad(call: Forward) -> Made:
    before, after = pad_sizes(call)
    mode = str(call.attr("mode", "constant"))
    fill = call.attr("value", 0.0) if "value" in call.call.attributes else call.args[2] if call.has(2) else 0.0
    value = fill if mode == "constant" else None
    return call.made("Pad", call.x(), call.w.ints((*before, *after)), value, mode=mode)


def pad_sizes(at: CallView) -> tuple[list[int], list[int]]:
    """The sizes before and after each dimension."""
    pads = at.ints("pads", 1) or at.ints("paddings", 9) or ()
    axes = [axis % at.rank for axis in at.ints("axes", 3) or range(at.rank)]
    before, after = [0] * at.rank, [0] * at.rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[len(axes) + place]
    return before, after


def _top(call: Forward) -> Made:
    settings = {key: call.attr(key, 1) for key in ("largest", "sorted")}
    return call.made("TopK", call.x(), call.w.ints((int(call.number("k", 1)),)), axis=call.axis(-1), **settings)


def _cast(call: Forward) -> Made:
    dtype = call.call.outputs[0].dtype
    return call.made("Cast", call.x(), to=number_of(dtype))


def _filled(call: Forward) -> Made:
    fill = (call.attr("value") or (0,))[0]
    return Made((call.w.full(call.out, fill, call.call.outputs[0].dtype),))


def _resize(call: Forward) -> Made:
    """In the form of opset 13: factors as the file gives them, else sizes."""
    settings = {key: value for key, value in call.call.attributes.items() if key not in ("scales", "axes")}
    at = 1 if call.call.op_type == "Upsample" or call.opset < 11 else 2
    if at == 1:
        settings |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    region = call.args[1] if at == 2 and call.has(1) and call.shape_of(1) != (0,) else None
    axes = call.attr("axes")
    if region is not None and axes is not None:
        raise call.refused("cropping along axes is not written")
    scales = resize_factors(call)
    if scales is not None:
        return call.made("Resize", call.x(), region, call.w.constant(np.asarray(scales, np.float32)), **settings)
    settings.pop("keep_aspect_ratio_policy", None)
    return call.made("Resize", call.x(), region, None, call.w.ints(call.out), **settings)


def resize_factors(at: CallView) -> list[float] | None:
    """The factor of each dimension, None where sizes are given instead."""
    place = 1 if at.call.op_type == "Upsample" or at.opset < 11 else 2
    scales = at.attr("scales")
    if scales is None and at.has(place) and at.shape_of(place) != (0,):
        scales = tuple(map(float, at.known(place)))
    if scales is None:
        return None
    axes = [axis % at.rank for axis in at.attr("axes", ())] or range(at.rank)
    factors = [1.0] * at.rank
    for axis, scale in zip(axes, scales, strict=False):
        factors[axis] = float(scale)
    return factors


def _grid_sample(call: Forward) -> Made:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(*(str(call.attr("mode", "linear")),) * 2)
    return call.made("GridSample", *call.args, **{**call.call.attributes, "mode": mode})


def _modulo(call: Forward) -> Made:
    """ONNX Runtime has the remainder of whole numbers alone; that of others has the sign of the divisor."""
    if call.attr("fmod", 0) or not call.operand(0).is_float:
        return call.made("Mod", *call.args, **call.call.attributes)
    return Made((call.x(0) - (call.x(0) / call.x(1)).apply("Floor") * call.x(1),))


def _space_to_depth(call: Forward) -> Made:
    """Written as a transposition, which has every mode in every opset."""
    block, (batch, channels, height, width) = int(call.attr("blocksize")), call.shape
    x = call.x().reshape((batch, channels, height // block, block, width // block, block))
    order = (0, 1, 3, 5, 2, 4) if call.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return Made((x.transpose(order).reshape(call.out),))


def _gemm(call: Forward) -> Made:
    return call.made("Gemm", *call.args, **{k: v for k, v in call.call.attributes.items() if k != "broadcast"})


def _spelled(op_type: str, *dropped: str) -> Callable[[Forward], Made]:
    """The same op under a name, without attributes that say nothing any more."""

    def forward(call: Forward) -> Made:
        attributes = {key: value for key, value in call.call.attributes.items() if key not in dropped}
        return call.made(op_type, *call.args, **attributes)

    return forward


UPGRADED: ForwardTable = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "Split"), _moved),
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
         "ReduceLogSumExp", "ReduceSumSquare"), _reduction,
    ),
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Hardmax": _softmax,
    "Clip": _clip,
    "Pad": _pad,
    "TopK": _top,
    "Cast": _cast,
    "ConstantOfShape": _filled,
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _grid_sample,
    "Gemm": _gemm,
    "Mod": _modulo,
    "SpaceToDepth": _space_to_depth,
    "Scatter": _spelled("ScatterElements"),
    "Sub": _spelled("Sub", "stops_gradient"),
    "Identity": _spelled("Identity", "stops_gradient"),
    "ScatterElements": _spelled("ScatterElements", "saves_updates"),
    "ScatterND": _spelled("ScatterND", "saves_updates"),
}  # fmt: skip
