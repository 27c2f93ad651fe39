"""Ops beyond the usual ones: each with the torch call of its meaning, or the composition that the rule charges."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.files.op_cases import Case, on_image, positive, quiet, randn, unary

LENGTHS = torch.tensor([5, 2, 3])
INDICES = F.max_pool2d(randn(2, 3, 6, 6), 2, return_indices=True)[1]


def lp_normalised(x: Any, p: int) -> Any:
    return F.normalize(x, p, -1)


def mean_variance_normalised(x: Any) -> Any:
    difference = x - x.mean((0, 2, 3), keepdim=True)
    return difference / (difference.square().mean((0, 2, 3), keepdim=True).sqrt() + 1e-9)


def shrunk(x: Any) -> Any:
    """F.hardshrink with a bias that no call of torch has."""
    return torch.where(x < -0.5, x + 0.1, torch.where(x > 0.5, x - 0.1, torch.zeros(())))


def reversed_sequence(x: Any, lengths: Any) -> Any:
    """[T, N, ...]: the first lengths[n] steps of row n turned round."""
    times = torch.arange(x.shape[0])[:, None]
    turned = torch.where(times < lengths, lengths - 1 - times, times)
    return x[turned, torch.arange(x.shape[1])]


def rotated(x: Any, cos: Any, sin: Any, positions: Any = None) -> Any:
    """[N, heads, T, width] by tables of [N, T, width / 2], or of [positions, width / 2]."""
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def written_to_cache(cache: Any, update: Any, starts: Any) -> Any:
    times = (starts[:, None] + torch.arange(update.shape[2]))[:, None, :, None]
    return cache.scatter(2, times.expand(update.shape), update)


def causal_convolution(x: Any, weight: Any, bias: Any, state: Any = None) -> Any:
    size = weight.shape[-1] - 1
    joined = F.pad(x, (size, 0)) if state is None else torch.cat([state, x], -1)
    return F.conv1d(joined, weight, bias, groups=x.shape[1])


def linear_attention(q: Any, k: Any, v: Any, past: Any, decay: Any, beta: Any, *, rule: str) -> Any:
    """The recurrence of LinearAttention over [N, T, heads * width], token by token, two heads."""
    n, t = q.shape[:2]
    q, k, v = (part.view(n, t, 2, -1) for part in (q, k, v))
    state, outputs = past, []
    for step in range(t):
        if "gated" in rule:
            state = state * decay.view(n, t, 2, -1)[:, step].exp().unsqueeze(-1)
        value = v[:, step]
        if "delta" in rule:
            value = (value - (k[:, step].unsqueeze(-2) @ state).squeeze(-2)) * beta.view(n, t, 2, 1)[:, step]
        state = state + k[:, step].unsqueeze(-1) * value.unsqueeze(-2)
        outputs.append((q[:, step].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 1).flatten(2)


COS, SIN = randn(2, 8, 8), randn(2, 8, 8) + 1
TABLES = (randn(20, 8), randn(20, 8) + 1)
POSITIONS = torch.arange(16).view(2, 8)
CASES = [
    Case("AffineGrid", "xc", (randn(2, 2, 3), torch.tensor([2, 3, 4, 5])),
         lambda theta, size: F.affine_grid(theta, (2, 3, 4, 5), align_corners=False)),
    Case("Col2Im", "xcc", (randn(1, 12, 9), torch.tensor([4, 4]), torch.tensor([2, 2])),
         lambda x, *_: F.fold(x, (4, 4), (2, 2))),
    Case("CenterCropPad", "xc", (randn(6, 6), torch.tensor([4, 8])), lambda x, _: F.pad(x[1:5], (1, 1))),
    Case("Compress", "xx", (randn(4, 6), torch.tensor([True, False, True, True])), lambda x, c: x[c], {"axis": 0}),
    Case("Compress", "xx", (randn(4, 6), torch.tensor([True, False] * 12)), lambda x, c: x.flatten()[c], note="flat"),
    unary("CumProd", lambda x: x.cumprod(1)),
    unary("CumProd", lambda x: x.flip(1).cumprod(1).flip(1), note="reverse", reverse=1),
    unary("CumProd", lambda x: F.pad(x, (1, -1), value=1.0).cumprod(1) + 0, note="exclusive", exclusive=1),
    Case("DFT", "x", (randn(2, 8, 2),), lambda x: torch.view_as_real(torch.fft.fft(torch.view_as_complex(x), dim=1))),
    Case("DFT", "x", (randn(2, 8, 1),), lambda x: torch.view_as_real(torch.fft.fft(x.squeeze(-1), dim=1)), note="real"),
    Case("DFT", "x", (randn(2, 8, 1),), lambda x: torch.view_as_real(torch.fft.rfft(x.squeeze(-1), dim=1)),
         {"onesided": 1}, "one-sided"),
    Case("STFT", "xcx", (randn(2, 64), torch.tensor(8), positive(16)),
         lambda x, step, window: torch.view_as_real(
             torch.stft(x, 16, 8, window=window, center=False, return_complex=True)).transpose(1, 2)),
    Case("STFT", "xc-c", (randn(2, 64), torch.tensor(8), None, torch.tensor(16)),
         quiet(lambda x, *_: torch.view_as_real(
             torch.stft(x, 16, 8, window=None, center=False, return_complex=True)).transpose(1, 2)), note="no window"),
    Case("Det", "x", (randn(3, 4, 4),), torch.linalg.det),
    on_image("GlobalLpPool", lambda x: torch.linalg.vector_norm(x, 2, (2, 3), keepdim=True)),
    on_image("LpPool", lambda x: F.lp_pool2d(x, 2, 2), p=2, kernel_shape=(2, 2)),
    Case("LpPool", "x", (randn(2, 3, 6),), lambda x: F.lp_pool1d(x, 3, 2), {"p": 3, "kernel_shape": (2,)}, "1d"),
    Case("LpPool", "x", (randn(2, 3, 6, 6, 6),), lambda x: F.lp_pool3d(x, 2, 2), note="3d"),
    unary("LpNormalization", lambda x: lp_normalised(x, 2)),
    unary("LpNormalization", lambda x: lp_normalised(x, 1), note="l1", p=1),
    on_image("MeanVarianceNormalization", mean_variance_normalised),
    Case("GridSample", "xx", (randn(2, 3, 6, 6), randn(2, 4, 4, 2)),
         lambda x, grid: F.grid_sample(x, grid, align_corners=False)),
    Case("GridSample", "xx", (randn(2, 3, 6, 6), randn(2, 4, 4, 2)),
         lambda x, grid: F.grid_sample(x, grid, mode="bicubic", align_corners=False), {"mode": "cubic"}, "cubic"),
    Case("MaxUnpool", "xx", (randn(2, 3, 3, 3), INDICES), lambda x, indices: F.max_unpool2d(x, indices, 2)),
    Case("Mod", "xx", (positive(4, 6), positive(4, 6) + 1), torch.fmod, {"fmod": 1}),
    Case("Mod", "xc", (positive(4, 6), torch.tensor(0.3)), torch.remainder, note="remainder"),
    unary("Shrink", F.hardshrink),
    unary("Shrink", F.softshrink, note="soft", bias=0.5, lambd=0.5),
    unary("Shrink", shrunk, note="bias", bias=0.1),
    Case("SwiGLU", "xx", (randn(4, 6), randn(4, 6) + 1), lambda a, b: F.silu(a) * b),
    Case("SwiGLU", "xx", (randn(4, 6), randn(4, 6) + 1), lambda a, b: a * torch.sigmoid(1.7 * a) * b,
         {"alpha": 1.7}, "alpha"),
    unary("Swish", lambda x: x * torch.sigmoid(1.7 * x), note="alpha", alpha=1.7),
    unary("HardSigmoid", lambda x: (0.2 * x + 0.5).clamp(0, 1), note="slope 0.2"),
    Case("ReverseSequence", "xx", (randn(5, 3, 4), LENGTHS), reversed_sequence),
    Case("RotaryEmbedding", "xxx", (randn(2, 3, 8, 16), COS, SIN), rotated),
    Case("RotaryEmbedding", "xccx", (randn(2, 3, 8, 16), *TABLES, POSITIONS), rotated, note="positions"),
    Case("TensorScatter", "xxx", (randn(2, 3, 8, 4), randn(2, 3, 2, 4), torch.tensor([0, 3])), written_to_cache),
    Case("Scatter", "xxx", (randn(4, 6), torch.ones(4, 1, dtype=torch.int64), randn(4, 1)),
         lambda x, i, updates: x.scatter(1, i, updates), {"axis": 1}),
    Case("CausalConvWithState", "xww", (randn(2, 4, 10), randn(4, 1, 3), randn(4)), causal_convolution),
    Case("CausalConvWithState", "xwwx", (randn(2, 4, 10), randn(4, 1, 3), randn(4), randn(2, 4, 2)),
         lambda *operands: F.silu(causal_convolution(*operands)), {"activation": "silu"}, "state, silu"),
    Case("DequantizeLinear", "xx", (torch.ones(4, 6, dtype=torch.int8), positive(6)),
         lambda x, scale: x.float() * scale),
    *(unary(name, call) for name, call in (
        ("Ceil", torch.ceil), ("Floor", torch.floor), ("Round", torch.round), ("Sign", torch.sign))),
    Case("Bernoulli", "x", (positive(4, 6).clamp(0, 1),), torch.bernoulli),
    Case("Mean", "xxx", (randn(4, 6), randn(4, 6), randn(4, 6)), lambda a, b, c: (a + b + c) / 3),
    Case("SpaceToDepth", "x", (randn(2, 8, 6, 6),), lambda x: F.pixel_unshuffle(x, 2), {"blocksize": 2}),
    Case("Upsample", "xc", (randn(2, 8, 6, 6), torch.ones(4)), lambda x, _: F.interpolate(x, scale_factor=2)),
    Case("GatherND", "xx", (randn(4, 6), torch.tensor([[0, 1], [2, 3]])), lambda x, i: x[tuple(i.unbind(-1))]),
    Case("ScatterND", "xxx", (randn(4, 6), torch.tensor([[0, 1], [2, 3]]), randn(2)),
         lambda x, i, updates: x.index_put(tuple(i.unbind(-1)), updates)),
]  # fmt: skip

AT_LEAST = [
    *(Case("LinearAttention", "xxxcxx",
           (randn(2, 5, 16), randn(2, 5, 16) + 1, randn(2, 5, 12), torch.zeros(2, 2, 8, 6), randn(2, 5, 16) + 2,
            positive(2, 5, 2)),
           lambda *operands, rule=rule: linear_attention(*operands, rule=rule),
           {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": rule}, rule)
      for rule in ("linear", "gated", "delta", "gated_delta")),
]  # fmt: skip
"""Cases whose rule is an estimate: never below what torch keeps for the composition."""
