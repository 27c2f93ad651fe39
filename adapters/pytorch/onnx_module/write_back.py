"""Trained weights back into the file that they came from; nothing else of it changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import count
from json import dumps as quoted
from pathlib import Path

import torch
from torch import Tensor, nn

from ....planner.errors import InvalidModelError, PlanMismatchError, UnsupportedOpError, UsageError
from ....planner.onnx_import.document.model_file import external_files, parse_model, read_file, tensors_of
from ....planner.onnx_import.document.protobuf import DTYPES, ModelProto, TensorProto
from ....planner.plan_file.writer import write_whole
from ..unbind import original
from .module import OnnxModule
from .node import torch_dtype

_CHUNK = 1 << 24
_KEEP = "keep the weights with torch.save(module.state_dict(), FILE)"
_OUTSIDE = 1  # TensorProto.EXTERNAL


def to_onnx(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the file of a module of `from_onnx` with the module's weights and running statistics.

    Every other field of the file, and every weight that did not change, stays byte for byte. Weights beside the file go
    to a copy of their file: ``PATH.data`` beside ``path``, or the same file if ``path`` is the file itself.

    Args:
        module: what `from_onnx` returned, bound or not.
        path: where the file is written; it may be the file itself.

    Raises:
        UsageError: the module came from no file, or the path holds weights of its file.
        PlanMismatchError: the file changed since it was read.
        UnsupportedOpError: a weight that changed is computed by the file or lies in a branch; the message names it.
        StorageError: a file cannot be read or written.

    Example:
        >>> module = from_onnx("fixed.onnx", batch=2)
        >>> to_onnx(module, "trained.onnx")
    """
    module = original(module)
    if not isinstance(module, OnnxModule):
        raise UsageError(f"{type(module).__name__} came from no ONNX file", remedy="pass a module of from_onnx")
    source = Path(module.onnx_file)
    content = read_file(source)
    if sha256(content).hexdigest() != module.onnx_sha256:
        raise PlanMismatchError(f"{quoted(str(source))} has changed since it was read", remedy="read it with from_onnx")
    model = parse_model(content, quoted(source.name), weights=True)
    outside = _write(model, module.written())
    _write_outside(model, source, Path(path), outside)
    write_whole(model.SerializeToString(), path, "the model ")


def _write(model: ModelProto, tensors: Mapping[str, tuple[Tensor, bool]]) -> dict[str, dict[int, bytes]]:
    """Put the weights into the model; returns those beside the file, by their file and offset."""
    stored = dict(_stored(model))
    outside: dict[str, dict[int, bytes]] = {}
    for name, (tensor, changed) in tensors.items():
        if not changed:
            continue
        place = stored.get(name)
        if place is None:
            raise UnsupportedOpError(f"weight {quoted(name)} is computed by the file, or inside a branch", remedy=_KEEP)
        if place.data_location == _OUTSIDE:
            entries = _entries(place)
            outside.setdefault(entries["location"], {})[int(entries.get("offset", "0"))] = _raw(tensor, place)
        else:
            _put(place, tensor)
    return outside


def _entries(place: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in place.external_data}


def _write_outside(model: ModelProto, source: Path, target: Path, changed: Mapping[str, Mapping[int, bytes]]) -> None:
    """Write the files of weights that changed, or that the target needs beside it, and name them in the model."""
    placed = [tensor for tensor in tensors_of(model) if tensor.data_location == _OUTSIDE]
    itself = target.exists() and target.samefile(source)
    beside = target.parent.resolve() == source.parent.resolve()
    locations = list(dict.fromkeys(_entries(tensor).get("location", "") for tensor in placed))
    for location in locations:
        if not location or Path(location).is_absolute() or ".." in Path(location).parts:
            raise InvalidModelError(
                f"{source.name!r} names weights in {quoted(location)}, which is no file in its folder",
                remedy="save the model with its weights beside it",
            )
    held = {path.resolve() for path in external_files(model, source.parent)}
    if target.resolve() in held:
        raise UsageError(f"{str(target)!r} holds weights of {source.name!r}", remedy="write another file")
    numbers = ("" if number == 0 else f".{number}" for number in count())
    free = (
        name for number in numbers if (target.parent / (name := f"{target.name}{number}.data")).resolve() not in held
    )
    for location in locations:
        if beside and location not in changed:
            continue
        name = location if itself else next(free)
        pieces = _with_changes(source.parent / location, changed.get(location, {}))
        write_whole(pieces, target.parent / name, "the weights ")
        for tensor in placed:
            for entry in tensor.external_data:
                if entry.key == "location" and entry.value == location:
                    entry.value = name


def _with_changes(path: Path, changes: Mapping[int, bytes]) -> Iterator[bytes]:
    """The bytes of a file in pieces, with others at some offsets."""
    at = 0
    with path.open("rb") as file:
        for offset in (*sorted(changes), None):
            while offset is None or at < offset:
                piece = file.read(_CHUNK if offset is None else min(_CHUNK, offset - at))
                if not piece:
                    break
                at += len(piece)
                yield piece
            if offset is not None:
                yield changes[offset]
                at = offset + len(changes[offset])
                file.seek(at)


def _stored(model: ModelProto) -> Iterable[tuple[str, TensorProto]]:
    """The weights of the main graph by name: initializers, and tensors of Constant nodes."""
    yield from ((tensor.name, tensor) for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _put(place: TensorProto, tensor: Tensor) -> None:
    """The numbers of a tensor in the field that had the old ones; in raw bytes, unless that field had floats."""
    if len(place.float_data):
        place.float_data[:] = tensor.detach().float().flatten().tolist()
        return
    for field in ("double_data", "int32_data", "int64_data", "uint64_data"):
        place.ClearField(field)
    place.raw_data = _raw(tensor, place)


def _raw(tensor: Tensor, place: TensorProto) -> bytes:
    """The bytes of a tensor in the element type of the file; the module may have been cast."""
    cast = tensor.detach().to(torch_dtype(DTYPES[place.data_type])).cpu().contiguous()
    raw: bytes = cast.flatten().view(torch.uint8).numpy().tobytes()
    return raw
