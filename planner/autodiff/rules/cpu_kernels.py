"""What torch saves on a CPU but not on a GPU, which has fused kernels: noise of dropouts, parts of RMS norms."""

from __future__ import annotations

from math import prod

from .op_call import FLOAT_NBYTES, RuleCall, Saved, item_nbytes, statistic_nbytes


def saved_on_cpu(call: RuleCall) -> Saved | None:
    """What the backward of ``call`` reads on a CPU, None if it is the same as on a GPU."""
    if call.op.domain:
        return None
    if call.op.op_type == "Dropout":  # noise in the data type of the input instead of one byte an element
        return Saved(hidden_nbytes=(call.output.nbytes,))
    if call.op.op_type == "RMSNormalization":
        return _rms_norm(call)
    return None


def _rms_norm(call: RuleCall) -> Saved:
    """x * rsqrt(mean(x^2) + epsilon) in at least float32 for the weight's gradient, x and the rsqrt for that of x."""
    shape = call.first.shape
    rows = prod(shape[: call.integer("axis", -1) % len(shape)])
    width = max(item_nbytes(call.first), FLOAT_NBYTES)
    if not call.needed(0):
        return Saved(hidden_nbytes=(call.first.numel * width,))
    hidden = [rows * statistic_nbytes(call.first)]
    if call.needed(1):
        hidden.append(call.first.numel * width)
    if item_nbytes(call.first) == width:
        return Saved(call.present((0, 1)), (), tuple(hidden))
    return Saved(call.present((1,)), (), (call.first.numel * width, *hidden))


def temporaries_on_cpu(call: RuleCall) -> tuple[int, int] | None:
    """(forward, backward) bytes between kernels on a CPU, None if they are the same as on a GPU.

    An RMS norm consists of a power, a mean, an inverse root and products, all in at least float32.
    """
    if call.op.domain or call.op.op_type != "RMSNormalization":
        return None
    wide = call.first.numel * max(item_nbytes(call.first), FLOAT_NBYTES)
    cast = call.first.nbytes if call.first.nbytes < wide else 0
    one = not (call.needed(0) and call.needed(1))
    rows = prod(call.first.shape[: call.integer("axis", -1) % len(call.first.shape)])
    forward = (wide + cast * one if cast else wide * (not call.needed(1))) + 2 * rows * statistic_nbytes(call.first)
    if not call.needed(0):
        return forward, wide + (wide if cast else 0)
    gone = wide + call.output.nbytes if call.needed(1) else 0  # the normalised input and the output's gradient
    gone += wide if not call.needed(1) and not cast else 0
    return forward, 4 * wide + cast - gone - rows * statistic_nbytes(call.first)
