"""The roofline cost model (Williams et al., CACM 2009): time and workspace of every op, forward and backward.

The time of an op is the larger of its arithmetic and its memory traffic at the attainable rates, plus its launches.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..annotations import OpWork
from ..autodiff.rule_table import saved_for_backward
from ..autodiff.rules.temporaries import BACKWARD_MULTIPLES
from ..graph import ITEM_BITS, Graph, Op, View
from ..training_graph import OpCost, TrainingGraph, TrainingOp
from .devices import Device
from .flops import SHAPE_ONLY, arithmetic
from .workspace import workspace_nbytes

_COMPUTE_EFFICIENCY = 0.6
_BANDWIDTH_EFFICIENCY = 0.8
_DOUBLE_SLOWDOWN = 2  # of 64-bit arithmetic on devices built for it; others are slower still

_ROW_READERS = frozenset({"Gather", "GatherElements", "GatherND"})

_KERNELS = {
    "LRN": 6, "MeanVarianceNormalization": 5, "LpPool": 5, "RotaryEmbedding": 4, "TopK": 4, "Softsign": 3,
    "HardSigmoid": 3, "GlobalLpPool": 3, "DynamicQuantizeLinear": 3, "STFT": 3, "LpNormalization": 2, "SwiGLU": 2,
    "ReduceSumSquare": 2, "ReduceLogSum": 2, "SoftmaxCrossEntropyLoss": 2, "DequantizeLinear": 2, "DFT": 2, "Det": 2,
    "DeformConv": 2, "AffineGrid": 2, "TensorScatter": 2, "Scatter": 2, "ScatterElements": 2, "ScatterND": 2,
    "CenterCropPad": 2, "ReverseSequence": 2, "OneHot": 2,
}  # fmt: skip
"""Forward passes over the data, one kernel each, of op types that PyTorch composes of several kernels."""

_BACKWARD_KERNELS = {"Div": 3, "Pow": 3, "Mod": 2}
"""Backward passes of op types whose temporaries depend on more than the type; others make one in each pass."""


def _kernels(op: Op) -> tuple[int, int]:
    """(forward, backward) passes over the data."""
    if op.domain not in ("", "ai.onnx"):
        return 1, 1
    if op.op_type in ("Sum", "Max", "Min", "Mean"):
        return max(1, len(op.inputs) - 1 + (op.op_type == "Mean")), 1
    backward = _BACKWARD_KERNELS.get(op.op_type, 1 + BACKWARD_MULTIPLES.get(op.op_type, 0))
    return _KERNELS.get(op.op_type, 1), backward


def _is_half(op: Op, graph: Graph) -> bool:
    """Whether elements have at most 16 bits; 8-bit ones are timed like 16-bit ones."""
    tensors = [graph.tensors[i] for i in (*op.outputs[:1], *op.inputs[:1]) if i is not None]
    return any(ITEM_BITS[tensor.dtype] <= 16 and tensor.dtype != "bool" for tensor in tensors)


def _op_rate(op: Op, graph: Graph, matrix: bool, device: Device) -> float:
    """Attainable operations per ns. 16-bit arithmetic is faster only on matrix units."""
    rate = _rate(matrix and _is_half(op, graph), device)
    return rate / _DOUBLE_SLOWDOWN if graph.tensors[op.outputs[0]].dtype in ("float64", "complex128") else rate


def _rate(half: bool, device: Device) -> float:
    return (device.float16_tflops if half else device.float32_tflops) * 1e3 * _COMPUTE_EFFICIENCY  # flop per ns


def _time_ns(flops: float, nbytes: float, rate: float, device: Device, kernels: int = 1) -> int:
    bandwidth = device.bandwidth_gbps * _BANDWIDTH_EFFICIENCY  # bytes per ns
    return round(max(flops / rate, nbytes / bandwidth)) + device.launch_ns * kernels


def roofline(graph: Graph, training: TrainingGraph, device: Device) -> tuple[OpCost, ...]:
    """One OpCost per op of the training graph, under the roofline of ``device``."""
    known: dict[object, OpCost] = {}  # layers repeat
    costs = []
    for planned in training.ops:
        alike = _alike(graph, training, planned)
        if alike not in known:
            known[alike] = _op_cost(graph, training, planned, device)
        costs.append(known[alike])
    return tuple(costs)


def _alike(graph: Graph, training: TrainingGraph, planned: TrainingOp) -> object:
    """All that the cost of an op follows from on one device."""
    op, gives = graph.ops[planned.forward], planned.backward.gives if planned.backward else None
    tensors = op.inputs + op.outputs
    seen = [None if i is None else (*(t := graph.tensors[i]).shape, t.dtype, t.role) for i in tensors]
    first: dict[int | None, int] = {}  # an op may take one tensor twice
    same = tuple(first.setdefault(tensor, at) for at, tensor in enumerate(tensors))
    given = None if gives is None else tuple(
        (edge.position, edge.alias_of is None, training.gradients[edge.gradient].nbytes) for edge in gives
    )  # fmt: skip
    written = tuple(training.storages[s].nbytes for s in planned.writes)
    return op.op_type, op.domain, op.view, op.copied, repr(op.attributes), len(op.inputs), *seen, same, given, written


def _op_cost(graph: Graph, training: TrainingGraph, planned: TrainingOp, device: Device) -> OpCost:
    op, backward = graph.ops[planned.forward], planned.backward
    given = sum(training.gradients[edge.gradient].nbytes for edge in backward.gives) if backward else 0
    outputs = [graph.tensors[i] for i in op.outputs]
    if op.view is not View.NONE:
        taken = sum(tensor.nbytes for tensor in outputs)
        return OpCost(0, _time_ns(0, taken + given, 1.0, device) if backward else 0)
    if op.op_type in SHAPE_ONLY and not op.domain:
        return OpCost(0)
    work, kernels = arithmetic(op, graph), _kernels(op)
    rate, steps = _op_rate(op, graph, work.matrix, device), work.steps - 1
    traffic = _forward_traffic(op, graph, training, planned, kernels[0])
    forward_ns = _time_ns(work.forward, traffic, rate, device, kernels[0] + len(op.copied) + steps)
    needs = frozenset(edge.position for edge in backward.gives) if backward else frozenset[int]()
    forward_workspace, backward_workspace = workspace_nbytes(op, graph, needs, on_cpu=device.is_cpu)
    if backward is None:
        return OpCost(forward_ns, 0, forward_workspace)
    backward_ns = 0
    if any(edge.alias_of is None for edge in backward.gives):
        flops = work.backward(edge.position for edge in backward.gives)
        traffic = _backward_traffic(op, graph, kernels[1]) + given
        backward_ns = _time_ns(flops, traffic, rate, device, kernels[1] + steps)
    return OpCost(forward_ns, backward_ns, forward_workspace, backward_workspace)


def _again_nbytes(op: Op, graph: Graph, kernels: int) -> int:
    """Traffic of the passes after the first: each reads and writes a tensor of the op's size."""
    sizes = [graph.tensors[i].nbytes for i in (*op.inputs[:1], *op.outputs[:1]) if i is not None]
    return 2 * (kernels - 1) * max(sizes, default=0)


