"""Functions of one number: activations, roots, logarithms, trigonometry."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

from ..forward.composed import gate, is_tanh, slope_of
from ..nodes.call_view import CallView
from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable, in_parts

_ROOT = sqrt(2 / pi)
_CUBE = 0.044715


Derivative = Callable[[Tensor], Tensor]


def _of_input(derivative: Derivative) -> Callable[[Backward], None]:
    return lambda call: call.give(0, in_parts(lambda x, g: derivative(x) * g, call.x(), call.g))


def _of_output(derivative: Derivative) -> Callable[[Backward], None]:
    return lambda call: call.give(0, in_parts(lambda y, g: derivative(y) * g, call.y(), call.g))


def _with(derivative: Callable[[Backward, Tensor], Tensor]) -> Callable[[Backward], None]:
    """A derivative of the input that depends on attributes."""
    return lambda call: call.give(0, in_parts(lambda x, g: derivative(call, x) * g, call.x(), call.g))


def _ones(condition: Tensor, dtype: str) -> Tensor:
    """1 where a condition holds, else 0: ONNX Runtime's Where takes twice its result as scratch memory."""
    return condition.cast(dtype)


def _relu(call: Backward) -> None:
    call.give(0, call.y().apply("Sign") * call.g)


def _leaky(call: Backward, x: Tensor) -> Tensor:
    slope = float(call.attr("alpha", 0.01))
    return _ones(x > 0.0, x.dtype) * (1 - slope) + slope


def _gelu(call: Backward, x: Tensor) -> Tensor:
    if is_tanh(call):  # x * sigmoid(2u), which needs fewer temporaries than the tanh
        square = x * x
        s = ((square * _CUBE + 1.0) * x * (2 * _ROOT)).apply("Sigmoid")
        slope = (square * (3 * _CUBE) + 1.0) * (2 * _ROOT) * x * (1.0 - s)
        return (slope + 1.0) * s
    density = (x * x * -0.5).apply("Exp") * (1 / sqrt(2 * pi)) * x
    return ((x * sqrt(0.5)).apply("Erf") + 1.0) * 0.5 + density


def _swish(call: Backward, x: Tensor) -> Tensor:
    alpha = float(call.attr("alpha", 1.0))
    s = gate(x, alpha)
    slope = (1.0 - s) * x
    return ((slope if alpha == 1 else slope * alpha) + 1.0) * s


def _mish(x: Tensor) -> Tensor:
    t = x.apply("Softplus").apply("Tanh")
    return (1.0 - t * t) * x * x.apply("Sigmoid") + t


def _hard_swish(x: Tensor) -> Tensor:
    """(2x + 3) / 6 between -3 and 3, then 1."""
    inside = _ones(x > -3.0, x.dtype) * _ones(x < 3.0, x.dtype)
    return (x * (1 / 3) + 0.5) * inside + _ones(x >= 3.0, x.dtype)


def _hard_sigmoid(call: Backward, x: Tensor) -> Tensor:
    slope, offset = slope_of(call)
    inside = call.w.op("And", x > -offset / slope, x < (1 - offset) / slope)
    return _ones(inside, x.dtype) * slope


def _softsign(x: Tensor) -> Tensor:
    root = x.apply("Abs") + 1.0
    return 1.0 / (root * root)


def _exponential_unit(x: Tensor, alpha: float, gamma: float, width: float) -> Tensor:
    """The slope of gamma alpha (exp(x / width) - 1) below zero and of gamma x above."""
    below = x.writer.op("Min", x, 0.0)
    below = (below if width == 1 else below * (1 / width)).apply("Exp") * (gamma * alpha / width)
    above = _ones(x > 0.0, x.dtype)
    return below * (1.0 - above) + above * gamma


def _elu(call: Backward, x: Tensor) -> Tensor:
    return _exponential_unit(x, float(call.attr("alpha", 1.0)), 1.0, 1.0)


