"""Estimates of the workspace of an op of a bare file: scratch of a kernel, temporaries between kernels."""

from __future__ import annotations

from math import prod

from ..autodiff.rule_table import RULES, call_of, saved_for_backward
from ..autodiff.rules import aten_calls as recorded
from ..autodiff.rules.cpu_kernels import temporaries_on_cpu
from ..autodiff.rules.temporaries import temporaries_nbytes
from ..graph import ATEN_DOMAIN, ITEM_BITS, Graph, Op, Tensor

CONVOLUTION_WORKSPACE_NBYTES = 9 * 2**20
"""Estimate: the largest workspace of a convolution in ResNet-50, DenseNet or U-Net (torch 2.13, CPU)."""

_DEFORM_CONV_IMAGES = 32  # torchvision lays out the samples of at most so many images at a time

_SCRATCH_MULTIPLES = {"BatchNormalization": (0, 1), "TopK": (3, 0)}
"""Scratch of one kernel (forward, backward) in multiples of the input's size; TopK may sort values and indices."""

ESTIMATED = frozenset({"Conv", "ConvTranspose", "DeformConv", "Einsum", "LSTM", "GRU", "RNN"})
"""Op types whose workspace depends on the library's algorithm and can only be estimated."""


def workspace_nbytes(op: Op, graph: Graph, needs: frozenset[int], *, on_cpu: bool = False) -> tuple[int, int]:
    """(forward, backward) workspace in bytes of an op whose input positions in ``needs`` need a gradient."""
    inputs = [graph.tensors[i] for i in op.inputs if i is not None]
    output = graph.tensors[op.outputs[0]]
    if op.domain == ATEN_DOMAIN:
        return recorded.temporaries_nbytes(call_of(op, graph, needs))
    if op.domain not in ("", "ai.onnx"):
        return 0, 0
    if op.op_type in ("Conv", "ConvTranspose"):
        estimate = min(CONVOLUTION_WORKSPACE_NBYTES, max(tensor.nbytes for tensor in inputs))
        return estimate, estimate
    if op.op_type == "DeformConv":
        columns = _columns_nbytes(inputs[0], inputs[1], output) + output.nbytes
        return columns, columns
    if op.op_type in ("LSTM", "GRU", "RNN"):
        gates = _gates_nbytes(inputs[0], inputs[1]) + inputs[1].nbytes + inputs[2].nbytes
        return gates, gates
    if op.op_type not in RULES:
        return 0, 0
    call = call_of(op, graph, needs)
    temporaries = (temporaries_on_cpu(call) if on_cpu else None) or temporaries_nbytes(call)
    forward, backward = (
        between + times * max(inputs[0].nbytes if inputs else 0, output.nbytes)
        for between, times in zip(temporaries, _SCRATCH_MULTIPLES.get(op.op_type, (0, 0)), strict=True)
    )
    if not needs:  # hidden buffers are freed at once
        forward += sum(saved_for_backward(op, graph, frozenset(range(len(op.inputs)))).hidden_nbytes)
    return forward, backward


def _columns_nbytes(data: Tensor, weight: Tensor, output: Tensor) -> int:
    """The samples of as many images as torchvision processes at a time: a divisor of the batch."""
    batch = data.shape[0] if data.shape else 1
    images = max((d for d in range(1, min(batch, _DEFORM_CONV_IMAGES) + 1) if batch % d == 0), default=1)
    samples = images * prod(data.shape[1:2]) * prod(weight.shape[2:]) * prod(output.shape[2:])
    return (samples * ITEM_BITS[data.dtype] + 7) // 8


def _gates_nbytes(data: Tensor, weight: Tensor) -> int:
    """The gates of all steps before their activation."""
    return (prod(data.shape[:2]) * prod(weight.shape[:2]) * ITEM_BITS[data.dtype] + 7) // 8
