"""Functions of one number: activations, roots, logarithms, trigonometry."""

from __future__ import annotations

from math import pi, sqrt

from ..forward.composed import gate, is_tanh, slope_of
from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable

_ROOT = sqrt(2 / pi)
_CUBE = 0.044715


def _relu(call: Backward) -> None:
    call.give(0, (call.y() > 0.0).where(call.g, 0.0))


def _leaky(call: Backward) -> None:
    call.give(0, (call.x() > 0.0).where(call.g, call.g * float(call.attr("alpha", 0.01))))


def _sigmoid(call: Backward) -> None:
    y = call.y()
    call.give(0, (1.0 - y) * y * call.g)


def _tanh(call: Backward) -> None:
    y = call.y()
    call.give(0, (1.0 - y * y) * call.g)


def _gelu(call: Backward) -> None:
    x = call.x()
    if is_tanh(call):
        square = x * x
        inner = ((square * _CUBE + 1.0) * x * _ROOT).apply("Tanh")
        slope = (1.0 - inner * inner) * (x * (_ROOT / 2)) * (square * (3 * _CUBE) + 1.0)
        call.give(0, ((inner + 1.0) * 0.5 + slope) * call.g)
        return
    density = (x * x * -0.5).apply("Exp") * (1 / sqrt(2 * pi)) * x
    call.give(0, (((x * sqrt(0.5)).apply("Erf") + 1.0) * 0.5 + density) * call.g)


def _swish(call: Backward) -> None:
    x, alpha = call.x(), float(call.attr("alpha", 1.0))
    s = gate(x, alpha)
    slope = (1.0 - s) * x
    call.give(0, ((slope if alpha == 1 else slope * alpha) + 1.0) * s * call.g)


def _mish(call: Backward) -> None:
    x = call.x()
    t = x.apply("Softplus").apply("Tanh")
    call.give(0, ((1.0 - t * t) * x * x.apply("Sigmoid") + t) * call.g)


def _hard_swish(call: Backward) -> None:
    """(2x + 3) / 6 between -3 and 3, then 1."""
    x = call.x()
    inner = (x < 3.0).where((x * (1 / 3) + 0.5) * call.g, call.g)
    call.give(0, (x > -3.0).where(inner, 0.0))


def _hard_sigmoid(call: Backward) -> None:
    slope, offset = slope_of(call)
    x = call.x()
    inside = call.w.op("And", x > -offset / slope, x < (1 - offset) / slope)
    call.give(0, inside.where(call.g * slope, 0.0))


def _softplus(call: Backward) -> None:
    call.give(0, call.x().apply("Sigmoid") * call.g)


def _softsign(call: Backward) -> None:
    root = call.x().apply("Abs") + 1.0
    call.give(0, call.g / (root * root))


def _exponential_unit(call: Backward, alpha: float, gamma: float, width: float) -> None:
    """gamma alpha (exp(x / width) - 1) below zero, gamma x above."""
    x = call.x()
    below = ((x if width == 1 else x / width).apply("Exp")) * (gamma * alpha / width)
    call.give(0, (x > 0.0).where(gamma, below) * call.g)


def _elu(call: Backward) -> None:
    _exponential_unit(call, float(call.attr("alpha", 1.0)), 1.0, 1.0)


def _selu(call: Backward) -> None:
    alpha, gamma = call.attr("alpha", 1.6732632423543772), call.attr("gamma", 1.0507009873554805)
    _exponential_unit(call, float(alpha), float(gamma), 1.0)


def _celu(call: Backward) -> None:
    alpha = float(call.attr("alpha", 1.0))
    _exponential_unit(call, alpha, 1.0, alpha)


def _thresholded(call: Backward) -> None:
    call.give(0, (call.x() > float(call.attr("alpha", 1.0))).where(call.g, 0.0))


def _prelu(call: Backward) -> None:
    x, slope = call.x(0), call.x(1)
    above = x > 0.0
    if call.needs(0):
        call.give(0, above.where(call.g, call.g * slope))
    if call.needs(1):
        call.give(1, above.where(0.0, call.g * x))


def _shrink(call: Backward) -> None:
    bound = float(call.attr("lambd", 0.5))
    call.give(0, (call.x().apply("Abs") > bound).where(call.g, 0.0))


def _of_input(derivative: object) -> object:
    return lambda call: call.give(0, derivative(call.x()) * call.g)  # type: ignore[operator]


def _of_output(derivative: object) -> object:
    return lambda call: call.give(0, derivative(call.y()) * call.g)  # type: ignore[operator]


def _root(x: Tensor) -> Tensor:
    return x.apply("Sqrt")


def _log_sigmoid(call: Backward) -> None:
    call.give(0, (-call.x()).apply("Sigmoid") * call.g)


def _gated(call: Backward) -> None:
    """torch's glu: a * sigmoid(b) of the halves of a tensor."""
    axis = next(int(part.attributes.get("axis", 0)) for part in call.parts() if part.op_type == "Split")  # type: ignore[call-overload]
    axis %= call.rank
    half = call.shape[axis] // 2
    x = call.x()
    a, s = x.cut(axis, 0, half), x.cut(axis, half, 2 * half).apply("Sigmoid")
    call.give(0, call.w.concat([call.g * s, (1.0 - s) * s * a * call.g], axis))


def _dropout(call: Backward) -> None:
    mask = call.y(1) if len(call.call.outputs) > 1 else call.hidden(0)
    ratio = float(call.number("ratio", 1, 0.5))
    kept = 1 / (1 - ratio) if ratio < 1 else 0.0
    call.give(0, mask.where(call.g * kept, 0.0))


FUNCTIONS: GradientTable = {
    "Relu": _relu,
    "LeakyRelu": _leaky,
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
    "Gelu": _gelu,
    "Swish": _swish,
    "Mish": _mish,
    "HardSwish": _hard_swish,
    "HardSigmoid": _hard_sigmoid,
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "ThresholdedRelu": _thresholded,
    "PRelu": _prelu,
    "Shrink": _shrink,
    "Dropout": _dropout,
    "Exp": _of_output(lambda y: y),
    "Sqrt": _of_output(lambda y: 0.5 / y),
    "Reciprocal": _of_output(lambda y: -(y * y)),
    "Tan": _of_output(lambda y: y * y + 1.0),
    "Log": lambda call: call.give(0, call.g / call.x()),
    "Abs": _of_input(lambda x: x.apply("Sign")),
    "Erf": _of_input(lambda x: (-(x * x)).apply("Exp") * (2 / sqrt(pi))),
    "Sin": _of_input(lambda x: x.apply("Cos")),
    "Cos": _of_input(lambda x: -x.apply("Sin")),
    "Sinh": _of_input(lambda x: x.apply("Cosh")),
    "Cosh": _of_input(lambda x: x.apply("Sinh")),
    "Asin": _of_input(lambda x: 1.0 / _root(1.0 - x * x)),
    "Acos": _of_input(lambda x: -1.0 / _root(1.0 - x * x)),
    "Atan": _of_input(lambda x: 1.0 / (x * x + 1.0)),
    "Asinh": _of_input(lambda x: 1.0 / _root(x * x + 1.0)),
    "Acosh": _of_input(lambda x: 1.0 / _root(x * x - 1.0)),
    "Atanh": _of_input(lambda x: 1.0 / (1.0 - x * x)),
}  # type: ignore[dict-item]
RECORDED_FUNCTIONS: GradientTable = {
    "rsqrt": _of_output(lambda y: y * y * y * -0.5),
    "log_sigmoid": _log_sigmoid,
    "glu": _gated,
}  # type: ignore[dict-item]
