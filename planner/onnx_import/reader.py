"""model.onnx -> Graph. Weights are never needed and never read from external files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from json import dumps as quoted
from pathlib import Path

from ..errors import InvalidModelError, OgcPlanError
from ..graph import Graph, NodePath, Role
from ..units import is_or_are
from .document.functions import inline_functions, places_of
from .document.model_file import open_model, producer_of
from .document.opsets import opset_versions
from .document.protobuf import ModelProto
from .document.subgraphs import constant_names
from .document.topological_order import NodeOrder
from .document.unsupported_ops import EXPORT_AGAIN
from .graph_walk import Walk
from .meaning.assemble import assemble
from .meaning.folded_norms import folded_norms
from .meaning.fused_calls import FusedCalls
from .shapes.batch_search import BatchSearch
from .shapes.data_dependent_shapes import DataShapes, check_names
from .shapes.declared_types import DeclaredTypes
from .shapes.element_types import cast_operands, taken_as_they_are
from .shapes.input_binding import bind_inputs, read_inputs, tensor_names
from .shapes.input_hints import InputHints
from .shapes.offered_sizes import UnboundSizesError, UnknownSizesError, with_tried_remedy
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
    trained: Sequence[str] = (),
) -> Graph:
    """Read an ONNX file into a forward graph with static shapes: `open_model`, then `forward_calls`."""
    return forward_calls(
        open_model(path), path, dims=dims, inputs=inputs, batch=batch, charge_unknown=charge_unknown, trained=trained
    ).graph


@dataclass(frozen=True, slots=True)
class ForwardCalls:
    """A forward graph with the calls it was made from, those on constants too, for one who runs them.

    ``inputs`` and ``outputs`` are the values of the graph's; a leaf that is no ``constant`` is a parameter. A call's
    ``node`` counts those of the file after inlining: ``places`` says where in the file each of them stands; None if the
    functions of the file had to be converted.
    """

    graph: Graph
    calls: tuple[Call, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    places: tuple[NodePath, ...] | None = None


def forward_calls(
    model: ModelProto,
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    charge_unknown: bool = False,
    trained: Sequence[str] = (),
) -> ForwardCalls:
    """The forward graph of a parsed file with static shapes, and its calls; the arguments are those of `load_model`.

    ``trained`` are globs on the names of floating constants that are parameters in any case. The file's name stands for
    a graph that has none. Raises InvalidModelError, UnsupportedOpError and UnboundDimensionError if the file cannot be
    planned, and UsageError if an argument does not fit the model.
    """
    inlined = inline_functions(model)
    options = partial(_forward_graph, inlined, path, batch=batch, charge_unknown=charge_unknown, trained=trained)
    try:
        read = options(dims=dims or {}, inputs=inputs or {})
        return replace(read, places=places_of(model, inlined))
    except (UnboundSizesError, UnknownSizesError) as error:
        raise with_tried_remedy(
            error, lambda more: options(dims={**(dims or {}), **more.dims}, inputs={**(inputs or {}), **more.shapes})
        ) from None


def _forward_graph(
    model: ModelProto,
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int],
    inputs: Mapping[str, tuple[int, ...]],
    batch: int | None,
    charge_unknown: bool,
    trained: Sequence[str],
) -> ForwardCalls:
    graph, opsets = model.graph, opset_versions(model)
    if not graph.output:
        raise InvalidModelError(f"the graph {quoted(graph.name)} has no outputs", remedy=EXPORT_AGAIN)
    order = NodeOrder(graph)
    declared, left_out = read_inputs(graph, constant_names(graph))
    names = [entry.name for entry in declared]
    given = dict(inputs)
    if given:
        check_names(given, tensor_names(graph), names)
    inside = {name: given.pop(name) for name in [*given] if name not in names}

    def walker(rebatch: Rebatch, shapes: Mapping[str, tuple[int, ...]], sizes: Iterable[tuple[str, int]] = ()) -> Walk:
        """A walk over the file that knows its constants, and the inputs that have shapes."""
        table = ValueTable(order.used, order.made)
        table.refused.update(left_out)
        for entry in declared:
            if entry.name in shapes:
                value = Value(entry.name, entry.dtype, shapes[entry.name], from_input=True, is_input=True)
                table.enter(value, "the model takes")
        enter_leaves(table, graph, {})
        rebatch.enter_constants(table.values.values())
        change = rebatch.change
        types = DeclaredTypes(dict(sizes), (change.old, change.new) if change else None)
        types.add(graph, {})
        for name in order.names:
            table.call_name(name)
        rules = ShapeRules(opsets, graph.node)
        return Walk(rules, table, types, DataShapes(inside), rebatch, opsets[""], charge_unknown=charge_unknown)

    @cache
    def hints() -> InputHints:
        """What the weights say, those included that the file computes from others."""
        walk = walker(Rebatch(None), {})
        for index in order.live:
            node = order.nodes[index]
            if all(not name or name in walk.table.values for name in node.input):
                with suppress(OgcPlanError):
                    walk.visit(node, order.names[index], (index,), speculative=False)
        return InputHints(graph, {name: value.shape for name, value in walk.table.values.items()})

    bound = bind_inputs(declared, dims, given, batch, lambda name: hints().template(name))

    def read(rebatch: Rebatch, shapes: Mapping[str, tuple[int, ...]]) -> _Reading:
        walk = walker(rebatch, shapes, bound.dims)
        table = walk.table
        fused = FusedCalls(order, [output.name for output in graph.output], model.producer_name)
        for index in order.live:
            walk.visit(order.nodes[index], order.names[index], (index,), speculative=index in order.speculative)
            fused.visited(index, table.calls)
        fused.finish(table.calls)
        outputs = [
            value for output in graph.output for value in table.tensors(output.name, f"output {quoted(output.name)}")
        ]
        walk.data_shapes.check(table.values, names)
        if not inputs and not rebatch.change:  # sizes given by hand override what the file says
            for output in graph.output:
                if output.name in table.values:
                    walk.declared.compare(table.values[output.name], output.name)
        return _Reading(walk, fused, outputs)

    if bound.rebatch is None:
        reading = read(Rebatch(None), bound.shapes)
    else:
        before = read(Rebatch(None), bound.shapes_before).walk.table.values
        reading = BatchSearch(
            bound.rebatch,
            {name: value.shape for name, value in before.items()},
            lambda rebatch: read(rebatch, bound.shapes),
            lambda found: {name: value.nbytes for name, value in found.walk.table.values.items()},
        ).run()
    walk, fused, table = reading.walk, reading.fused, reading.walk.table
    if batch is not None:
        check_batch_axis(table.calls, {entry.name: entry.dims for entry in declared}, batch)

    leaves = [value for value in dict.fromkeys(table.values.values()) if value.is_leaf]
    entries = [table.values[name] for name in names]
    made, dropped, calls = assemble(
        graph.name or Path(path).stem,
        leaves,
        table.calls,
        entries,
        reading.outputs,
        model.producer_name,
        trained,
    )
    dropped += len(order.nodes) - len(order.live)
    gone = {call.name for call in table.calls}.difference(op.name for op in made.ops)
    made = replace(
        made,
        opset=opsets[""],
        producer=producer_of(model),
        dims=bound.dims,
        recorded=tuple(value.name for value in leaves if value.declared),
        assumed=(
            *made.assumed,
            *(f"dimension {quoted(symbol)} is bound to {size}" for symbol, size in bound.dims),
            *_counted(((call, call.op_type) for call in walk.inference_form), gone, _in_inference_form),
            *_trained_statistics(made),
            *([f"{dropped} nodes that reach no output are dropped"] if dropped else []),
            *walk.rebatch.assumed(),
            *walk.data_shapes.assumed(),
            *fused.assumed(),
            *_counted(walk.rules.off_schema, gone, partial(taken_as_they_are, opset=opsets[""])),
            *_counted(walk.cast_operands, gone, cast_operands),
            *_counted(((call, call.domain) for call in walk.charged), gone, _charged),
            *walk.declared.assumed(),
            *folded_norms(graph, model.producer_name),
            *(f"input {quoted(name)} reaches no output and is left out" for name in left_out),
        ),
    )
    return ForwardCalls(made, tuple(calls), tuple(entries), tuple(reading.outputs))


@dataclass(frozen=True, slots=True)
class _Reading:
    """One pass over the nodes of a file: what it read, the calls it fused, and the outputs of the graph."""

    walk: Walk
    fused: FusedCalls
    outputs: list[Value]


def _counted(
    found: Iterable[tuple[Call, str]], gone: Collection[str], sentence: Callable[[int, str, str], str]
) -> Iterable[str]:
    """A sentence for every op type and detail among the calls that are left, with their number."""
    counts = Counter((call.op_type, detail) for call, detail in found if call.name not in gone)
    for (op_type, detail), count in sorted(counts.items()):
        yield sentence(count, op_type, detail)


def _trained_statistics(graph: Graph) -> Iterable[str]:
    """A sentence on batch norms whose running statistics the file shares with weights."""
    count = sum(
        op.op_type == "BatchNormalization"
        and any(index is not None and graph.tensors[index].role is Role.PARAMETER for index in op.inputs[3:5])
        for op in graph.ops
    )
    if count:
        yield (
            f"{count} BatchNormalization {'has' if count == 1 else 'have'} weights as running statistics, which would "
            "be trained: the exporter merged equal constants, as those of a new model are; export a trained one"
        )


def _in_inference_form(count: int, op_type: str, _: str) -> str:
    return f"{count} {op_type} in inference form {is_or_are(count)} charged as in training"


def _charged(count: int, op_type: str, domain: str) -> str:
    origin = f" of {domain}" if domain else ""
    return (
        f"{count} {op_type}{origin} {is_or_are(count)} charged as asked: all inputs and outputs held, shapes "
        "as the file declares them, workspace and hidden buffers unknown"
    )
