"""The forward of a bare model as an ONNX file that says which nodes are of which op of the training graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...planner.errors import OversizeError, PlanMismatchError, UnsupportedOpError
from ...planner.graph import View
from ...planner.model import Model
from ...planner.onnx_import.document.model_file import open_model
from ...planner.onnx_import.document.protobuf import GraphProto, ModelProto
from ...planner.onnx_import.reader import ForwardCalls, forward_calls
from ...planner.onnx_import.values.values import Value
from .forward.forward_table import forward
from .nodes.writer import Array, Tensor
from .step_file import IR_VERSION, LARGEST, declared, opset_of
from .values import StepValues


@dataclass(frozen=True, slots=True)
class ForwardFile:
    """The content of a file, the names of the nodes of each op, and a value for each input.

    Weights that the planner does not know are inputs of made-up numbers: a time does not depend on them.
    """

    content: bytes
    nodes: tuple[tuple[str, ...], ...]
    feed: dict[str, Array]


def forward_file(model: Model, path: str) -> ForwardFile:
    """The forward of a training step of ``model``, which was read from ``path``.

    Raises UnsupportedOpError for a model with annotations, whose ops are not those of its nodes, and OversizeError for
    a file that protobuf cannot hold.
    """
    if model.graph is None:
        raise UnsupportedOpError(
            f"{path!r} has annotations, whose ops are those of PyTorch and whose times were measured there",
            remedy="measure in PyTorch with ogc_plan.adapters.pytorch.profile, or pass --ignore-annotations",
        )
    read = forward_calls(
        open_model(path), path, dims=dict(model.dims), inputs=dict(model.inputs), batch=model.batch,
        charge_unknown=True, trained=[glob[1:] for glob in model.frozen if glob.startswith("!")],
    )  # fmt: skip
    if read.graph.fingerprint != model.training.fingerprint:
        raise PlanMismatchError(f"{path!r} changed while it was read", remedy="run the command again")
    values = _MadeUp(read, Path(path).resolve().parent)
    nodes = _written(model, read, values)
    outputs = list(dict.fromkeys(map(values.of, read.outputs)))
    made = ModelProto(ir_version=IR_VERSION, producer_name="ogc-plan", graph=GraphProto(name=read.graph.name))
    made.opset_import.add(domain="", version=opset_of(values.writer.nodes, read.graph.opset))
    graph = made.graph
    graph.node.extend(values.writer.nodes)
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(proto for name, proto in values.writer.constants.items() if name in used)
    feed: dict[str, Array] = {}
    for tensor, array in values.given(read.inputs):
        if tensor.name in used:
            graph.input.append(declared(tensor.name, tensor))
            feed[tensor.name] = array
    graph.output.extend(declared(tensor.name, tensor) for tensor in outputs if tensor.name not in feed)
    if made.ByteSize() > LARGEST:
        raise OversizeError(
            f"the forward of {path!r} has {made.ByteSize()} bytes, more than an ONNX file can have",
            remedy="measure a smaller model",
        )
    return ForwardFile(made.SerializeToString(), nodes, feed)


def _written(model: Model, read: ForwardCalls, values: _MadeUp) -> tuple[tuple[str, ...], ...]:
    """Write the nodes of every op; those of views, which take no time where they share memory, are of none."""
    graph, found = read.graph, []
    for op in model.training.ops:
        call = values.makers[graph.tensors[graph.ops[op.forward].outputs[0]].name]
        values.next_step("view")
        if call.view is not View.NONE:
            found.append(())
            continue
        for value in call.inputs:
            maker = None if value is None else values.makers.get(value.name)
            if value is not None and maker is not None and maker.view is not View.NONE:
                values.of(value)
        values.writer.scope = call.name
        before = len(values.writer.nodes)
        made = forward(call, values.opset, values.writer, values.of)
        values.enter(zip(call.outputs, made.outputs, strict=True))
        found.append(tuple(node.name for node in values.writer.nodes[before:]))
    values.next_step("outputs")
    return tuple(found)


class _MadeUp(StepValues):
    """Values whose large floating leaves are numbers of no meaning; the file need not hold them."""

    def _leaf(self, value: Value) -> Tensor:
        if not value.is_float or value.known is not None or not value.is_leaf:
            return super()._leaf(value)
        tensor = self.writer.tensor(value.name, value.shape, value.dtype)
        self.stored[value.name] = (tensor, _numbers(tensor))
        return tensor

    def given(self, inputs: Sequence[Value]) -> list[tuple[Tensor, Array]]:
        """Every tensor that no node makes, with its numbers."""
        arguments = [self.of(value) for value in inputs]
        return [*((tensor, _numbers(tensor)) for tensor in arguments), *self.stored.values()]


def _numbers(tensor: Tensor) -> Array:
    """Small positive numbers, which nothing turns into denormal ones; zeros, which every table has, for whole ones."""
    if tensor.dtype == "bfloat16" or not tensor.dtype.startswith(("float", "double")):
        return np.zeros(tensor.shape, "bool" if tensor.dtype == "bool" else tensor.dtype)
    return np.random.default_rng(0).uniform(0.01, 0.1, tensor.shape).astype(tensor.dtype)
