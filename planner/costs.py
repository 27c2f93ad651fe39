"""Cost models: time and workspace of every op, forward and backward.

Roofline (Williams et al., CACM 2009): an op takes the larger of its arithmetic at the device's
attainable rate and its memory traffic at the attainable bandwidth, plus a launch. Rates are the
vendors' datasheet figures (dense, no sparsity) times an efficiency; only ratios matter to a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from .annotations import OpWork
from .backward_rules import saved_for_backward
from .errors import UsageError
from .graph import Graph, Op, Tensor, View
from .training import OpCost, TrainingGraph

CONVOLUTION_WORKSPACE_NBYTES = 9 * 2**20
"""Estimate: the most a convolution of ResNet-50, DenseNet or U-Net took inside one call (torch 2.13, CPU)."""

_BACKWARD_TEMPORARIES = {
    "Abs": 1, "Sin": 1, "Sinh": 1, "Cosh": 1, "Sqrt": 1, "ReduceL1": 1, "ReduceL2": 1, "Cos": 2, "Tan": 2,
    "Reciprocal": 2, "Pow": 2, "Atan": 2, "Div": 2, "ReduceLogSumExp": 2, "Asinh": 3, "Acosh": 3, "Atanh": 3,
    "Softsign": 3, "Erf": 4, "Asin": 4, "Acos": 5, "BatchNormalization": 1,
}  # fmt: skip
"""Temporaries of a backward that torch composes of several kernels, in multiples of the input's size."""

_COMPUTE_EFFICIENCY = 0.6
_BANDWIDTH_EFFICIENCY = 0.8


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates: TFLOP/s for 32-bit and 16-bit floats, bandwidth in GB/s, launch overhead in ns per kernel."""

    name: str
    float32_tflops: float
    float16_tflops: float
    bandwidth_gbps: float
    launch_ns: int


DEVICES = {
    device.name: device
    for device in (
        Device("h200", 67.0, 989.0, 4800.0, 3000),
        Device("a100", 19.5, 312.0, 2039.0, 3000),
        Device("rtx4090", 82.6, 165.2, 1008.0, 3000),
        Device("rtx2080ti", 13.4, 53.8, 616.0, 4000),
        Device("t4", 8.1, 65.0, 320.0, 4000),
        Device("cpu", 0.5, 0.5, 40.0, 1500),
    )
}


MEASURED = "measured"
"""Stands for the device of an annotation, whose times were measured there."""


def device_named(name: str) -> Device:
    """The device of that name. Raises UsageError for an unknown one."""
    if name not in DEVICES:
        raise UsageError(f"device {name!r} is unknown", remedy=f"choose one of {', '.join(DEVICES)}")
    return DEVICES[name]


def forward_flops(op: Op, graph: Graph) -> int:
    """Floating-point operations of one forward; 0 for ops that are bound by memory."""
    inputs = [None if i is None else graph.tensors[i] for i in op.inputs]
    output = graph.tensors[op.outputs[0]]
    if op.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Attention") and len(inputs) > 1:
        first, second = inputs[0], inputs[1]
        assert first is not None
        assert second is not None
        if op.op_type == "Conv":
            return 2 * output.numel * prod(second.shape[1:])
        if op.op_type == "ConvTranspose":
            return 2 * first.numel * prod(second.shape[1:])
        if op.op_type == "Gemm":
            return 2 * output.numel * first.shape[0 if op.attribute("transA", 0) else 1]
        if op.op_type == "MatMul":
            return 2 * output.numel * first.shape[-1]
        return 2 * first.numel * second.shape[-2] + 2 * output.numel * second.shape[-2]
    return 0


def _is_half(op: Op, graph: Graph) -> bool:
    dtype = graph.tensors[op.outputs[0]].dtype
    return dtype in ("float16", "bfloat16") or "float8" in dtype


def _rate(half: bool, device: Device) -> float:
    return (device.float16_tflops if half else device.float32_tflops) * 1e3 * _COMPUTE_EFFICIENCY  # flop per ns


def _time_ns(flops: float, nbytes: float, rate: float, device: Device, kernels: int = 1) -> int:
    bandwidth = device.bandwidth_gbps * _BANDWIDTH_EFFICIENCY  # bytes per ns
    return round(max(flops / rate, nbytes / bandwidth)) + device.launch_ns * kernels


def _workspace(op: Op, inputs: list[Tensor], output: Tensor) -> tuple[int, int]:
    """Estimated (forward, backward) workspace in bytes."""
    if op.op_type in ("Conv", "ConvTranspose"):
        estimate = min(CONVOLUTION_WORKSPACE_NBYTES, max(tensor.nbytes for tensor in inputs))
        return estimate, estimate
    return 0, _BACKWARD_TEMPORARIES.get(op.op_type, 0) * max(inputs[0].nbytes if inputs else 0, output.nbytes)


def roofline(graph: Graph, training: TrainingGraph, device: Device) -> tuple[OpCost, ...]:
    """One OpCost per op of the training graph, under the roofline of ``device``."""
    costs = []
    for planned in training.ops:
        op = graph.ops[planned.forward]
        inputs = [graph.tensors[i] for i in op.inputs if i is not None]
        outputs = [graph.tensors[i] for i in op.outputs]
        given = (
            [training.gradients[edge.gradient].nbytes for edge in planned.backward.gives] if planned.backward else []
        )
        if op.view is not View.NONE:
            taken = sum(tensor.nbytes for tensor in outputs)
            costs.append(OpCost(0, _time_ns(0, taken + sum(given), 1.0, device) if planned.backward else 0))
            continue
        flops, rate = forward_flops(op, graph), _rate(_is_half(op, graph), device)
        traffic = sum(tensor.nbytes for tensor in inputs) + sum(training.storages[s].nbytes for s in planned.writes)
        if op.op_type == "Gather":  # reads only the rows it takes
            traffic = 2 * outputs[0].nbytes
        backward_ns = 0
        if planned.backward is not None:
            operands = sum(edge.position in (0, 1) for edge in planned.backward.gives) if flops else 0
            backward_flops = flops * (2.5 if op.op_type == "Attention" else operands)
            positions = frozenset(range(len(op.inputs)))
            read = saved_for_backward(op, graph, positions)
            touched = [graph.tensors[i] for p in read.inputs if p < len(op.inputs) and (i := op.inputs[p]) is not None]
            touched += [outputs[p] for p in read.outputs] + outputs[:1]
            backward_traffic = sum(t.nbytes for t in touched) + sum(read.hidden_nbytes) + sum(given)
            free = all(edge.alias_of is not None for edge in planned.backward.gives)
            backward_ns = 0 if free else _time_ns(backward_flops, backward_traffic, rate, device)
        workspace = _workspace(op, inputs, outputs[0])
        backward_workspace = workspace[1] if planned.backward is not None else 0
        costs.append(OpCost(_time_ns(flops, traffic, rate, device), backward_ns, workspace[0], backward_workspace))
    return tuple(costs)


def work_costs(works: Iterable[OpWork], device: Device | None) -> tuple[OpCost, ...]:
    """One OpCost per annotated op: under the roofline of ``device``, or the times measured where it is None.

    No kernels take no time.
    """
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
