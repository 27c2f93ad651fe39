"""Elementwise ops: activations, arithmetic, and what torch composes of them."""

from __future__ import annotations

from math import isclose

from ...graph import Role
from .op_call import RuleCall, Saved, factors, first_input, first_output, nothing, table

_BOOL_NBYTES = 1


def _divide(call: RuleCall) -> Saved:
    return Saved(inputs=(0, 1) if call.needed(1) else (1,))


def _power(call: RuleCall) -> Saved:
    """A constant scalar exponent is an attribute to torch; a tensor one is saved with base and result."""
    exponent = call.required(1)
    scalar = exponent.numel == 1 and exponent.role is Role.BUFFER
    return Saved(inputs=(0,)) if scalar else Saved(inputs=(0, 1), outputs=(0,))


def _modulo(call: RuleCall) -> Saved:
    """torch.fmod and torch.remainder: the quotient counts only for the gradient of the divisor."""
    return Saved(inputs=(0, 1)) if call.needed(1) else Saved()


def _all_inputs(call: RuleCall) -> Saved:
    """torch.clamp keeps bounds that are tensors beside its input; F.prelu keeps both."""
    return Saved(inputs=call.present(range(len(call.inputs))))


def _extremum(call: RuleCall) -> Saved:
    """torch.maximum from left to right: every step keeps both operands, and all but the last make a new one."""
    inputs: list[int] = []
    hidden: list[int] = []
    for position in range(1, len(call.inputs)):
        if call.needed(*range(position + 1)):
            inputs += [0, 1] if position == 1 else [position]
            hidden += [call.output.nbytes] if position > 1 else []
    return Saved(tuple(inputs), (), tuple(hidden))


def _softsign(call: RuleCall) -> Saved:
    """x / (1 + |x|): the quotient keeps both."""
    return Saved((0,), (), (call.first.nbytes,))


def _swish(call: RuleCall) -> Saved:
    """F.silu; with another alpha x * sigmoid(alpha * x), which keeps both factors."""
    return Saved((0,), (), () if call.number("alpha", 1.0) == 1 else (call.first.nbytes,))


def _swiglu(call: RuleCall) -> Saved:
    """F.silu(a) * b; with another alpha the sigmoid is kept too."""
    count = int(call.needed(1)) + int(call.needed(0) and call.number("alpha", 1.0) != 1)
    return Saved((0, 1) if call.needed(0) else (), (), (call.first.nbytes,) * count)


def _hard_sigmoid(call: RuleCall) -> Saved:
    """F.hardsigmoid has the slope 1/6; any other slope is a line, which is kept, and a clamp."""
    slope, offset = call.number("alpha", 0.2), call.number("beta", 0.5)
    usual = isclose(slope, 1 / 6, rel_tol=1e-4) and isclose(offset, 0.5)
    return Saved(inputs=(0,)) if usual else Saved(hidden_nbytes=(call.first.nbytes,))


def _shrink(call: RuleCall) -> Saved:
    """F.hardshrink or F.softshrink; with another bias two torch.where, which keep their conditions."""
    bias, threshold = call.number("bias", 0.0), call.number("lambd", 0.5)
    if bias in (0, threshold):
        return Saved(inputs=(0,))
    return Saved(hidden_nbytes=(call.first.numel * _BOOL_NBYTES,) * 2)


def _dropout(call: RuleCall) -> Saved:
    """The mask in bytes, which may be the op's second output."""
    return Saved(outputs=(1,)) if len(call.outputs) > 1 else Saved(hidden_nbytes=(call.output.numel * _BOOL_NBYTES,))


def _dequantize(call: RuleCall) -> Saved:
    """(x - zero_point) * scale: integers get no gradient; a scale that is trained needs the difference."""
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
