"""Matrix products, Einsum, attention and rotary embedding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .node import Node, Run, Table, plain

_KNOWN = {"is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode"}


def _gemm(node: Node) -> Run:
    alpha, beta = float(node.attr("alpha", 1.0)), float(node.attr("beta", 1.0))
    first, second = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))

    def run(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        a, b = a.t() if first else a, b.t() if second else b
        if c is None or beta == 0:
            return a @ b if alpha == 1 else (a @ b) * alpha
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)

    return run


def _einsum(node: Node) -> Run:
    equation = str(node.attr("equation"))
    return lambda *operands: torch.einsum(equation, *operands)


def _scaled_product(node: Node) -> Run:
    """A product and the number that it is multiplied by, which torch's baddbmm takes as alpha."""
    scale = node.call.parts[1]
    numbers = [
        v.known.ravel()[0].item() for v in scale.inputs if v is not None and v.known is not None and v.numel == 1
    ]
    if len(numbers) != 1:
        raise node.refused("the factor of its formula is not found")
    return lambda a, b: torch.matmul(a, b) * numbers[0]


def _fused_attention(node: Node) -> Run:
    """scaled_dot_product_attention of a formula: its scale is the product of the numbers that it multiplies by."""
    causal, scale = bool(node.attr("is_causal", 0)), 1.0
    for part in node.call.parts:
        found = [v.known for v in part.inputs if v is not None and v.known is not None and v.known.size == 1]
        if part.op_type == "Mul" and found:
            scale *= float(found[0].ravel()[0])
    width = node.shape()[3]
    grouped = node.shape(1)[1] != node.shape()[1]
    usual = None if abs(scale * width**0.5 - 1) < 1e-5 else scale
    return lambda q, k, v, mask=None: F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=usual, enable_gqa=grouped
    )


def _attention(node: Node) -> Run:
    cap = float(node.attr("softcap", 0.0))
    unknown = sorted(node.call.attributes.keys() - _KNOWN)
    if node.has(6) or unknown or node.attr("qk_matmul_output_mode", 0):
        raise node.refused(f"{', '.join(unknown) or 'lengths of keys, or scores after the product,'} are not built")
    heads, key_heads = node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0)
    causal, scale = bool(node.attr("is_causal", 0)), node.attr("scale")
    flat, count, out = node.rank == 3, len(node.call.outputs), node.out

    def apart(x: Tensor, parts: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], parts, -1).transpose(1, 2) if flat else x

    def run(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, past_key: Tensor | None = None,
        past_value: Tensor | None = None,
    ) -> Any:  # fmt: skip
        query, key, value = apart(query, heads), apart(key, key_heads), apart(value, key_heads)
        past = 0 if past_key is None else past_key.shape[2]
        if past_key is not None and past_value is not None:
            key, value = torch.cat((past_key, key), 2), torch.cat((past_value, value), 2)
        if mask is not None and mask.shape[-1] < key.shape[2]:
            raise ValueError("an attention mask is shorter than the keys")
        if cap or count > 3:
            made, scores = _composed(query, key, value, mask, past if causal else None, scale, cap)
            return ((made.transpose(1, 2).reshape(out) if flat else made), key, value, scores)[:count]
        alone = causal and mask is None and past == 0
        if causal and not alone:
            rows, columns = query.shape[2], key.shape[2]
            lower = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(past)
            mask = _joined(mask, lower, query.dtype)
        made = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=alone, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
        return ((made.transpose(1, 2).reshape(out) if flat else made), key, value)[:count]

    return run


def _composed(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, past: int | None, scale: Any, cap: float
) -> tuple[Tensor, Tensor]:
    """Attention with a soft cap, and the product of queries and keys."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    scores = (query * factor) @ (key * factor).transpose(-1, -2)
    if past is not None:
        lower = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril(past)
        mask = _joined(mask, lower, query.dtype)
    capped = cap * torch.tanh(scores / cap) if cap else scores
    bias = (
        mask
        if mask is None or mask.dtype != torch.bool
        else torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
    )
    masked = capped if bias is None else capped + bias
    return torch.softmax(masked, -1) @ value, scores


def _joined(mask: Tensor | None, lower: Tensor, dtype: torch.dtype) -> Tensor:
    if mask is None:
        return lower
    if mask.dtype == torch.bool:
        return mask & lower
    return mask + torch.zeros_like(lower, dtype=dtype).masked_fill(~lower, float("-inf"))


def _rotary(node: Node) -> Run:
    interleaved, heads = bool(node.attr("interleaved", 0)), int(node.attr("num_heads", 0))
    width, rank = int(node.attr("rotary_embedding_dim", 0)), node.rank

    def run(x: Tensor, cosine: Tensor, sine: Tensor, positions: Tensor | None = None) -> Tensor:
        shape = x.shape
        x = x.view(*shape[:2], heads, -1) if rank == 3 else x.transpose(1, 2)
        turned, rest = (x[..., :width], x[..., width:]) if width else (x, None)
        if positions is not None:
            cosine, sine = cosine[positions], sine[positions]
        cosine, sine = cosine.unsqueeze(2), sine.unsqueeze(2)
        one, two = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
        real, imaginary = cosine * one - sine * two, sine * one + cosine * two
        made = torch.stack((real, imaginary), -1).flatten(-2) if interleaved else torch.cat((real, imaginary), -1)
        made = made if rest is None else torch.cat((made, rest), -1)
        return made.reshape(shape) if rank == 3 else made.transpose(1, 2)

    return run


OPS: Table = {
    "MatMul": plain(torch.matmul),
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
}
FUSED: Table = {"Attention": _fused_attention, "MatMul": _scaled_product}
