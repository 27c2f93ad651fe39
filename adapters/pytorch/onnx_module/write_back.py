"""Trained weights back into the file that they came from; nothing else of it changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from json import dumps as quoted
from pathlib import Path

import torch
from torch import Tensor, nn

from ....planner.errors import PlanMismatchError, UnsupportedOpError, UsageError
from ....planner.onnx_import.document.model_file import parse_model, read_file
from ....planner.onnx_import.document.protobuf import ModelProto, TensorProto
from ....planner.plan_file.writer import write_whole
from ..unbind import original
from .module import OnnxModule

_KEEP = "keep the weights with torch.save(module.state_dict(), FILE)"
_OUTSIDE = 1  # TensorProto.EXTERNAL


def to_onnx(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the file of a module of `from_onnx` with the module's weights and running statistics.

    Every other field of the file, and every weight that did not change, stays byte for byte.

    Args:
        module: what `from_onnx` returned, bound or not.
        path: where the file is written; it may be the file itself.

    Raises:
        UsageError: the module came from no file.
        PlanMismatchError: the file changed since it was read.
        UnsupportedOpError: a weight that changed is not an initializer inside the file; the message names it.
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
    _write(model, module.written())
    write_whole(model.SerializeToString(), path, "the model ")


def _write(model: ModelProto, tensors: Mapping[str, tuple[Tensor, bool]]) -> None:
    stored = dict(_stored(model))
    for name, (tensor, changed) in tensors.items():
        if not changed:
            continue
        place = stored.get(name)
        if place is None:
            raise UnsupportedOpError(f"weight {quoted(name)} is computed by the file, or inside a branch", remedy=_KEEP)
        if place.data_location == _OUTSIDE:
            raise UnsupportedOpError(f"weight {quoted(name)} is in a file of its own", remedy=_KEEP)
        _put(place, tensor.detach().cpu().contiguous())


def _stored(model: ModelProto) -> Iterable[tuple[str, TensorProto]]:
    """The weights of the main graph by name: initializers, and tensors of Constant nodes."""
    yield from ((tensor.name, tensor) for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _put(place: TensorProto, tensor: Tensor) -> None:
    """The numbers of a tensor in the field that had the old ones; in raw bytes, unless that field had floats."""
    if len(place.float_data):
        place.float_data[:] = tensor.float().flatten().tolist()
        return
    for field in ("double_data", "int32_data", "int64_data", "uint64_data"):
        place.ClearField(field)
    place.raw_data = tensor.flatten().view(torch.uint8).numpy().tobytes()
