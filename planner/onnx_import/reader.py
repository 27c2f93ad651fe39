"""model.onnx -> Graph. Weights are never needed and never read from external files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from json import dumps as quoted
from pathlib import Path

from ..errors import InvalidModelError
from ..graph import Graph
from ..units import is_or_are
from .document.functions import inline_functions
from .document.model_file import open_model, producer_of
from .document.opsets import opset_versions
from .document.protobuf import ModelProto
from .document.subgraphs import constant_names
from .document.topological_order import NodeOrder
from .document.unsupported_ops import EXPORT_AGAIN
from .graph_walk import Walk
from .meaning.assemble import assemble
from .meaning.fused_calls import FusedCalls
from .shapes.data_dependent_shapes import DataShapes, check_names
from .shapes.declared_types import DeclaredTypes
from .shapes.element_types import cast_operands, taken_as_they_are
from .shapes.input_binding import bind_inputs, read_inputs, tensor_names
from .shapes.rebatch import Rebatch, check_batch_axis
from .shapes.shape_inference import ShapeRules
from .values.initializers import enter_leaves
from .values.value_table import ValueTable
from .values.values import Call, Value


def read_onnx(
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    charge_unknown: bool = False,
) -> Graph:
    """Read an ONNX file into a forward graph with static shapes: `open_model`, then `forward_graph`."""
    return forward_graph(open_model(path), path, dims=dims, inputs=inputs, batch=batch, charge_unknown=charge_unknown)


def forward_graph(
    model: ModelProto,
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    charge_unknown: bool = False,
) -> Graph:
    """The forward graph of a parsed file with static shapes; its arguments are those of `load_model`.

    The file's name stands for a graph that has none. Raises InvalidModelError, UnsupportedOpError and
    UnboundDimensionError if the file cannot be planned, and UsageError if an argument does not fit the model.
    """
    model = inline_functions(model)
    graph, opsets = model.graph, opset_versions(model)
    if not graph.output:
        raise InvalidModelError(f"the graph {quoted(graph.name)} has no outputs", remedy=EXPORT_AGAIN)
    order = NodeOrder(graph)
    table = ValueTable(order.used, order.made)

    declared = read_inputs(graph, constant_names(graph), table)
    left_out = tuple(table.refused)
    names = [entry.name for entry in declared]
    given = dict(inputs or {})
    if given:
        check_names(given, tensor_names(graph), names)
    data_shapes = DataShapes({name: given.pop(name) for name in [*given] if name not in names})
    bound = bind_inputs(declared, dims or {}, given, batch)
    for entry in declared:
        shape = bound.shapes[entry.name]
        table.values[entry.name] = Value(entry.name, entry.dtype, shape, from_input=True, is_input=True)
    enter_leaves(table, graph, {})
    types = DeclaredTypes(dict(bound.dims), bound.rebatch)
    types.add(graph, {})

    rules, rebatch = ShapeRules(opsets), Rebatch(bound.rebatch)
    walk = Walk(rules, table, types, data_shapes, rebatch, opsets[""], charge_unknown=charge_unknown)
    for name in order.names:
        table.call_name(name)
    fused = FusedCalls(order.nodes, order.live, [output.name for output in graph.output])
    for index in order.live:
        walk.visit(order.nodes[index], order.names[index], speculative=index in order.speculative)
        fused.visited(index, table.calls)
    outputs = [
        value for output in graph.output for value in table.tensors(output.name, f"output {quoted(output.name)}")
    ]
    data_shapes.check(table.values, names)
    if batch is not None:
        check_batch_axis(table.calls, {entry.name: entry.dims for entry in declared}, batch)

    leaves = [value for value in dict.fromkeys(table.values.values()) if value.is_leaf]
    read, dropped = assemble(
        graph.name or Path(path).stem,
        leaves,
        table.calls,
        [table.values[name] for name in names],
        outputs,
        model.producer_name,
    )
    dropped += len(order.nodes) - len(order.live)
    gone = {call.name for call in table.calls}.difference(op.name for op in read.ops)
    return replace(
        read,
        opset=opsets[""],
        producer=producer_of(model),
        dims=bound.dims,
        recorded=tuple(value.name for value in leaves if value.declared),
        assumed=(
            *(f"dimension {quoted(symbol)} is bound to {size}" for symbol, size in bound.dims),
            *_counted(((call, call.op_type) for call in walk.inference_form), gone, _in_inference_form),
            *([f"{dropped} nodes that reach no output are dropped"] if dropped else []),
            *rebatch.assumed(),
            *data_shapes.assumed(),
            *fused.assumed(),
            *_counted(rules.off_schema, gone, partial(taken_as_they_are, opset=opsets[""])),
            *_counted(walk.cast_operands, gone, cast_operands),
            *_counted(((call, call.domain) for call in walk.charged), gone, _charged),
            *types.assumed(),
            *(f"input {quoted(name)} reaches no output and is left out" for name in left_out),
        ),
    )


def _counted(
    found: Iterable[tuple[Call, str]], gone: Collection[str], sentence: Callable[[int, str, str], str]
) -> Iterable[str]:
    """A sentence for every op type and detail among the calls that are left, with their number."""
    counts = Counter((call.op_type, detail) for call, detail in found if call.name not in gone)
    for (op_type, detail), count in sorted(counts.items()):
        yield sentence(count, op_type, detail)


def _in_inference_form(count: int, op_type: str, _: str) -> str:
    return f"{count} {op_type} in inference form {is_or_are(count)} charged as in training"


def _charged(count: int, op_type: str, domain: str) -> str:
    origin = f" of {domain}" if domain else ""
    return (
        f"{count} {op_type}{origin} {is_or_are(count)} charged as asked: all inputs and outputs held, shapes "
        "as the file declares them, workspace and hidden buffers unknown"
    )