def _forward_traffic(op: Op, graph: Graph, training: TrainingGraph, planned: TrainingOp, kernels: int) -> int:
    """Bytes read and written: inputs, outputs and hidden buffers, once for each pass over them."""
    if op.op_type in _ROW_READERS and not op.domain:  # reads only the rows it takes
        indices = op.inputs[1]
        return 2 * graph.tensors[op.outputs[0]].nbytes + (0 if indices is None else graph.tensors[indices].nbytes)
    read = sum(graph.tensors[i].nbytes for i in op.inputs if i is not None)
    written = sum(training.storages[s].nbytes for s in planned.writes)
    copies = 2 * sum(nbytes for _, nbytes in op.copied)
    return read + written + copies + _again_nbytes(op, graph, kernels) + _recurrence_nbytes(op, graph)


def _recurrence_nbytes(op: Op, graph: Graph) -> int:
    """Bytes of the recurrence weights, which every step of an LSTM, GRU or RNN but the first reads again."""
    if op.op_type not in ("LSTM", "GRU", "RNN") or op.domain or op.inputs[0] is None or op.inputs[2] is None:
        return 0
    data, weight = graph.tensors[op.inputs[0]], graph.tensors[op.inputs[2]]
    return weight.nbytes * max(0, data.shape[1 if op.attribute("layout", 0) else 0] - 1)


def _backward_traffic(op: Op, graph: Graph, kernels: int) -> int:
    """Bytes that a backward reads: what is saved for it, and the gradient of its output."""
    output = graph.tensors[op.outputs[0]]
    read = saved_for_backward(op, graph, frozenset(range(len(op.inputs))))
    touched = [graph.tensors[i] for p in read.inputs if p < len(op.inputs) and (i := op.inputs[p]) is not None]
    touched += [graph.tensors[op.outputs[p]] for p in read.outputs]
    again = _again_nbytes(op, graph, kernels) + _recurrence_nbytes(op, graph)
    if op.op_type in _ROW_READERS and not op.domain:
        again += 2 * output.nbytes  # the rows of the given gradient that are added to
    return sum(tensor.nbytes for tensor in touched) + output.nbytes + sum(read.hidden_nbytes) + again


def work_costs(works: Iterable[OpWork], device: Device | None) -> tuple[OpCost, ...]:
    """One OpCost per annotated op, under the roofline of ``device`` or with the measured times if it is None."""
    costs = []
    for work in works:
        forward_ns, backward_ns = work.forward_ns, work.backward_ns
        if device is not None:
            rate = _rate(work.half, device)
            forward_ns, backward_ns = (
                _time_ns(flops, traffic, rate, device, kernels) if kernels else 0
                for flops, traffic, kernels in (
                    (work.forward_flops, work.forward_traffic_nbytes, work.forward_kernels),
                    (work.backward_flops, work.backward_traffic_nbytes, work.backward_kernels),
                )
            )
        costs.append(
            OpCost(
                forward_ns,
                backward_ns,
                work.forward_workspace_nbytes,
                work.backward_workspace_nbytes,
                work.backward_activation_workspace_nbytes,
            )
        )
    return tuple(costs)
