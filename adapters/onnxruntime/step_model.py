"""A step's file taken apart: the graph without its weights, and the weights for the trainer to hold."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from json import dumps as quoted
from pathlib import Path
from typing import Any

import numpy as np

from ...planner.errors import InvalidModelError
from ...planner.onnx_import.document.model_file import parse_model, read_file
from ...planner.onnx_import.document.protobuf import ModelProto
from ...planner.onnx_import.values.constant_folding import array_of
from ..onnx_step.step_file import KEY

_RANDOM = frozenset(
    {"Dropout", "Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}
)
_FLOAT = 1  # AttributeProto.FLOAT


@dataclass(frozen=True, slots=True)
class StepModel:
    """A step: what its file says of itself, its digest, shapes and types of what it reads, and the weights in it."""

    name: str
    digest: str
    about: dict[str, Any]
    proto: ModelProto
    reads: dict[str, tuple[tuple[int, ...], int]]
    weights: dict[str, Any]

    def content(self, run: int) -> bytes:
        """The graph whose random ops begin at seeds that follow from ``run``, the number of steps done before it."""
        proto = self.proto
        if run and any(node.op_type in _RANDOM for node in proto.graph.node):
            proto = ModelProto()
            proto.CopyFrom(self.proto)
            for node in proto.graph.node:
                for entry in node.attribute if node.op_type in _RANDOM else ():
                    if entry.name == "seed" and entry.type == _FLOAT:
                        entry.f = float((int(entry.f) + run * 7919) % 2**24)
                    elif entry.name == "seed":
                        entry.i = (entry.i + run * 1000003) % 2**31
        content: bytes = proto.SerializeToString()
        return content


def _stated(text: str, proto: ModelProto) -> dict[str, Any] | None:
    """What a step's metadata say; None if they are damaged, of another version, or not of this graph."""
    try:
        about = json.loads(text)
        inputs, outputs = ({entry.name for entry in entries} for entries in (proto.graph.input, proto.graph.output))
        held = {*about["parameters"], *about["statistics"]}
        read = {*about["inputs"], *about["seeds"], *held}
        made = {*about["parameters"].values(), *about["statistics"].values(), *filter(None, [about["loss"]])}
        right = (about["format"], about["version"]) == (KEY, 1) and read <= inputs and made <= outputs
        right = right and held <= {entry.name for entry in proto.graph.initializer}
        right = right and isinstance(about["session"], dict) and isinstance(about["classes"], int | None)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return about if right else None


def read_step(path: str | os.PathLike[str]) -> StepModel:
    """Read the file that ``ogc-plan emit --to onnx`` wrote. Raises InvalidModelError for any other one."""
    content = read_file(Path(path))
    shown = quoted(Path(path).name)
    proto = parse_model(content, shown, weights=True)
    found = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    about = _stated(found[0], proto) if found else None
    if about is None:
        raise InvalidModelError(
            f"{shown} is no training step of this version",
            remedy="write one with: ogc-plan emit plan.json model.onnx --to onnx -o step.onnx",
        )
    held = {*about["parameters"], *about["statistics"]}
    weights = {
        entry.name: np.array(array_of(entry, Path(path).parent, f"weight {entry.name!r}"))
        for entry in proto.graph.initializer
        if entry.name in held
    }
    rest = [entry for entry in proto.graph.initializer if entry.name not in held]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(rest)
    reads = {
        entry.name: (
            tuple(dim.dim_value for dim in entry.type.tensor_type.shape.dim), entry.type.tensor_type.elem_type
        )
        for entry in proto.graph.input
    }  # fmt: skip
    return StepModel(shown, sha256(content).hexdigest(), about, proto, reads, weights)
