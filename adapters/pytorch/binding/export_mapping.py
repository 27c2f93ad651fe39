"""Maps the nodes of an exported program to the ops of a training graph.

The training graph is traced from the module itself, the ONNX file is written from `torch.export`. If a graph traced
from the exported program has the same ops, its nodes tell where each op came from.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ....planner.errors import OgcPlanError
from ..capture.diagnostics import first_line
from ..capture.joint_graph import capture
from ..errors import UnsupportedModuleError
from ..step.step_graph import TracedStep


def exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """The exported program of a module. Raises UnsupportedModuleError."""
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        raise UnsupportedModuleError(
            f"torch.export cannot capture {type(module).__name__}: {first_line(error)}",
            remedy="use within_budget, which needs no ONNX file",
        ) from error


def ops_of_nodes(
    program: torch.export.ExportedProgram, step: TracedStep, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> dict[str, tuple[str, ...]]:
    """For each node of the program the ops that come from it; empty if the two graphs have different ops."""
    module = program.module(check_guards=False)
    try:
        again = TracedStep(capture(module, args, kwargs))
    except OgcPlanError:
        return {}
    if [op.name for op in again.ops] != [op.name for op in step.ops]:
        return {}
    found: dict[str, list[str]] = {}
    for op in again.ops:
        for source in (op.node.meta.get("from_node") or []) if op.node is not None else []:
            found.setdefault(source.name, []).append(op.name)
    return {name: tuple(names) for name, names in found.items()}
