"""Elementwise ops: activations, arithmetic, and what torch composes of them."""

from __future__ import annotations

from math import isclose

from ...graph import Role
from .op_call import RuleCall, Saved, factors, first_input, first_output, nothing, table

_BOOL_NBYTES = 1


def _divide(call: RuleCall) -> Saved:
    return Saved(inputs=(0, 1) if call.needed(1) else (1,))


def _power(call: RuleCall) -> Saved:
    """The base; if the exponent is a tensor, not a constant scalar, the exponent and the result as well."""
    exponent = call.required(1)
    scalar = exponent.numel == 1 and exponent.role is Role.BUFFER
    return Saved(inputs=(0,)) if scalar else Saved(inputs=(0, 1), outputs=(0,))


def _modulo(call: RuleCall) -> Saved:
    """torch.fmod and torch.remainder: both operands for the gradient of the divisor, else nothing."""
    return Saved(inputs=(0, 1)) if call.needed(1) else Saved()


def _all_inputs(call: RuleCall) -> Saved:
    """torch.clamp saves its input and bounds that are tensors; F.prelu saves both inputs."""
    return Saved(inputs=call.present(range(len(call.inputs))))


def _extremum(call: RuleCall) -> Saved:
    """torch.maximum from left to right: every step saves both operands, and all but the last make a new one."""
    inputs: list[int] = []
    hidden: list[int] = []
    for position in range(1, len(call.inputs)):
        if call.needed(*range(position + 1)):
            inputs += [0, 1] if position == 1 else [position]
            hidden += [call.output.nbytes] if position > 1 else []
    return Saved(tuple(inputs), (), tuple(hidden))


def _softsign(call: RuleCall) -> Saved:
    """x / (1 + |x|): the division saves both operands."""
    return Saved((0,), (), (call.first.nbytes,))


def _swish(call: RuleCall) -> Saved:
    """F.silu; with another alpha x * sigmoid(alpha * x), which saves both factors."""
    return Saved((0,), (), () if call.number("alpha", 1.0) == 1 else (call.first.nbytes,))


def _swiglu(call: RuleCall) -> Saved:
    """F.silu(a) * b; with another alpha the sigmoid is saved, too."""
    count = int(call.needed(1)) + int(call.needed(0) and call.number("alpha", 1.0) != 1)
    return Saved((0, 1) if call.needed(0) else (), (), (call.first.nbytes,) * count)


def _hard_sigmoid(call: RuleCall) -> Saved:
    """F.hardsigmoid has the slope 1/6; any other slope is a line, which is saved, and a clamp."""
    slope, offset = call.number("alpha", 0.2), call.number("beta", 0.5)
    usual = isclose(slope, 1 / 6, rel_tol=1e-4) and isclose(offset, 0.5)
    return Saved(inputs=(0,)) if usual else Saved(hidden_nbytes=(call.first.nbytes,))


def _shrink(call: RuleCall) -> Saved:
    """F.hardshrink or F.softshrink; with another bias two torch.where, which save their conditions."""
    bias, threshold = call.number("bias", 0.0), call.number("lambd", 0.5)
    if bias in (0, threshold):
        return Saved(inputs=(0,))
    return Saved(hidden_nbytes=(call.first.numel * _BOOL_NBYTES,) * 2)


def _dropout(call: RuleCall) -> Saved:
    """The mask, one byte an element, which may be the op's second output."""
    return Saved(outputs=(1,)) if len(call.outputs) > 1 else Saved(hidden_nbytes=(call.output.numel * _BOOL_NBYTES,))


def _dequantize(call: RuleCall) -> Saved:
    """(x - zero_point) * scale: the scale, and for the gradient of the scale the difference."""
    difference = (call.output.nbytes,) if call.needed(1) else ()
    return Saved((1,) if call.needed(0) else (), (), difference)


RULES = table(
    {
        nothing: "Add Sub Sum Mean Neg Identity Cast CastLike Ceil Floor Round Sign Bernoulli",
        first_input: "Gelu HardSwish Softplus LeakyRelu ThresholdedRelu Elu Selu Celu Mish Erf Log Abs Sin Cos Sinh"
        " Cosh Asin Acos Atan Asinh Acosh Atanh Where",
        first_output: "Relu Sigmoid Tanh Tan Exp Sqrt Reciprocal",
        factors: "Mul",
        _all_inputs: "Clip PRelu",
        _extremum: "Max Min",
        _divide: "Div",
        _power: "Pow",
        _modulo: "Mod",
        _softsign: "Softsign",
        _swish: "Swish",
        _swiglu: "SwiGLU",
        _hard_sigmoid: "HardSigmoid",
        _shrink: "Shrink",
        _dropout: "Dropout",
        _dequantize: "DequantizeLinear",
    }
)
