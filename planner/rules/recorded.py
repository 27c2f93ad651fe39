"""Calls of aten that ONNX has no op for; the reader makes them of nodes that torch's exporter recorded."""

from __future__ import annotations

from .call import RuleCall, Saved, first_input, first_output, nothing, table

DOMAIN = "aten"


def _log_sigmoid(call: RuleCall) -> Saved:
    """The input; the buffer for exp(-|x|) is kept by torch on the CPU, and empty on a GPU."""
    return Saved((0,), (), (call.first.nbytes,))


RULES = table({nothing: "roll", first_output: "rsqrt", first_input: "glu", _log_sigmoid: "log_sigmoid"})
