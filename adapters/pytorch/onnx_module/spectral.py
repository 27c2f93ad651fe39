"""Fourier transforms; ONNX writes a complex number as a last dimension of two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .node import Node, Run, Table


def _fourier(node: Node) -> Run:
    shape, onesided, inverse = node.shape(), bool(node.attr("onesided", 0)), bool(node.attr("inverse", 0))
    axis = int(node.attr("axis", 1)) if node.opset < 20 else int(node.number("", 2, -2))
    axis %= len(shape)
    length = node.number("", 1)
    is_complex, real = shape[-1] == 2, onesided and inverse
    if real:
        raise node.refused("a one-sided inverse is not built")

    def run(x: Tensor, *_: Any) -> Tensor:
        x = torch.view_as_complex(x.contiguous()) if is_complex else x.squeeze(-1)
        if onesided:
            return torch.view_as_real(torch.fft.rfft(x, length, axis))
        return torch.view_as_real((torch.fft.ifft if inverse else torch.fft.fft)(x, length, axis))

    return run


def _short_time(node: Node) -> Run:
    step, length = int(node.number("", 1)), node.number("", 3)
    if length is None:
        length = node.shape(2)[0]
    onesided, is_complex = bool(node.attr("onesided", 1)), node.rank == 3 and node.shape()[-1] == 2

    def run(x: Tensor, _: Any, window: Tensor | None = None, *__: Any) -> Tensor:
        x = torch.view_as_complex(x.contiguous()) if is_complex else x.reshape(x.shape[:2])
        frames = x.unfold(1, int(length), step)
        frames = frames if window is None else frames * window
        return torch.view_as_real(torch.fft.rfft(frames) if onesided else torch.fft.fft(frames))

    return run


OPS: Table = {"DFT": _fourier, "STFT": _short_time}
FUSED: Table = {}
