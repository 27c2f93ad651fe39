"""Quantisation, which trains as torch's fake quantisation does, and random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .node import Node, Run, Table, torch_dtype

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15), "int16": (-(2**15), 2**15 - 1),
           "uint16": (0, 2**16 - 1)}  # fmt: skip


def _aligned(node: Node) -> tuple[int, ...]:
    """The shape of a scale for each channel, as it broadcasts against the first input."""
    scale = node.shape(1)
    if node.attr("block_size", 0):
        raise node.refused("a scale for each block is not built")
    if len(scale) != 1 or scale == (1,):
        return (1,) * node.rank
    axis = node.axis(1)
    return tuple(-1 if at == axis else 1 for at in range(node.rank))


def _dequantise(node: Node) -> Run:
    shape, dtype = _aligned(node), node.out_dtype

    def run(x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        moved = x.to(dtype) if zero is None else x.to(dtype) - zero.to(dtype).reshape(shape)
        return moved * scale.reshape(shape)

    return run


def _quantise(node: Node) -> Run:
    shape, found = _aligned(node), node.call.outputs[0].dtype
    if found not in _RANGES:
        raise node.refused(f"quantisation to {found} is not built")
    (low, high), dtype = _RANGES[found], torch_dtype(found)

    def run(x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        rounded = torch.round(x / scale.reshape(shape))
        moved = rounded if zero is None else rounded + zero.reshape(shape).to(rounded.dtype)
        return moved.clamp(low, high).to(dtype)

    return run


def _fake_quantise(node: Node) -> Run:
    quantiser, last = node.call.parts[0], node.call.parts[-1]
    found = quantiser.outputs[0].dtype
    if quantiser.op_type != "QuantizeLinear" or found not in _RANGES or last.attributes.get("block_size"):
        raise node.refused("only a QuantizeLinear to a whole number of at most 16 bits is fake quantisation")
    low, high = _RANGES[found]
    for clip in node.call.parts[1:-1]:
        ends = [value.known for value in clip.inputs[1:] if value is not None and value.known is not None]
        if clip.op_type == "Clip" and len(ends) == 2:
            low, high = max(low, int(ends[0])), min(high, int(ends[1]))
    given: Any = last.attributes.get("axis", 1)
    axis = given % max(node.rank, 1)
    single = node.operand(1).numel == 1

    def run(x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        point = torch.zeros_like(scale, dtype=torch.int32) if zero is None else zero.to(torch.int32)
        if single:
            return torch.fake_quantize_per_tensor_affine(x, scale.reshape(1), point.reshape(1), low, high)
        return torch.fake_quantize_per_channel_affine(x, scale, point, axis, low, high)

    return run


def _random(uniform: bool) -> Any:
    def build(node: Node) -> Run:
        shape, dtype = node.out, node.out_dtype
        if uniform:
            low, high = float(node.attr("low", 0.0)), float(node.attr("high", 1.0))
            return lambda *like: low + (high - low) * torch.rand(shape, dtype=dtype, device=_device(like))
        mean, scale = float(node.attr("mean", 0.0)), float(node.attr("scale", 1.0))
        return lambda *like: mean + scale * torch.randn(shape, dtype=dtype, device=_device(like))

    return build


def _device(like: tuple[Any, ...]) -> Any:
    return like[0].device if like and like[0] is not None else None


def _bernoulli(node: Node) -> Run:
    dtype = node.out_dtype
    return lambda x: torch.bernoulli(x).to(dtype)


OPS: Table = {
    "QuantizeLinear": _quantise,
    "DequantizeLinear": _dequantise,
    "RandomNormal": _random(False),
    "RandomNormalLike": _random(False),
    "RandomUniform": _random(True),
    "RandomUniformLike": _random(True),
    "Bernoulli": _bernoulli,
}
FUSED: Table = {"fake_quantize": _fake_quantise}
