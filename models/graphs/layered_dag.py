"""Random layered graphs: heavily branching networks without any repetition.

The layer-by-layer method of the scheduling literature (Tobita and Kasahara, "A standard task graph set for fair
evaluation of multiprocessor scheduling algorithms", Journal of Scheduling 2002; as benchmarks of orders of
computation: Gagrani et al., "Neural Topological Ordering for Computation Graphs", NeurIPS 2022): layers of random
width, edges to the few layers before. Ops are those of image networks, with one to three operands and widths
apart by a factor of eight and more, so that sizes and times spread as in real networks.
"""

from __future__ import annotations

from random import Random

import onnx

from models.graphs.builder import Value
from models.graphs.net import Net

SIDE = 28
WIDTHS = (32, 64, 128, 256)
MOST_CHANNELS = 512  # of a concatenation, and of what anything but a convolution may read
WIDEST_LAYER = 8
REACH = 3  # layers back
OPERANDS = ((1, 2, 3), (11, 7, 2))  # how many, how often
SINGLE = (("Relu", "Sigmoid", "Tanh", "norm", "pool", "depthwise", "1x1", "3x3"), (4, 1, 1, 4, 1, 2, 4, 3))


def layered_dag(nodes: int, seed: int, batch: int) -> onnx.ModelProto:
    """A graph of ``nodes`` ops and one view, the same for the same seed; what nobody reads is merged at the end."""
    net, rng = Net(f"layered_dag_{nodes}_{seed}"), Random(seed)
    layers = [[net.input("features", (batch, WIDTHS[1], SIDE, SIDE))]]
    unread: list[Value] = []
    remaining = nodes - 3  # the merge, the average and the scores; flattening in between is a view
    while remaining:
        pool = [value for layer in layers[-REACH:] for value in layer]
        layer = []
        for _ in range(min(rng.randint(1, WIDEST_LAYER), remaining)):
            operands = _operands(rng, pool, unread)
            layer.append(_op(net, rng, operands))
            unread = [value for value in unread if value not in operands]
        layers.append(layer)
        unread += layer
        remaining -= len(layer)
    merged = net.concat(unread) if len(unread) > 1 else net.relu(unread[0])
    return net.model(net.classify(merged, 10))


def _operands(rng: Random, pool: list[Value], unread: list[Value]) -> list[Value]:
    """One to three values of the pool: first, mostly, the one that waits longest; then mostly of its shape."""
    count = rng.choices(*OPERANDS)[0]
    first = unread[0] if unread and rng.random() < 0.8 else rng.choice(pool)
    chosen = [first]
    while len(chosen) < count:
        others = [value for value in pool if value not in chosen]
        alike = [value for value in others if value.shape == first.shape]
        candidates = alike if alike and rng.random() < 0.8 else others
        if not candidates:
            break
        chosen.append(rng.choice(candidates))
    while sum(value.shape[1] for value in chosen) > MOST_CHANNELS and len({v.shape for v in chosen}) > 1:
        chosen.pop()
    return chosen


def _op(net: Net, rng: Random, operands: list[Value]) -> Value:
    x = operands[0]
    if len(operands) > 1:
        if any(value.shape != x.shape for value in operands):
            return net.concat(operands)
        kind = rng.choice(("Add", "Add", "Mul")) if len(operands) == 2 else "Sum"
        return net.arithmetic(kind, *operands)
    kind = rng.choices(*SINGLE)[0] if x.shape[1] <= MOST_CHANNELS // 2 else "1x1"
    if kind == "norm":
        return net.batch_norm(x)
    if kind == "pool":
        return net.max_pool(x, 3, stride=1, padding="half")
    if kind == "depthwise":
        return net.conv(x, x.shape[1], 3, groups=x.shape[1])
    if kind in ("1x1", "3x3"):
        return net.conv(x, rng.choice(WIDTHS), int(kind[0]))
    return net.unary(kind, x)
