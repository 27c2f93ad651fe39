"""NASNet-A: Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", CVPR 2018.

Cells of figure 4, arranged as in figure 2 and in the published reference model, whose paddings are
TensorFlow's. N @ P names N normal cells per stage and P filters before the classifier. Without auxiliary
classifier and without dropped paths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from models.graphs.builder import Value
from models.graphs.net import Net, Padding

EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What surrounds the cells.

    ``reductions_in_stem`` cells halve the extent before the first stage, each with half the filters of the
    next. ``skips_reduction``: the first cell after a reduction reads the input before the reduction's own input.
    """

    side: int
    classes: int
    stem_filters: int
    stem_stride: int
    reductions_in_stem: int
    skips_reduction: bool


MOBILE = Arrangement(224, 1000, 32, 2, 2, False)
LARGE = Arrangement(331, 1000, 96, 2, 2, True)
CIFAR = Arrangement(32, 10, 96, 1, 0, False)


def nasnet_a(cells: int, penultimate: int, arrangement: Arrangement, batch: int) -> onnx.ModelProto:
    """NASNet-A (``cells`` @ ``penultimate``)."""
    net = Net("nasnet_a")
    filters = penultimate // 24  # six parts in a normal cell's output, two doublings
    images = net.input("images", (batch, 3, arrangement.side, arrangement.side))
    with net.scope("stem"):
        padding: Padding = "valid" if arrangement.stem_stride == 2 else "half"
        x = net.conv(images, arrangement.stem_filters, 3, stride=arrangement.stem_stride, padding=padding)
        x = net.batch_norm(x, EPSILON)
    before: Value | None = None
    for number in range(arrangement.reductions_in_stem):
        with net.scope(f"stem.cell{number}"):
            x, before = _reduction_cell(net, x, before, filters >> (arrangement.reductions_in_stem - number)), x
    for stage in range(3):
        if stage:
            with net.scope(f"reduction{stage}"):
                reduced = _reduction_cell(net, x, before, filters << stage)
                x, before = reduced, before if arrangement.skips_reduction else x
        for number in range(cells):
            with net.scope(f"stage{stage}.cell{number}"):
                x, before = _normal_cell(net, x, before, filters << stage), x
    return net.model(net.classify(net.relu(x), arrangement.classes))


def _project(net: Net, x: Value, filters: int) -> Value:
    return net.batch_norm(net.conv(net.relu(x), filters), EPSILON)


def _separable(net: Net, x: Value, filters: int, kernel: int, stride: int = 1) -> Value:
    """Twice ReLU, depthwise and pointwise convolution, norm; the stride is in the first."""
    for step in (stride, 1):
        x = net.relu(x)
        x = net.conv(x, x.shape[1], kernel, stride=step, padding="same", groups=x.shape[1])
        x = net.batch_norm(net.conv(x, filters), EPSILON)
    return x


def _fitted(net: Net, before: Value | None, x: Value, filters: int) -> Value:
    """The earlier input in the extent of ``x`` with ``filters`` channels."""
    if before is None:
        return x
    if before.shape[2:] != x.shape[2:]:
        return _halved(net, before, filters)
    return before if before.shape[1] == filters else _project(net, before, filters)


def _halved(net: Net, x: Value, filters: int) -> Value:
    """Half the extent without losing a position: one half of the filters reads even ones, one half odd ones."""
    x = net.relu(x)
    height, width = x.shape[2:]
    even = net.conv(net.average_pool(x, 1, stride=2), filters // 2)
    pads = net.constant((0, 0, 0, 0, 0, 0, 1, 1), np.int64)
    padded = net.op("Pad", [x, pads], (*x.shape[:2], height + 1, width + 1))
    shifted = net.crop(padded, (1, 1), (height + 1, width + 1))
    odd = net.conv(net.average_pool(shifted, 1, stride=2), filters // 2)
    return net.batch_norm(net.concat([even, odd]), EPSILON)


def _narrowed(net: Net, x: Value, filters: int) -> Value:
    """Without ReLU; only in the first cell of a network, whose earlier input is the stem itself."""
    return x if x.shape[1] == filters else net.batch_norm(net.conv(x, filters), EPSILON)


def _normal_cell(net: Net, x: Value, before: Value | None, filters: int) -> Value:
    p = _fitted(net, before, x, filters)
    h = _project(net, x, filters)

    def average(value: Value) -> Value:
        return _narrowed(net, net.average_pool(value, 3, stride=1, padding="same"), filters)

    return net.concat(
        [
            _narrowed(net, p, filters),
            net.add(_separable(net, h, filters, 5), _separable(net, p, filters, 3)),
            net.add(_separable(net, p, filters, 5), _separable(net, p, filters, 3)),
            net.add(average(h), p if p.shape == h.shape else _project(net, p, filters)),
            net.add(average(p), average(p)),
            net.add(_separable(net, h, filters, 3), h),
        ]
    )


def _reduction_cell(net: Net, x: Value, before: Value | None, filters: int) -> Value:
    p = _fitted(net, before, x, filters)
    h = _project(net, x, filters)

    def largest() -> Value:
        return net.max_pool(h, 3, stride=2, padding="same")

    first = net.add(_separable(net, h, filters, 5, 2), _separable(net, p, filters, 7, 2))
    second = net.add(largest(), _separable(net, p, filters, 7, 2))
    third = net.add(net.average_pool(h, 3, stride=2, padding="same"), _separable(net, p, filters, 5, 2))
    fourth = net.add(net.average_pool(first, 3, stride=1, padding="same"), second)
    fifth = net.add(_separable(net, first, filters, 3), largest())
    return net.concat([second, third, fourth, fifth])
