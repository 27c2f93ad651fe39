"""The forward of one call, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....planner.onnx_import.meaning.formula_numbers import flat_parts
from ....planner.onnx_import.values.values import Call, Value
from ..nodes.writer import Tensor, Writer
from .composed import COMPOSED
from .forward_call import Forward, Made
from .trained import TRAINED
from .upgrade import UPGRADED

FORWARDS = {**UPGRADED, **TRAINED, **COMPOSED}
_AS_ONE = {*COMPOSED, "LayerNormalization", "GroupNormalization"}
"""Fused calls that are written as one call."""


def forward(call: Call, opset: int, writer: Writer, value: Callable[[Value], Tensor]) -> Made:
    """Write the nodes of a call; ``value`` finds or makes what it reads."""
    if not call.parts or (call.op_type in _AS_ONE and not call.domain and len(call.outputs) == 1):
        return _one(call, opset, writer, value, {})
    inner: dict[int, Tensor] = {}
    for part in flat_parts(call):
        made = _one(part, opset, writer, value, inner)
        inner.update((id(output), tensor) for output, tensor in zip(part.outputs, made.outputs, strict=True))
    return Made(tuple(inner[id(output)] for output in call.outputs))


def _one(call: Call, opset: int, writer: Writer, value: Callable[[Value], Tensor], inner: Mapping[int, Tensor]) -> Made:
    args = tuple(
        None if operand is None else inner[id(operand)] if id(operand) in inner else value(operand)
        for operand in call.inputs
    )
    view = Forward(call, opset, args, tuple(output.name for output in call.outputs), writer)
    if call.domain:
        raise view.refused(f"its domain {call.domain!r} is not that of ONNX")
    made = FORWARDS[call.op_type](view) if call.op_type in FORWARDS else _as_it_is(view)
    return made


def _as_it_is(call: Forward) -> Made:
    return call.made(call.call.op_type, *call.args, **call.call.attributes)
