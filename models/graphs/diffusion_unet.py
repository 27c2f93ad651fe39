"""The U-Net of a diffusion model: Ho et al., "Denoising Diffusion Probabilistic Models", NeurIPS 2020, appendix B.

Residual blocks with group norm, each told the time step; attention of one head at an extent of 16; a skip
from every block on the way down to one on the way up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import onnx
from onnx import TensorProto

from models.graphs.builder import Value
from models.graphs.net import Net

GROUPS = 32
BLOCKS = 2  # residual blocks of a level on the way down; one more on the way up
ATTENDED = 16
CHANNELS = 128


@dataclass(frozen=True, slots=True)
class Shape:
    """The side of the images, the channels of each level as multiples of `CHANNELS`, and the dropout rate."""

    side: int
    multiples: tuple[int, ...]
    dropout: float


CIFAR = Shape(32, (1, 2, 2, 2), 0.1)
LSUN = Shape(256, (1, 1, 2, 2, 4, 4), 0.0)


def diffusion_unet(shape: Shape, batch: int) -> onnx.ModelProto:
    """Noisy images and their time steps -> the noise."""
    net = Net("diffusion_unet")
    images = net.input("images", (batch, 3, shape.side, shape.side))
    told = _told(net, net.input("steps", (batch,), TensorProto.INT64))
    with net.scope("entry"):
        skips = [net.conv(images, CHANNELS, 3, bias=True)]
    for level, multiple in enumerate(shape.multiples):
        for block in range(BLOCKS):
            with net.scope(f"down{level}.block{block}"):
                skips.append(_level(net, skips[-1], told, multiple * CHANNELS, shape.dropout))
        if level < len(shape.multiples) - 1:
            with net.scope(f"down{level}.shrink"):
                x = skips[-1]
                skips.append(net.conv(x, x.shape[1], 3, stride=2, padding="same", bias=True))
    x = skips[-1]
    with net.scope("middle"):
        x = _residual(net, x, told, x.shape[1], shape.dropout)
        x = _residual(net, _attention(net, x), told, x.shape[1], shape.dropout)
    for level in range(len(shape.multiples) - 1, -1, -1):
        for block in range(BLOCKS + 1):
            with net.scope(f"up{level}.block{block}"):
                x = net.concat([x, skips.pop()])
                x = _level(net, x, told, shape.multiples[level] * CHANNELS, shape.dropout)
        if level:
            with net.scope(f"up{level}.grow"):
                x = net.conv(_doubled(net, x), x.shape[1], 3, bias=True)
    with net.scope("exit"):
        x = net.conv(net.silu(net.group_norm(x, GROUPS)), 3, 3, bias=True)
    return net.model(x)


def _told(net: Net, steps: Value) -> Value:
    """Sines and cosines of the time step at `CHANNELS` / 2 frequencies, through two dense layers."""
    half = CHANNELS // 2
    with net.scope("time"):
        bounds = [net.constant(number, np.int64) for number in (0, half, 1)]
        places = net.op("Cast", [net.op("Range", bounds, (half,), dtype=TensorProto.INT64)], (half,), to=1)
        rates = net.unary("Exp", net.arithmetic("Mul", places, net.number(-log(10000) / (half - 1))))
        moment = net.op("Cast", [steps], steps.shape, to=1)
        column = net.reshape(moment, (steps.shape[0], 1))
        angles = net.arithmetic("Mul", column, rates)
        x = net.concat([net.unary("Sin", angles), net.unary("Cos", angles)])
        return net.linear(net.silu(net.linear(x, 4 * CHANNELS)), 4 * CHANNELS)


def _level(net: Net, x: Value, told: Value, channels: int, rate: float) -> Value:
    x = _residual(net, x, told, channels, rate)
    return _attention(net, x) if x.shape[2] == ATTENDED else x


def _residual(net: Net, x: Value, told: Value, channels: int, rate: float) -> Value:
    with net.scope("residual"):
        y = net.conv(net.silu(net.group_norm(x, GROUPS)), channels, 3, bias=True)
        shift = net.linear(net.silu(told), channels)
        y = net.add(y, net.reshape(shift, (*shift.shape, 1, 1)))
        y = net.silu(net.group_norm(y, GROUPS))
        if rate:
            y = net.dropout(y, rate)
        y = net.conv(y, channels, 3, bias=True)
        return net.add(x if x.shape == y.shape else net.conv(x, channels, bias=True), y)


def _attention(net: Net, x: Value) -> Value:
    """One head over all positions."""
    batch, channels, height, width = x.shape
    with net.scope("attention"):
        h = net.group_norm(x, GROUPS)
        flat = (batch, channels, height * width)
        query, key, value = (net.reshape(net.conv(h, channels, bias=True), flat) for _ in range(3))
        scores = net.matmul(net.transpose(query, (0, 2, 1)), key)
        scores = net.arithmetic("Mul", scores, net.number(1 / sqrt(channels)))
        weights = net.transpose(net.unary("Softmax", scores, axis=-1), (0, 2, 1))
        mixed = net.reshape(net.matmul(value, weights), x.shape)
        return net.add(x, net.conv(mixed, channels, bias=True))


def _doubled(net: Net, x: Value) -> Value:
    """Every pixel twice in each direction."""
    batch, channels, height, width = x.shape
    scales = net.constant((1, 1, 2, 2), np.float32)
    shape = (batch, channels, 2 * height, 2 * width)
    inputs = [x, None, scales]
    return net.op("Resize", inputs, shape, coordinate_transformation_mode="asymmetric", nearest_mode="floor")
