"""Sums, products, quotients, extrema and choices of elements."""

from __future__ import annotations

from functools import partial

from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable, in_parts, nothing


def _add(call: Backward) -> None:
    for position in sorted(call.needed):
        call.give(position, call.g)


def _subtract(call: Backward) -> None:
    if call.attr("stops_gradient"):
        return nothing(call)
    for position in sorted(call.needed):
        call.give(position, -call.g if position else call.g)


def _multiply(call: Backward) -> None:
    for position in sorted(call.needed):
        call.give(position, call.g * call.x(1 - position))


def _divide(call: Backward) -> None:
    share = call.g / call.x(1)
    if call.needs(1):
        call.give(1, -(share * call.x(0) / call.x(1)))
    if call.needs(0):
        call.give(0, share)


def _mean(call: Backward) -> None:
    part = call.g * (1.0 / len(call.call.inputs))
    for position in sorted(call.needed):
        call.give(position, part)


def _power(call: Backward) -> None:
    exponent = call.operand(1)
    x = call.x(0)
    if exponent.known is not None and exponent.numel == 1 and not call.needs(1):
        number = float(exponent.known.ravel()[0])
        if number == 0:
            return nothing(call)
        slope = x if number == 2 else call.w.op("Pow", x, number - 1, shape=x.shape)
        return call.give(0, call.g * (slope if number == 1 else slope * number) if number != 1 else call.g)
    y = call.x(1).cast(x.dtype)
    if call.needs(0):
        shape = call.out
        slope = y * call.w.op("Pow", x, y - 1.0, shape=shape)
        call.give(0, call.g * call.w.op("Equal", y, 0.0).where(0.0, slope))
    if call.needs(1):
        positive = x > 0.0
        logarithm = positive.where(x, 1.0).apply("Log")
        call.give(1, call.g * positive.where(call.y() * logarithm, 0.0))
    return None


def _modulo(call: Backward) -> None:
    if call.needs(0):
        call.give(0, call.g)
    if call.needs(1):
        quotient = call.x(0) / call.x(1)
        whole = quotient.apply("Floor")
        if call.attr("fmod", 0):
            whole = (quotient < 0.0).where(quotient.apply("Ceil"), whole)
        call.give(1, -(call.g * whole))


def _extremum(call: Backward) -> None:
    """From left to right; equal operands share the gradient by halves, as torch.maximum does."""
    top = "Greater" if call.call.op_type == "Max" else "Less"
    pick = call.call.op_type
    operands = [call.x(position) for position in range(len(call.call.inputs))]
    running: list[Tensor] = [operands[0]]
    for operand in operands[1:]:
        running.append(call.w.op(pick, running[-1], operand))
    gradient = call.g
    for position in range(len(operands) - 1, 0, -1):
        left, right = running[position - 1], operands[position]
        share = _share(call, top, left, right)
        if call.needs(position):
            call.give(position, gradient * (1.0 - share))
        gradient = gradient * share
    if call.needs(0):
        call.give(0, gradient)


def _share(call: Backward, top: str, left: Tensor, right: Tensor) -> Tensor:
    """1 where the left one is the extremum, 0 where the right one is, a half where they are equal."""
    wins = call.w.op(top, left, right).cast(left.dtype)
    return wins + call.w.op("Equal", left, right).cast(left.dtype) * 0.5


def _one_extremum(call: Backward) -> None:
    if len(call.call.inputs) == 1:
        return call.give(0, call.g)
    return _extremum(call)


def _where(call: Backward) -> None:
    condition = call.x(0)
    for position in sorted(call.needed):
        parts = (call.g, 0.0) if position == 1 else (0.0, call.g)
        call.give(position, call.w.op("Where", condition, *parts, dtype=call.g.dtype))


def _clip(call: Backward) -> None:
    x = call.x(0)
    low, high = (
        (call.x(at) if call.operand(at).known is None else float(call.known(at).ravel()[0])) if call.has(at)
        else call.attr(name) for at, name in ((1, "min"), (2, "max"))
    )  # fmt: skip
    if call.needs(0):
        call.give(0, in_parts(partial(_inside, low=low, high=high), x, call.g))
    if call.needs(1):
        call.give(1, (x < low).cast(x.dtype) * call.g)
    if call.needs(2):
        call.give(2, (x > high).cast(x.dtype) * call.g)


def _inside(x: Tensor, g: Tensor, *, low: Tensor | float | None, high: Tensor | float | None) -> Tensor:
    """The gradient where neither end is passed."""
    for mask in ([] if low is None else [x >= low]) + ([] if high is None else [x <= high]):
        g = mask.cast(x.dtype) * g
    return g


def _scaled_products(call: Backward) -> None:
    """torch.addcmul."""
    for position in sorted(call.needed):
        call.give(position, call.g if position == 0 else call.g * call.x(3 - position))


ARITHMETIC: GradientTable = {
    "Add": _add,
    "Sum": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
    "Mean": _mean,
    "Pow": _power,
    "Mod": _modulo,
    "Max": _one_extremum,
    "Min": _one_extremum,
    "Where": _where,
    "Clip": _clip,
    "Neg": lambda call: call.give(0, -call.g),
    "Identity": lambda call: nothing(call) if call.attr("stops_gradient") else call.give(0, call.g),
    "Cast": lambda call: call.give(0, call.g.cast(call.dtype)),
    "CastLike": lambda call: call.give(0, call.g.cast(call.dtype)),
    **dict.fromkeys(("Ceil", "Floor", "Round", "Sign", "Bernoulli"), nothing),
}
RECORDED_ARITHMETIC: GradientTable = {"addcmul": _scaled_products}
