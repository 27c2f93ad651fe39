"""model.onnx -> Graph. Weights are never needed and never read from external files.

Only this module, document/protobuf.py, shape_inference.py and constant_folding.py know the onnx library, which is
imported when a file is read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from json import dumps as quoted
from pathlib import Path
from typing import TYPE_CHECKING

from ..annotations import MODEL_KEY, NODE_KEY, Annotation, loads
from ..annotations import REMEDY as ANNOTATION_REMEDY
from ..errors import InvalidModelError, UnsupportedOpError
from ..graph import Graph
from .document.function_limits import check_functions
from .document.model_file import parse_model, read_file
from .document.subgraphs import all_nodes, constant_names
from .document.topological_order import REMEDY, NodeOrder
from .meaning.assemble import assemble
from .shapes.declared_types import DeclaredTypes
from .shapes.input_binding import BoundInputs, bind_inputs
from .values.data_dependent_shapes import DataShapes, check_names
from .values.element_types import cast_operands, taken_as_they_are
from .values.values import Call, Value

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True, slots=True)
class AnnotatedPart:
    """What an adapter wrote into a file, and who wrote the file with which opset."""

    annotation: Annotation
    producer: str
    opset: int


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


def open_model(path: str | os.PathLike[str]) -> ModelProto:
    """The parsed file, without large tensors. Raises StorageError or InvalidModelError."""
    return parse_model(read_file(Path(path)), quoted(Path(path).name))


def annotated_part(model: ModelProto) -> AnnotatedPart | None:
    """The annotations of a file, None where it has none.

    Raises InvalidModelError for annotations that are damaged or do not belong to the file's nodes.
    """
    texts = [entry.value for entry in model.metadata_props if entry.key == MODEL_KEY]
    if not texts:
        return None
    if len(texts) > 1:
        raise InvalidModelError(f"the file holds {len(texts)} annotations", remedy=ANNOTATION_REMEDY)
    annotation = loads(texts[0])
    known = {op.name for op in annotation.graph.ops}
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        for entry in node.metadata_props:
            if entry.key == NODE_KEY and entry.value not in known:
                raise InvalidModelError(
                    f"node {quoted(node.name)} belongs to the op {quoted(entry.value)}, which is not among the "
                    "annotations: the file was changed after its export",
                    remedy=ANNOTATION_REMEDY,
                )
    return AnnotatedPart(annotation, _producer(model), opset_versions(model)[""])


def _producer(model: ModelProto) -> str:
    return f"{model.producer_name} {model.producer_version}".strip()


def forward_graph(
    model: ModelProto,
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    charge_unknown: bool = False,
) -> Graph:
    """The forward graph of a parsed file with static shapes; ``path`` only names a graph without a name.

    ``dims`` binds symbolic dimensions, ``inputs`` replaces whole input shapes and gives a shape to tensors inside
    whose shape depends on data, ``batch`` replaces the leading dimension of the inputs that carry the batch.
    ``charge_unknown`` reads ops that the onnx library does not know, or that have no training semantics here, by
    what the file declares of their outputs, and charges them with all inputs and outputs.
    Raises InvalidModelError, UnsupportedOpError or UnboundDimensionError when it cannot be planned, and UsageError
    when an argument does not fit the model.
    """
    from .graph_walk import Walk
    from .meaning.fused_calls import Composites
    from .shapes.graph_inputs import read_inputs, tensor_names
    from .shapes.rebatch import Rebatch, check_batch_axis
    from .shapes.shape_inference import ShapeRules
    from .values.initializers import enter_leaves
    from .values.value_table import ValueTable

    inputs = inputs or {}
    model = inline_functions(model)
    graph, opsets = model.graph, opset_versions(model)
    if not graph.output:
        raise InvalidModelError(f"the graph {quoted(graph.name)} has no outputs", remedy=REMEDY)
    constants, order = constant_names(graph), NodeOrder(graph)
    table = ValueTable(order.used, order.made)
    declared = read_inputs(graph, constants, table)
    left_out = tuple(table.refused)
    names = [entry.name for entry in declared]
    if inputs:
        check_names(inputs, tensor_names(graph), names)
    of_inputs = {name: shape for name, shape in inputs.items() if name in names}
    data_shapes = DataShapes({name: shape for name, shape in inputs.items() if name not in names})
    bound = bind_inputs(declared, dims or {}, of_inputs, batch)
    for entry in declared:
        shape = bound.shapes[entry.name]
        table.values[entry.name] = Value(entry.name, entry.dtype, shape, from_input=True, is_input=True)
    enter_leaves(table, graph, {})
    types = DeclaredTypes(dict(bound.dims), bound.rebatch)
    types.add(graph, {})

    rebatch = Rebatch(bound.rebatch)
    rules = ShapeRules(opsets)
    walk = Walk(rules, table, types, data_shapes, rebatch, opsets[""], charge_unknown=charge_unknown)
    for name in order.names:
        table.call_name(name)
    composites = Composites(order.nodes, order.live, [output.name for output in graph.output])
    for index in order.live:
        walk.visit(order.nodes[index], order.names[index], speculative=index in order.speculative)
        composites.visited(index, table.calls)
    outputs = [
        value for output in graph.output for value in table.tensors(output.name, f"output {quoted(output.name)}")
    ]
    data_shapes.check(table.values, names)
    if batch is not None:
        check_batch_axis(table.calls, {entry.name: entry.dims for entry in declared}, batch)
    leaves = [value for value in dict.fromkeys(table.values.values()) if value.is_leaf]
    parts = assemble(leaves, table.calls, [table.values[name] for name in names], outputs, model.producer_name)
    dropped = len(order.nodes) - len(order.live) + parts.dropped
    gone = {call.name for call in table.calls}.difference(op.name for op in parts.ops)
    in_inference_form = Counter(call.op_type for call in walk.inference_form if call.name not in gone)
    charged = Counter((call.op_type, call.domain) for call in walk.charged if call.name not in gone)
    return Graph(
        name=graph.name or Path(path).stem,
        storages=parts.storages,
        tensors=parts.tensors,
        ops=parts.ops,
        inputs=parts.inputs,
        outputs=parts.outputs,
        opset=opsets[""],
        producer=_producer(model),
        dims=bound.dims,
        recorded=tuple(value.name for value in leaves if value.declared),
        assumed=(
            *_assumed(bound, dict(sorted(in_inference_form.items())), dropped),
            *rebatch.assumed(),
            *data_shapes.assumed(),
            *composites.notes(),
            *_element_types(rules.off_schema, walk.cast_operands, gone, opsets[""]),
            *(_charged(op_type, domain, count) for (op_type, domain), count in sorted(charged.items())),
            *types.assumed(),
            *(f"input {quoted(name)} reaches no output and is left out" for name in left_out),
        ),
    )


def opset_versions(model: ModelProto) -> dict[str, int]:
    """The version of each imported operator domain that the onnx library knows; "" is the standard one."""
    from onnx import defs

    versions: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise InvalidModelError(
                f"domain {quoted(domain)} is imported as {versions[domain]} and {entry.version}",
                remedy=REMEDY,
            )
    newest = defs.onnx_opset_version()
    if versions.setdefault("", 1) > newest:
        raise UnsupportedOpError(
            f"the model uses opset {versions['']}; the installed onnx library knows up to {newest}",
            remedy="install a newer onnx package",
        )
    if versions[""] < 1:
        raise InvalidModelError(f"the model imports opset {versions['']}", remedy=REMEDY)
    standard = {schema.domain for schema in defs.get_all_schemas()}
    return {domain: version for domain, version in versions.items() if domain in standard}


def inline_functions(model: ModelProto) -> ModelProto:
    """Replace calls of the file's own functions by their bodies, once the result is known to be bounded."""
    if not model.functions:
        return model
    check_functions(model)
    from onnx import inliner

    from .document.function_opsets import aligned

    model, convert = aligned(model)
    try:
        inlined = inliner.inline_local_functions(model, convert_version=convert)
    except Exception as error:
        reason = str(error).split("\n")[0][:200]
        raise InvalidModelError(f"the functions of the model cannot be inlined: {reason}", remedy=REMEDY) from None
    kept = {(function.domain, function.name) for function in inlined.functions}
    for node in all_nodes(inlined.graph.node):
        if (node.domain, node.op_type) in kept:
            where = f"node {quoted(node.name or node.op_type)}"
            raise UnsupportedOpError(
                f"{where} calls function {quoted(node.op_type)}, which cannot be inlined",
                remedy="export the model and its functions with one opset",
            )
    return inlined


