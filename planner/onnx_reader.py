"""model.onnx -> Graph. Weights are never needed and never read from external files.

This module and shapes.py are the only ones that know the onnx library; both are imported only when
a file is read.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from json import dumps as quoted
from pathlib import Path
from typing import TYPE_CHECKING

from .annotations import MODEL_KEY, NODE_KEY, Annotation, loads
from .annotations import REMEDY as ANNOTATION_REMEDY
from .errors import InvalidModelError, StorageError, UnsupportedOpError
from .graph import Graph
from .reading.input_shapes import BoundInputs, DeclaredInput, bind_inputs
from .reading.node_order import REMEDY, node_names, reaching_outputs, topological_order
from .reading.onnx_functions import check_functions
from .reading.roles import assemble
from .reading.values import Value

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

MAX_NODES = 2**20
MAX_FILE_NBYTES = 2**31 - 1  # the limit of protobuf
_KEPT_TENSOR_NBYTES = 2**20  # longer tensors are let go as soon as the file is parsed
_RECORDED_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


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
) -> Graph:
    """Read an ONNX file into a forward graph with static shapes: `open_model`, then `forward_graph`."""
    return forward_graph(open_model(path), path, dims=dims, inputs=inputs, batch=batch)


def open_model(path: str | os.PathLike[str]) -> ModelProto:
    """The parsed file, without large tensors. Raises StorageError or InvalidModelError."""
    return parse_model(read_file(Path(path)))


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
) -> Graph:
    """The forward graph of a parsed file with static shapes; ``path`` only names a graph without a name.

    ``dims`` binds symbolic dimensions, ``inputs`` replaces whole input shapes, ``batch`` replaces the
    leading dimension of the inputs that carry the batch. Raises InvalidModelError, UnsupportedOpError or
    UnboundDimensionError when it cannot be planned, and UsageError when an argument does not fit the model.
    """
    from .reading.onnx_walk import Walk
    from .reading.retarget import Rebatch
    from .reading.shapes import ShapeRules

    model = inline_functions(model)
    graph, opsets = model.graph, opset_versions(model)
    if not graph.output:
        raise InvalidModelError(f"the graph {quoted(graph.name)} has no outputs", remedy=REMEDY)
    constants = _constants(graph)
    nodes = list(graph.node)
    names = node_names(nodes)
    live = reaching_outputs(graph, nodes, topological_order(graph, nodes, constants))
    bound = bind_inputs(_declared(graph, constants), dims or {}, inputs or {}, batch)
    values = _input_values(graph, constants, bound)
    _enter_leaves(graph, values)

    used = frozenset(name for index in live for name in nodes[index].input) | {output.name for output in graph.output}
    rebatch = Rebatch(bound.rebatch)
    walk = Walk(ShapeRules(opsets), values, used, opsets[""], rebatch)
    for index in live:
        walk.visit(nodes[index], names[index])
    for output in graph.output:
        if output.name not in values:
            raise UnsupportedOpError(
                f"output {quoted(output.name)} is a sequence of tensors", remedy="return tensors from the model"
            )
    leaves = [value for value in values.values() if value.is_leaf]
    parts = assemble(
        leaves,
        walk.calls,
        [value for value in values.values() if value.is_input],
        [values[output.name] for output in graph.output],
    )
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
        assumed=tuple(_assumed(bound, walk.inference_form, len(nodes) - len(live) + parts.dropped, rebatch.count)),
    )


def read_file(path: Path) -> bytes:
    """The bytes of a regular file; StorageError when there is none to be read, and no other file is opened."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise StorageError(f"{quoted(str(path))} is {what}", remedy="pass the path of an .onnx file")
        if status.st_size > MAX_FILE_NBYTES:
            raise InvalidModelError(
                f"{quoted(str(path))} has {status.st_size} bytes, more than an ONNX file can have",
                remedy="save the weights as external data",
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StorageError(
            f"{quoted(str(path))} cannot be read: {reason}", remedy="check the path and its permissions"
        ) from None


def parse_model(data: bytes) -> ModelProto:
    """Parse a serialized model and let its large tensors go. Raises InvalidModelError."""
    from onnx import ModelProto

    if not data:
        raise InvalidModelError("the file is empty", remedy=REMEDY)
    if data.startswith(b"version https://git-lfs"):
        raise InvalidModelError("the file is a git-lfs pointer, not the model", remedy="run: git lfs pull")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        reason = str(error).split("\n")[0][:200]
        raise InvalidModelError(f"the file is not an ONNX model, or is cut short: {reason}", remedy=REMEDY) from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidModelError("the file holds no graph: it is not an ONNX model", remedy=REMEDY)
    if len(model.graph.node) > MAX_NODES:
        raise UnsupportedOpError(
            f"the graph has {len(model.graph.node)} nodes; at most {MAX_NODES} can be planned",
            remedy="export a smaller model",
        )
    if any(isinstance(text, bytes) for text in _texts(model)):
        raise InvalidModelError("the file holds names that are not UTF-8 text: it is damaged", remedy=REMEDY)
    tensors: list[TensorProto] = list(model.graph.initializer)
    tensors += [attribute.t for node in model.graph.node if node.op_type == "Constant" for attribute in node.attribute]
    for tensor in tensors:
        if len(tensor.raw_data) > _KEPT_TENSOR_NBYTES:
            tensor.ClearField("raw_data")
    return model


def _texts(model: ModelProto) -> Iterable[object]:
    """Every name in the file; the parser hands out bytes for one that is not UTF-8."""
    graph = model.graph
    yield from (graph.name, model.producer_name, model.producer_version)
    yield from (entry.domain for entry in model.opset_import)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for entry in (*graph.input, *graph.output, *graph.value_info):
        yield entry.name
        yield from (dim.dim_param for dim in entry.type.tensor_type.shape.dim)
    nodes = list(graph.node)
    for function in model.functions:
        yield from (function.domain, function.name, function.overload, *function.input, *function.output)
        yield from (entry.domain for entry in function.opset_import)
        yield from function.attribute
        nodes.extend(function.node)
    for entry in (model, *graph.value_info, *graph.initializer, *nodes):
        yield from (text for pair in entry.metadata_props for text in (pair.key, pair.value))
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
        yield from (text for attribute in node.attribute for text in (attribute.name, attribute.ref_attr_name))


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

    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        reason = str(error).split("\n")[0][:200]
        raise InvalidModelError(f"the functions of the model cannot be inlined: {reason}", remedy=REMEDY) from None


def _constants(graph: GraphProto) -> frozenset[str]:
    """Names of the initializers."""
    names = [tensor.name for tensor in graph.initializer]
    names += [tensor.values.name for tensor in graph.sparse_initializer]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidModelError(f"there are two initializers {quoted(twice[0])}", remedy=REMEDY)
    return frozenset(names)


def _declared(graph: GraphProto, constants: frozenset[str]) -> list[DeclaredInput]:
    """The real inputs: files of IR version 3 list their initializers among the inputs too."""
    return [
        DeclaredInput(entry.name, _input_dtype(entry).startswith(("float", "bfloat")), _dims(entry))
        for entry in graph.input
        if entry.name not in constants
    ]


def _input_dtype(entry: ValueInfoProto) -> str:
    from .reading.shapes import dtype_name

    where = f"input {quoted(entry.name)}"
    kind = entry.type.WhichOneof("value")
    if kind is None or (kind == "tensor_type" and not entry.type.tensor_type.elem_type):
        raise InvalidModelError(f"{where} has no type", remedy=REMEDY)
    if kind != "tensor_type":
        raise UnsupportedOpError(f"{where} is a {kind.removesuffix('_type')}", remedy="only tensors can be planned")
    return dtype_name(entry.type.tensor_type.elem_type, where)


def _dims(entry: ValueInfoProto) -> tuple[int | str | None, ...] | None:
    """The declared dimensions; exporters write 0 and -1 for a size they do not know."""
    if not entry.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_param or None
        if dim.WhichOneof("value") != "dim_value"
        else (dim.dim_value if dim.dim_value > 0 else None)
        for dim in entry.type.tensor_type.shape.dim
    )


