"""A written step as an ONNX file that says how it is to be run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...planner.errors import OversizeError, PlanMismatchError, UnsupportedOpError
from ...planner.model import Model
from ...planner.onnx_import.document.model_file import open_model
from ...planner.onnx_import.document.protobuf import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    defs,
)
from ...planner.onnx_import.reader import forward_calls
from ...planner.plan_file.record import Plan
from .losses import Loss
from .node_memory import NodePeak, node_peak
from .nodes.writer import Tensor, number_of
from .step import WrittenStep, write_step

KEY = "ogc-plan-step"
"""The metadata that says what inputs and outputs are, as JSON."""
SESSION = {
    "graph_optimization_level": "ORT_DISABLE_ALL", "execution_order": "PRIORITY_BASED", "enable_mem_reuse": False,
    "enable_mem_pattern": False,
}  # fmt: skip
"""Options of ONNX Runtime under which it runs the nodes in the order of the file, merges no recomputation, and holds
no buffer of a dead tensor for a later one of the same size."""
IR_VERSION, LARGEST = 10, 2**31 - 1
_OPSET = 21


@dataclass(frozen=True, slots=True)
class StepFile:
    """The content of a step's file, and what it tells."""

    content: bytes
    about: dict[str, Any]
    nodes: int
    peak: NodePeak


def step_file(plan: Plan, model: Model, path: str, loss: Loss | None = None) -> StepFile:
    """One training step by a plan that has been verified against ``model``, which is read from ``path``.

    Raises UnsupportedOpError for an op without a gradient function and for a plan of annotations, UsageError for a loss
    that does not fit, and OversizeError for a file that protobuf cannot hold.
    """
    loss = Loss() if loss is None else loss
    if model.graph is None:
        raise UnsupportedOpError(
            f"{path!r} was planned by its annotations, whose ops are those of PyTorch",
            remedy="plan the bare graph: ogc-plan MODEL --ignore-annotations --budget 60% -o plan.json",
        )
    record = plan.model
    read = forward_calls(
        open_model(path, weights=True), path, dims=dict(record.dims), inputs=dict(record.inputs), batch=record.batch,
        charge_unknown=True, trained=[glob[1:] for glob in plan.budget.frozen if glob.startswith("!")],
    )  # fmt: skip
    if read.graph.fingerprint != model.training.fingerprint:
        raise PlanMismatchError(f"{path!r} changed while it was read", remedy="run the command again")
    written = write_step(plan.schedule, model.training, read, Path(path).resolve().parent, loss)
    made = ModelProto(ir_version=IR_VERSION, producer_name="ogc-plan", graph=GraphProto(name=read.graph.name))
    made.opset_import.add(domain="", version=opset_of(written.writer.nodes, read.graph.opset))
    about, peak = _fill(made, written, plan, loss)
    about["sha256"] = model.sha256
    entry = made.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(about)
    if made.ByteSize() > LARGEST:
        raise OversizeError(
            f"the step of {path!r} has {made.ByteSize()} bytes, more than an ONNX file can have",
            remedy="plan a smaller model: the weights of a step are inside its file",
        )
    return StepFile(made.SerializeToString(), about, len(made.graph.node), peak)


def _fill(made: ModelProto, written: WrittenStep, plan: Plan, loss: Loss) -> tuple[dict[str, Any], NodePeak]:
    graph = made.graph
    names = _Names(written)
    parameters = {name: names.output(f"gradient of {name}", g) for name, g in written.gradients.items()}
    statistics = {name: names.output(f"next {name}", t) for name, t in written.statistics.items()}
    outputs = [names.output(name, tensor) for name, tensor in written.outputs]
    result = None if written.seeds.loss is None else names.output("loss", written.seeds.loss)
    graph.node.extend(names.renamed())
    used = {name for node in graph.node for name in node.input} | {name for name, _ in names.made}
    for tensor in (*written.inputs, *written.seeds.inputs):
        graph.input.append(declared(tensor.name, tensor))
    for name, (tensor, array) in written.stored.items():
        if name in used:
            proto = TensorProto(name=name, data_type=number_of(tensor.dtype), dims=tensor.shape)
            proto.raw_data = np.ascontiguousarray(array).tobytes()
            graph.initializer.append(proto)
            if name in parameters or name in statistics:
                graph.input.append(declared(name, tensor))
    graph.initializer.extend(proto for name, proto in written.writer.constants.items() if name in used)
    graph.output.extend(declared(name, tensor) for name, tensor in names.made)
    about = {
        "format": KEY, "version": 1, "model": plan.model.file, "fingerprint": plan.model.fingerprint,
        "activation_peak_nbytes": plan.peak.activation_nbytes, "session": SESSION,
        "inputs": [tensor.name for tensor in written.inputs], "loss_kind": loss.kind, "classes": written.seeds.classes,
        "seeds": [tensor.name for tensor in written.seeds.inputs], "outputs": outputs, "loss": result,
        "parameters": parameters, "statistics": statistics,
    }  # fmt: skip
    sizes = {names.now(name): nbytes for name, nbytes in written.writer.nbytes.items()}
    return about, node_peak(graph.node, sizes, {name for name, _ in names.made})


def opset_of(nodes: Iterable[NodeProto], own: int) -> int:
    """The version of the operators of what is written; that of the file where newer ops stand in it."""
    return _OPSET if all(defs.has(node.op_type, _OPSET) for node in nodes) else max(_OPSET, own)


def declared(name: str, tensor: Tensor) -> ValueInfoProto:
    """An input or output of a graph."""
    made = ValueInfoProto(name=name)
    kind = made.type.tensor_type
    kind.elem_type = number_of(tensor.dtype)
    kind.shape.SetInParent()
    for size in tensor.shape:
        kind.shape.dim.add(dim_value=size)
    return made


class _Names:
    """Gives the outputs of the graph their names, by renaming where that is possible, else by an Identity."""

    def __init__(self, written: WrittenStep) -> None:
        self._writer = written.writer
        self._from_nodes = {name for node in written.writer.nodes for name in node.output}
        self._taken = {*self._from_nodes, *written.stored, *(tensor.name for tensor in written.inputs)}
        self._new: dict[str, str] = {}
        self.made: list[tuple[str, Tensor]] = []

    def output(self, wanted: str, tensor: Tensor) -> str:
        """Make a tensor an output of the graph; returns its name."""
        listed = {name for name, _ in self.made}
        if tensor.name == wanted and wanted in self._from_nodes and wanted not in listed:
            name = wanted
        else:
            name = wanted
            while name in self._taken or name in listed:
                name += "~"
            if tensor.name in self._from_nodes and tensor.name not in self._new and tensor.name not in listed:
                self._new[tensor.name] = name
            else:
                self._writer.scope = "outputs"
                self._writer.several("Identity", (tensor,), [(tensor.shape, tensor.dtype)], names=(name,))
        self.made.append((name, tensor))
        return name

    def now(self, name: str) -> str:
        """The present name of a result."""
        return self._new.get(name, name)

    def renamed(self) -> Iterator[NodeProto]:
        """The nodes with the new names."""
        for node in self._writer.nodes:
            for names in (node.input, node.output):
                for at, name in enumerate(names):
                    if name in self._new:
                        names[at] = self._new[name]
            yield node