def _selu(call: Backward, x: Tensor) -> Tensor:
    alpha, gamma = call.attr("alpha", 1.6732632423543772), call.attr("gamma", 1.0507009873554805)
    return _exponential_unit(x, float(alpha), float(gamma), 1.0)


def _celu(call: Backward, x: Tensor) -> Tensor:
    alpha = float(call.attr("alpha", 1.0))
    return _exponential_unit(x, alpha, 1.0, alpha)


def _thresholded(call: Backward, x: Tensor) -> Tensor:
    return _ones(x > float(call.attr("alpha", 1.0)), x.dtype)


def _shrink(call: Backward) -> None:
    bias, threshold = float(call.attr("bias", 0.0)), float(call.attr("lambd", 0.5))
    if bias in (0, threshold):
        return _of_input(lambda x: _ones(x.apply("Abs") > threshold, x.dtype))(call)
    return call.give(0, _ones(call.hidden(0), call.dtype) * call.g)


def _prelu(call: Backward) -> None:
    x, slope = call.x(0), call.x(1)
    below = _ones(x <= 0.0, x.dtype)
    if call.needs(1):
        call.give(1, call.g * x * below)
    if call.needs(0):
        call.give(0, (below * (slope - 1.0) + 1.0) * call.g)


def _root(x: Tensor) -> Tensor:
    return x.apply("Sqrt")


def _gated(call: Backward) -> None:
    """torch's glu: a * sigmoid(b) of the halves of a tensor."""
    axis = next(CallView(part, call.opset).axis(0, call.rank) for part in call.parts() if part.op_type == "Split")
    half = call.shape[axis] // 2
    x = call.x()
    a, s = x.cut(axis, 0, half), x.cut(axis, half, 2 * half).apply("Sigmoid")
    call.give(0, call.w.concat([call.g * s, (1.0 - s) * s * a * call.g], axis))


def _gated_product(call: Backward) -> None:
    """SwiGLU: a * sigmoid(alpha a) * b."""
    a, alpha = call.x(0), float(call.attr("alpha", 1.0))
    s = gate(a, alpha)
    if call.needs(1):
        call.give(1, call.g * a * s)
    if call.needs(0):
        call.give(0, ((1.0 - s) * a * alpha + 1.0) * s * call.x(1) * call.g)


def _dropout(call: Backward) -> None:
    mask = call.y(1) if len(call.call.outputs) > 1 else call.hidden(0)
    ratio = float(call.number("ratio", 1, 0.5))
    kept = 1 / (1 - ratio) if ratio < 1 else 0.0
    call.give(0, _ones(mask, call.dtype) * kept * call.g)


FUNCTIONS: GradientTable = {
    "Relu": _relu,
    "LeakyRelu": _with(_leaky),
    "Sigmoid": _of_output(lambda y: (1.0 - y) * y),
    "Tanh": _of_output(lambda y: 1.0 - y * y),
    "Gelu": _with(_gelu),
    "Swish": _with(_swish),
    "Mish": _of_input(_mish),
    "HardSwish": _of_input(_hard_swish),
    "HardSigmoid": _with(_hard_sigmoid),
    "Softplus": _of_input(lambda x: x.apply("Sigmoid")),
    "Softsign": _of_input(_softsign),
    "Elu": _with(_elu),
    "Selu": _with(_selu),
    "Celu": _with(_celu),
    "ThresholdedRelu": _with(_thresholded),
    "PRelu": _prelu,
    "SwiGLU": _gated_product,
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
}
RECORDED_FUNCTIONS: GradientTable = {
    "rsqrt": _of_output(lambda y: y * y * y * -0.5),
    "expm1": _of_output(lambda y: y + 1.0),
    "log1p": _of_input(lambda x: 1.0 / (x + 1.0)),
    "log_sigmoid": _of_input(lambda x: (-x).apply("Sigmoid")),
    "glu": _gated,
}
