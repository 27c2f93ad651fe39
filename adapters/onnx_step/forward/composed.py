"""Calls that ONNX spells with several nodes, or only in newer opsets than that of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..nodes.call_view import CallView
from ..nodes.writer import Tensor
from .forward_call import Forward, ForwardTable, Made

_CHUNKS = 16
"""The most parts in which an attention is computed."""


def gate(x: Tensor, alpha: float = 1.0) -> Tensor:
    """sigmoid(alpha x)."""
    return (x if alpha == 1 else x * alpha).apply("Sigmoid")


def _swish(call: Forward) -> Made:
    x = call.x()
    return Made((x * gate(x, call.attr("alpha", 1.0)),))


def _swiglu(call: Forward) -> Made:
    a = call.x(0)
    return Made((a * gate(a, call.attr("alpha", 1.0)) * call.x(1),))


def is_tanh(at: CallView) -> bool:
    """Whether a GELU is the approximation by a tanh."""
    return any(part.op_type == "Tanh" for part in at.parts()) or at.attr("approximate", "none") == "tanh"


def _gelu(call: Forward) -> Made:
    return call.made("Gelu", call.x(), approximate="tanh" if is_tanh(call) else "none")


def _plain(call: Forward) -> Made:
    return call.made(call.call.op_type, call.x())


def _hard_sigmoid(call: Forward) -> Made:
    """The slope of torch's formula is exactly a sixth."""
    slope, offset = slope_of(call)
    return call.made("HardSigmoid", call.x(), alpha=slope, beta=offset)


def slope_of(at: CallView) -> tuple[float, float]:
    """Slope and offset of a HardSigmoid."""
    if at.call.parts:
        return 1 / 6, 0.5
    return float(at.attr("alpha", 0.2)), float(at.attr("beta", 0.5))


_NO_EFFECT = {"softcap": 0.0, "qk_matmul_output_mode": 0}


class Attention:
    """The operands of an attention as [batch, heads, length, width], and how its scores are made."""

    def __init__(self, at: CallView) -> None:
        self.at = at
        allowed = {"is_causal", "scale", "q_num_heads", "kv_num_heads"}
        given = at.call.attributes
        unknown = sorted(key for key in given.keys() - allowed if given[key] != _NO_EFFECT.get(key))
        if not at.call.parts and (unknown or at.has(4) or at.has(6) or len(at.call.outputs) > 1):
            raise at.refused(f"{', '.join(unknown) or 'a past or further outputs'} of Attention are not written")
        self.causal = bool(at.attr("is_causal", 0))
        self.flat = at.rank == 3
        heads = [int(at.attr("q_num_heads", 1)), *(int(at.attr("kv_num_heads", 1)),) * 2]
        self.heads = heads if self.flat else [at.shape_of(place)[1] for place in range(3)]
        width = at.shape[-1] // (self.heads[0] if self.flat else 1)
        self.scale = float(at.attr("scale") or width**-0.5)
        if at.call.parts:
            self.scale = 1.0
            for part in at.parts():
                found = [v.known for v in part.inputs if v is not None and v.known is not None and v.known.size == 1]
                if part.op_type == "Mul" and found:
                    self.scale *= float(found[0].ravel()[0])

    def apart(self, x: Tensor, place: int) -> Tensor:
        """An operand with its heads as a dimension, those of keys and values repeated."""
        if self.flat:
            batch, length, width = x.shape
            x = x.reshape((batch, length, self.heads[place], width // self.heads[place])).transpose((0, 2, 1, 3))
        if self.heads[place] != self.heads[0]:
            batch, heads, length, width = x.shape
            times = self.heads[0] // heads
            x = x.reshape((batch, heads, 1, length, width)).expand((batch, heads, times, length, width))
            x = x.reshape((batch, self.heads[0], length, width))
        return x

    def together(self, x: Tensor, place: int) -> Tensor:
        """The reverse of `apart`: repeated heads are summed."""
        batch, all_heads, length, width = x.shape
        heads = self.heads[place]
        if heads != all_heads:
            x = x.reshape((batch, heads, all_heads // heads, length, width)).sum((2,), keep=False)
        if self.flat:
            x = x.transpose((0, 2, 1, 3)).reshape((batch, length, heads * width))
        return x

    def chunks(self, *operands: Tensor | None) -> Iterator[tuple[Tensor | None, ...]]:
        """Operands cut along the batch, or along the heads of one sample, so that few scores are alive at once."""
        first = operands[0]
        assert first is not None
        axis = 0 if first.shape[0] > 1 else 1
        size = first.shape[axis]
        step = -(-size // _CHUNKS)
        for start in range(0, size, step):
            stop = min(start + step, size)
            yield tuple(
                one if one is None or one.shape[axis] == 1 or one.rank < first.rank else one.cut(axis, start, stop)
                for one in operands
            )

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Results of chunks side by side."""
        return parts[0].writer.concat(parts, 0 if self.at.shape[0] > 1 else 1)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """The probabilities of apart operands."""
        scores = (query * self.scale).matmul(key.turned())
        low = float(np.finfo(query.dtype).min) / 2
        if self.causal:
            rows, columns = scores.shape[-2:]
            bias = np.where(np.tri(rows, columns, dtype=bool), 0, low).astype(query.dtype)
            scores = scores + query.writer.constant(bias)
        if mask is not None:
            if mask.shape[-1] != scores.shape[-1]:
                raise self.at.refused("a mask that is shorter than the keys is not written")
            scores = scores + (mask.where(*_zero_and(low, query)) if mask.dtype == "bool" else mask)
        weights = scores.apply("Softmax", axis=-1)
        if mask is None or mask.dtype != "bool":
            return weights
        kept = mask.cast(query.dtype)  # a row that a mask leaves nothing of has no weights, as in torch
        if self.causal:
            rows, columns = scores.shape[-2:]
            kept = kept * query.writer.constant(np.tri(rows, columns).astype(query.dtype))
        return weights * kept


def _zero_and(low: float, like: Tensor) -> tuple[Any, Any]:
    return like.writer.scalar(0.0, like.dtype), like.writer.scalar(low, like.dtype)


def _attention(call: Forward) -> Made:
    how = Attention(call)
    query, key, value = (how.apart(call.x(place), place) for place in range(3))
    mask = call.x(3) if call.has(3) else None
    parts = list[Tensor]()
    for q, k, v, part in how.chunks(query, key, value, mask):
        assert q is not None
        assert k is not None
        assert v is not None
        parts.append(how.weights(q, k, part).matmul(v))
    made = how.joined(parts)
    if how.flat:
        made = made.transpose((0, 2, 1, 3)).reshape(call.out)
    return Made((made,))


COMPOSED: ForwardTable = {
    "Swish": _swish,
    "SwiGLU": _swiglu,
    "Gelu": _gelu,
    "Mish": _plain,
    "HardSwish": _plain,
    "HardSigmoid": _hard_sigmoid,
    "Attention": _attention,
}
"""Those of the reader's fused calls among them are written like this, too, and not node by node."""
