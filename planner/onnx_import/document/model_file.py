"""The bytes of a file, the model in them and its annotations; a damaged or foreign file is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from json import dumps as quoted
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...annotations import MODEL_KEY, NODE_KEY, REMEDY, Annotation, loads
from ...errors import InvalidModelError, StorageError, UnsupportedOpError
from .subgraphs import subgraphs
from .unsupported_ops import EXPORT_AGAIN

if TYPE_CHECKING:
    from .protobuf import GraphProto, ModelProto, StringStringEntryProto, TensorProto

MAX_NODES = 2**20
MAX_FILE_NBYTES = 2**31 - 1  # the limit of protobuf
_KEPT_TENSOR_NBYTES = 2**20  # larger tensors are freed as soon as the file is parsed


def open_model(path: str | os.PathLike[str], *, weights: bool = False) -> ModelProto:
    """The parsed file, large tensors only if ``weights``. Raises StorageError or InvalidModelError."""
    return parse_model(read_file(Path(path)), quoted(Path(path).name), weights=weights)


def read_file(path: Path) -> bytes:
    """The bytes of a regular file. Raises StorageError if it cannot be read; no other file is opened."""
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


def parse_model(data: bytes, path: str = "the file", *, weights: bool = False) -> ModelProto:
    """Parse a serialized model, large tensors if ``weights``; errors call it ``path``. Raises InvalidModelError."""
    from .opsets import check_versions
    from .protobuf import ModelProto

    if not data:
        raise InvalidModelError(f"{path} is empty", remedy=EXPORT_AGAIN)
    if data.startswith(b"version https://git-lfs"):
        raise InvalidModelError(f"{path} is a git-lfs pointer, not the model", remedy="run: git lfs pull")
    if data.startswith(b"\x1f\x8b"):
        raise InvalidModelError(
            f"{path} is compressed with gzip; a model is read uncompressed", remedy="run: gunzip < FILE > model.onnx"
        )
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:
        reason = str(error).split("\n")[0][:200]
        raise InvalidModelError(
            f"{path} is not an ONNX model, or is cut short: {reason}", remedy=EXPORT_AGAIN
        ) from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidModelError(f"{path} holds no graph: it is not an ONNX model", remedy=EXPORT_AGAIN)
    if len(model.graph.node) > MAX_NODES:
        raise UnsupportedOpError(
            f"{path} has {len(model.graph.node)} nodes; at most {MAX_NODES} can be planned",
            remedy="export a smaller model",
        )
    check_versions(model, path)
    graphs = _graphs(model)
    if any(bytes in map(type, texts) for texts in _texts(model, graphs)):
        raise InvalidModelError(f"{path} holds names that are not UTF-8 text: it is damaged", remedy=EXPORT_AGAIN)
    for inner in () if weights else graphs:
        tensors = list(inner.initializer)
        tensors += [field.t for node in inner.node if node.op_type == "Constant" for field in node.attribute]
        for tensor in tensors:
            if len(tensor.raw_data) > _KEPT_TENSOR_NBYTES:
                tensor.ClearField("raw_data")
    return model


def tensors_of(message: Any) -> Iterator[TensorProto]:
    """Every tensor in a message, those of functions and branches too."""
    from .protobuf import TensorProto

    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for entry in [value] if hasattr(value, "ListFields") else value:
            if isinstance(entry, TensorProto):
                yield entry
            else:
                yield from tensors_of(entry)


def external_files(model: ModelProto, folder: Path) -> list[Path]:
    """The files beside a model in ``folder`` that hold its weights."""
    names = {entry.value for tensor in tensors_of(model) for entry in tensor.external_data if entry.key == "location"}
    return [folder / name for name in sorted(names)]


def _graphs(model: ModelProto) -> list[GraphProto]:
    """The main graph and every graph inside a node."""
    found = [model.graph]
    found += [graph for function in model.functions for node in function.node for graph in subgraphs(node)]
    for outer in found:  # which grows
        found.extend(graph for node in outer.node for graph in subgraphs(node))
    return found


def _texts(model: ModelProto, graphs: Iterable[GraphProto]) -> Iterator[Iterable[object]]:
    """Every name in the file, in groups; the parser returns bytes for a name that is not UTF-8."""
    yield model.producer_name, model.producer_version
    yield (entry.domain for entry in model.opset_import)
    yield _pairs(model.metadata_props)
    nodes = [node for function in model.functions for node in function.node]
    for function in model.functions:
        yield function.domain, function.name, function.overload, *function.input, *function.output
        yield (entry.domain for entry in function.opset_import)
        yield function.attribute
    for graph in graphs:
        nodes.extend(graph.node)
        yield graph.name, *(tensor.name for tensor in graph.initializer)
        yield (sparse.values.name for sparse in graph.sparse_initializer)
        for entry in (*graph.input, *graph.output, *graph.value_info):
            yield entry.name, *(dim.dim_param for dim in entry.type.tensor_type.shape.dim)
        for entry in (*graph.value_info, *graph.initializer):
            if entry.metadata_props:
                yield _pairs(entry.metadata_props)
    for node in nodes:
        yield node.name, node.op_type, node.domain, node.overload, *node.input, *node.output
        if node.metadata_props:
            yield _pairs(node.metadata_props)
        if node.attribute:
            yield [text for attribute in node.attribute for text in (attribute.name, attribute.ref_attr_name)]


def _pairs(entries: Iterable[StringStringEntryProto]) -> list[str]:
    return [text for entry in entries for text in (entry.key, entry.value)]


def annotated_part(model: ModelProto) -> Annotation | None:
    """The annotations of a file, None where it has none. Raises InvalidModelError if they do not fit its nodes."""
    texts = [entry.value for entry in model.metadata_props if entry.key == MODEL_KEY]
    if not texts:
        return None
    if len(texts) > 1:
        raise InvalidModelError(f"the file holds {len(texts)} annotations", remedy=REMEDY)
    annotation = loads(texts[0])
    known = {op.name for op in annotation.graph.ops}
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        for entry in node.metadata_props:
            if entry.key == NODE_KEY and entry.value not in known:
                raise InvalidModelError(
                    f"node {quoted(node.name)} belongs to the op {quoted(entry.value)}, which is not among the "
                    "annotations: the file was changed after its export",
                    remedy=REMEDY,
                )
    return annotation


def ops_of_nodes(model: ModelProto) -> list[str]:
    """The op of the annotations that each node of the main graph records, "" for none."""
    return [
        next((entry.value for entry in node.metadata_props if entry.key == NODE_KEY), "") for node in model.graph.node
    ]


def producer_of(model: ModelProto) -> str:
    """The name and version of the program that wrote a file."""
    return f"{model.producer_name} {model.producer_version}".strip()