def _assumed(bound: BoundInputs, inference_form: Mapping[str, int], dropped: int) -> Iterable[str]:
    """One sentence for everything that the file does not say itself."""
    for symbol, size in bound.dims:
        yield f"dimension {quoted(symbol)} is bound to {size}"
    for op_type, count in inference_form.items():
        yield f"{count} {op_type} in inference form are charged as in training"
    if dropped:
        yield f"{dropped} nodes that reach no output are dropped"


def _element_types(
    off_schema: Iterable[tuple[Call, str]], cast: Iterable[tuple[Call, str]], gone: Collection[str], opset: int
) -> Iterable[str]:
    """One sentence for every op type with an element type that its definition does not allow."""
    for found, sentence in ((off_schema, partial(taken_as_they_are, opset=opset)), (cast, cast_operands)):
        counts = Counter((call.op_type, dtype) for call, dtype in found if call.name not in gone)
        for (op_type, dtype), count in sorted(counts.items()):
            yield sentence(count, op_type, dtype)


def _charged(op_type: str, domain: str, count: int) -> str:
    origin = f" of {domain}" if domain else ""
    return (
        f"{count} {op_type}{origin} are charged as asked: all inputs and outputs held, shapes as the file declares "
        "them, workspace and hidden buffers unknown"
    )
