"""Calls of aten without an ONNX op; the reader makes them from groups of nodes that torch's exporter recorded."""

from __future__ import annotations

from .op_call import RuleCall, Saved, both_inputs, first_input, first_output, nothing, table


def _log_sigmoid(call: RuleCall) -> Saved:
    """The input, and on the CPU a buffer for exp(-|x|)."""
    return Saved((0,), (), (call.first.nbytes,))


def _scaled_product_sum(call: RuleCall) -> Saved:
    """torch.addcmul: each factor for the gradient of the other."""
    return Saved(inputs=tuple(mine for mine, other in ((1, 2), (2, 1)) if call.needed(other)))


def _scaled_quotient_sum(call: RuleCall) -> Saved:
    """torch.addcdiv: the divisor, and the dividend for the gradient of the divisor."""
    return Saved(inputs=(*((1,) if call.needed(2) else ()), *((2,) if call.needed(1, 2) else ())))


def _fake_quantize(call: RuleCall) -> Saved:
    """A mask of what lies in the range; scale and zero point get no gradient."""
    return Saved(hidden_nbytes=(call.output.numel,))


def _lerp(call: RuleCall) -> Saved:
    """torch.lerp by a number saves nothing; by a tensor that, and both ends for the tensor's gradient."""
    if not call.has(2):
        return Saved()
    return Saved((*((0, 1) if call.needed(2) else ()), *((2,) if call.needed(0, 1) else ())))


RULES = table(
    {
        nothing: "roll",
        first_output: "rsqrt expm1",
        first_input: "glu log1p",
        _log_sigmoid: "log_sigmoid",
        both_inputs: "atan2 huber_loss smooth_l1_loss",
        _lerp: "lerp",
        _scaled_product_sum: "addcmul",
        _scaled_quotient_sum: "addcdiv",
        _fake_quantize: "fake_quantize",
    }
)
_BACKWARD_MULTIPLES = {"rsqrt": 2, "log1p": 1, "expm1": 1, "atan2": 5, "addcmul": 1}


def temporaries_nbytes(call: RuleCall) -> tuple[int, int]:
    """(forward, backward) bytes between the kernels of a call, as in temporaries.py."""
    size = call.output.nbytes
    if call.op.op_type == "fake_quantize":
        return (0 if call.needed(0) else call.output.numel), 0
    if call.op.op_type == "lerp":  # 1 - weight, or the difference of the ends
        return 0, size * (call.has(2) and call.needed(0, 2))
    if call.op.op_type == "addcdiv":  # the gradient negated, value * dividend, the square of the divisor, the quotient
        multiples = 4 if call.needed(2) else int(call.needed(1))
    else:
        multiples = _BACKWARD_MULTIPLES.get(call.op.op_type, 0)
    summed = call.op.op_type in ("atan2", "addcmul", "addcdiv")
    smaller = [p for p in call.needs if summed and call.required(p).nbytes < size]
    return 0, (multiples + len(smaller)) * size
