"""The ops that torch runs, by family, and what runs one call."""

from __future__ import annotations

from ....planner.graph import ATEN_DOMAIN
from ....planner.onnx_import.values.values import Call
from . import (
    activations,
    convolution,
    elementwise,
    indexing,
    losses,
    normalisation,
    products,
    quantisation,
    recurrent,
    reductions,
    shaping,
    spectral,
)
from .node import Builder

_FAMILIES = (
    activations,
    convolution,
    elementwise,
    indexing,
    losses,
    normalisation,
    products,
    quantisation,
    recurrent,
    reductions,
    shaping,
    spectral,
)

OPS: dict[str, Builder] = {name: builder for family in _FAMILIES for name, builder in family.OPS.items()}
"""Ops of the default domain as a file writes them."""

FUSED: dict[str, Builder] = {name: builder for family in _FAMILIES for name, builder in family.FUSED.items()}
"""Calls that the reader makes of several nodes; one that is not here is run node by node."""


def written(call: Call) -> list[Call]:
    """The calls to run for one of the reader's: itself, or the nodes that it stands for."""
    fused = call.op_type in FUSED and len(call.outputs) == 1
    if not call.parts or fused:
        return [call]
    return [inner for part in call.parts for inner in written(part)]


def builder_of(call: Call) -> Builder | None:
    """What builds a call, None for an op that torch does not run."""
    if call.parts:
        return FUSED.get(call.op_type)
    return OPS.get(call.op_type) if call.domain != ATEN_DOMAIN and not call.domain else None