def _input_values(graph: GraphProto, constants: frozenset[str], bound: BoundInputs) -> dict[str, Value]:
    return {
        entry.name: Value(entry.name, _input_dtype(entry), bound.shapes[entry.name], from_input=True, is_input=True)
        for entry in graph.input
        if entry.name not in constants
    }


def _enter_leaves(graph: GraphProto, values: dict[str, Value]) -> None:
    """The initializers, with what torch's exporter recorded about each."""
    from .reading.onnx_walk import leaf

    recorded = {
        entry.name: property.value
        for entry in (*graph.value_info, *graph.initializer)
        for property in entry.metadata_props
        if property.key == _RECORDED_KIND
    }
    for tensor in graph.initializer:
        value = leaf(values, tensor.name, tensor, f"initializer {quoted(tensor.name)}")
        kind = recorded.get(tensor.name, "")
        value.declared = kind if kind in ("PARAMETER", "BUFFER") else ("BUFFER" if kind else "")
    for sparse in graph.sparse_initializer:
        from .reading.shapes import dtype_name

        name = sparse.values.name
        dtype = dtype_name(sparse.values.data_type, f"initializer {quoted(name)}")
        values[name] = Value(name, dtype, tuple(sparse.dims), from_file=True, is_leaf=True)


def _assumed(bound: BoundInputs, inference_form: Mapping[str, int], dropped: int, retargeted: int) -> Iterable[str]:
    """One sentence for everything that the file does not say itself."""
    for symbol, size in bound.dims:
        yield f"dimension {quoted(symbol)} is bound to {size}"
    if bound.rebatch is not None and retargeted:
        old, new = bound.rebatch
        yield f"{retargeted} constant Reshape or Expand targets are changed from batch {old} to {new}"
    for op_type, count in inference_form.items():
        if count:
            yield f"{count} {op_type} in inference form are charged as in training"
    if dropped:
        yield f"{dropped} nodes that reach no output are dropped"
