"""What cuDNN does, on the stand-in: outputs, in its layouts, and workspace are allocated, nothing is computed.

The workspace of a real convolution is cuDNN's choice; here it is `CONVOLUTION_WORKSPACE_NBYTES` for each call.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

CONVOLUTION_WORKSPACE_NBYTES = 8 << 20
ATTENTION_WORKSPACE_NBYTES = 1 << 20
PHILOX_STEP = 16
"""By how much an attention call with dropout moves the generator's offset."""

_LIBRARY = ctypes.CDLL(None)
_kept: list[Any] = []


def install() -> None:
    """Replace the CUDA kernels that call cuDNN, for the rest of the process."""
    if _kept:
        return
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    kernels: dict[str, Callable[..., Any]] = {
        "cudnn_convolution": _convolution,
        "cudnn_convolution_transpose": _transposed_convolution,
        "convolution_backward": _convolution_backward,
        "cudnn_batch_norm": _batch_norm,
        "cudnn_batch_norm_backward": _batch_norm_backward,
        "_cudnn_rnn_flatten_weight": _flatten_weight,
        "_scaled_dot_product_cudnn_attention": _attention,
        "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is the purpose
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CUDA", allow_override=True)
    if hasattr(torch._C, "_get_cudnn_batch_norm_reserve_space_size"):
        torch._C._get_cudnn_batch_norm_reserve_space_size = lambda *_: 0


def _note(name: str) -> None:
    _LIBRARY.standin_note(name.encode())


def _work(near: Tensor, nbytes: int) -> None:
    """Allocate and free workspace."""
    torch.empty(nbytes, dtype=torch.uint8, device=near.device)


def _channels_last(*tensors: Tensor) -> bool:
    """Whether cuDNN runs a call in channels_last: one of its arguments says so clearly."""
    return any(
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
        for tensor in tensors
    )


def _empty(near: Tensor, shape: Sequence[int], last: bool) -> Tensor:
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=near.dtype, device=near.device, memory_format=layout)


def _convolution(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, benchmark: bool = False,
    deterministic: bool = False, allow_tf32: bool = False,
) -> Tensor:  # fmt: skip
    _note("cudnn_convolution")
    sizes = zip(x.shape[2:], weight.shape[2:], padding, stride, dilation, strict=True)
    spatial = [(size + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for size, kernel, pad, step, gap in sizes]
    out = _empty(x, [x.shape[0], weight.shape[0], *spatial], _channels_last(x, weight))
    _work(x, CONVOLUTION_WORKSPACE_NBYTES)
    return out


def _transposed_convolution(
    x: Tensor, weight: Tensor, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int,
    benchmark: bool = False, deterministic: bool = False, allow_tf32: bool = False,
) -> Tensor:  # fmt: skip
    _note("cudnn_convolution_transpose")
    sizes = zip(x.shape[2:], weight.shape[2:], padding, output_padding, stride, dilation, strict=True)
    spatial = [
        (size - 1) * step - 2 * pad + gap * (kernel - 1) + extra + 1 for size, kernel, pad, extra, step, gap in sizes
    ]
    out = _empty(x, [x.shape[0], weight.shape[1] * groups, *spatial], _channels_last(x, weight))
    _work(x, CONVOLUTION_WORKSPACE_NBYTES)
    return out


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    _note("cudnn_convolution_backward")
    last = _channels_last(x, weight)
    gradient = gradient.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    found: list[Tensor | None] = []
    for given, needed in ((x, wanted[0]), (weight, wanted[1])):
        found.append(_empty(given, given.shape, last) if needed else None)
        if needed:
            _work(x, CONVOLUTION_WORKSPACE_NBYTES)
    bias = gradient.sum((0, *range(2, gradient.dim()))) if wanted[2] else None
    return found[0], found[1], bias


def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None, training: bool,
    momentum: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    _note("cudnn_batch_norm")
    saved = [torch.empty(x.shape[1] if training else 0, dtype=weight.dtype, device=x.device) for _ in range(2)]
    return torch.empty_like(x), *saved, torch.empty(0, dtype=torch.uint8, device=x.device)  # type: ignore[return-value]


def _batch_norm_backward(
    x: Tensor, gradient: Tensor, weight: Tensor, mean: Tensor | None, variance: Tensor | None,
    saved_mean: Tensor | None, saved_variance: Tensor | None, epsilon: float, reserve: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _note("cudnn_batch_norm_backward")
    gradient = gradient.contiguous(memory_format=torch.channels_last) if _channels_last(x) else gradient.contiguous()
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, logsumexp: bool, dropout: float = 0.0,
    causal: bool = False, mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    _note("cudnn_attention")
    batch, heads, length, _ = query.shape
    out = torch.empty((batch, length, heads, value.shape[-1]), dtype=query.dtype, device=query.device).transpose(1, 2)
    sums = (batch, heads, length, 1) if logsumexp else (0,)
    stats = torch.empty(sums, dtype=torch.float32, device=query.device)
    if dropout > 0:
        generator = torch.cuda.default_generators[query.device.index]
        generator.set_offset(generator.get_offset() + PHILOX_STEP)
    seed, offset = (torch.empty((), dtype=torch.long, device=query.device) for _ in range(2))
    _work(query, ATTENTION_WORKSPACE_NBYTES)
    return out, stats, None, None, length, key.shape[2], seed, offset, None


def _attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, stats: Tensor, seed: Tensor,
    offset: Tensor, bias: Tensor | None, ends: Tensor, key_ends: Tensor, longest: int, longest_key: int,
    dropout: float, causal: bool, *, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _note("cudnn_attention_backward")
    _work(query, ATTENTION_WORKSPACE_NBYTES)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _flatten_weight(
    weights: Sequence[Tensor], per_layer: int, input_size: int, mode: int, hidden: int, projected: int, layers: int,
    batch_first: bool, bidirectional: bool,
) -> Tensor:  # fmt: skip
    """One buffer for all weights, matrices before biases, as cuDNN wants it; the weights become views of it."""
    _note("cudnn_rnn_flatten_weight")
    buffer = weights[0].new_empty(sum(weight.numel() for weight in weights))
    end = 0
    for weight in sorted(weights, key=lambda weight: weight.dim() == 1):
        view = buffer[end : end + weight.numel()].view_as(weight)
        end += weight.numel()
        view.copy_(weight)
        weight.set_(view)
    return buffer
