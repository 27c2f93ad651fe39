"""Decoder-only transformers, attention and GELU written out in primitive ops.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3 and table 2: pre-norm
blocks, learned positions, the head tied to the token embedding, GELU by its tanh formula as in the published
code. Brown et al., "Language Models are Few-Shot Learners", 2020, table 2.1, for 96 layers (all attention dense).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np
import onnx
from onnx import TensorProto

from models.graphs.builder import Value
from models.graphs.net import Net

VOCABULARY = 50257
MASKED = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes of one block: heads, the width of each, and the width of the MLP's hidden layer."""

    heads: int
    head_width: int
    hidden: int


def gpt(width: int, context: int, layers: Sequence[Layer], batch: int, vocabulary: int = VOCABULARY) -> onnx.ModelProto:
    """Token ids [batch, context] -> scores of the next token [batch, context, vocabulary]."""
    net = Net("gpt")
    ids = net.input("ids", (batch, context), TensorProto.INT64)
    tokens = net.weight("tokens.weight", (vocabulary, width))
    places = net.weight("positions.weight", (context, width))
    mask = net.weight("causal_mask", (1, 1, context, context), TensorProto.BOOL)
    with net.scope("embedding"):
        order = net.constant(np.arange(context)[np.newaxis], np.int64)
        taken = net.op("Gather", [tokens, ids], (batch, context, width), axis=0)
        x = net.add(taken, net.op("Gather", [places, order], (1, context, width), axis=0))
    for number, layer in enumerate(layers):
        with net.scope(f"layer{number}"):
            x = _block(net, x, layer, mask)
    with net.scope("head"):
        x = net.layer_norm(x)
        scores = net.matmul(x, net.transpose(tokens, (1, 0)))
    return net.model(scores)


def uniform(width: int, heads: int, count: int) -> tuple[Layer, ...]:
    """``count`` equal layers, the MLP four times as wide as the residual stream."""
    return (Layer(heads, width // heads, 4 * width),) * count


def scaled(width: int, count: int, *, heads: tuple[int, int], hidden: tuple[int, int]) -> tuple[Layer, ...]:
    """Layers whose heads (of width 64) and hidden widths grow linearly with depth, so that no two are equal.

    Layer-wise scaling: Mehta et al., "OpenELM", 2024, section 2.1. Hidden widths are multiples of 8; they differ
    from layer to layer where the range has 8 units for each. Raises ValueError where it has not.
    """
    places = np.linspace(0, 1, count)
    hiddens = [8 * round((hidden[0] + (hidden[1] - hidden[0]) * place) / 8) for place in places]
    if len(set(hiddens)) < count:
        raise ValueError(f"{count} layers do not fit between hidden widths of {hidden[0]} and {hidden[1]}")
    counts = [round(heads[0] + (heads[1] - heads[0]) * place) for place in places]
    return tuple(Layer(head, 64, wide) for head, wide in zip(counts, hiddens, strict=True))


def _block(net: Net, x: Value, layer: Layer, mask: Value) -> Value:
    with net.scope("attention"):
        x = net.add(x, _attention(net, net.layer_norm(x), layer, mask))
    with net.scope("mlp"):
        hidden = _gelu(net, net.linear(net.layer_norm(x), layer.hidden))
        return net.add(x, net.linear(hidden, x.shape[2]))


def _attention(net: Net, x: Value, layer: Layer, mask: Value) -> Value:
    batch, length, width = x.shape
    inner = layer.heads * layer.head_width
    joined = net.linear(x, 3 * inner)
    parts = net.ops("Split", [joined], [((batch, length, inner), joined.dtype)] * 3, axis=2, num_outputs=3)
    shaped = [net.reshape(part, (batch, length, layer.heads, layer.head_width)) for part in parts]
    query, value = net.transpose(shaped[0], (0, 2, 1, 3)), net.transpose(shaped[2], (0, 2, 1, 3))
    scores = net.matmul(query, net.transpose(shaped[1], (0, 2, 3, 1)))
    scores = net.arithmetic("Div", scores, net.number(sqrt(layer.head_width)))
    masked = net.op("Where", [mask, scores, net.number(MASKED)], scores.shape)
    mixed = net.matmul(net.unary("Softmax", masked, axis=-1), value)
    return net.linear(net.reshape(net.transpose(mixed, (0, 2, 1, 3)), (batch, length, inner)), width)


def _gelu(net: Net, x: Value) -> Value:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    cubed = net.arithmetic("Pow", x, net.number(3.0))
    bent = net.add(x, net.arithmetic("Mul", cubed, net.number(0.044715)))
    curve = net.unary("Tanh", net.arithmetic("Mul", bent, net.number(sqrt(2 / pi))))
    halved = net.arithmetic("Mul", x, net.number(0.5))
    return net.by_hand(net.arithmetic("Mul", halved, net.add(curve, net.number(1.0))))
