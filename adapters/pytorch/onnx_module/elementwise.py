"""Arithmetic, comparisons, logic and casts."""

from __future__ import annotations

from functools import reduce
from math import inf

import torch

from .node import Builder, Node, Run, Table, plain


def _left_to_right(run: Run) -> Builder:
    return plain(lambda *operands: reduce(run, operands))


def _mean(node: Node) -> Run:
    count = len(node.call.inputs)
    return lambda *operands: reduce(torch.add, operands) / count


def _subtract(node: Node) -> Run:
    if node.attr("stops_gradient"):
        return lambda a, b: torch.sub(a, b).detach()
    return lambda a, b: torch.sub(a, b)


def _identity(node: Node) -> Run:
    if node.attr("stops_gradient"):
        return lambda x: x.detach()
    return (lambda x: x) if node.call.view.value == "whole" else (lambda x: x.clone())


def _divide(node: Node) -> Run:
    if node.out_dtype.is_floating_point or node.out_dtype.is_complex:
        return lambda a, b: torch.div(a, b)
    return lambda a, b: torch.div(a, b, rounding_mode="trunc")


def _modulo(node: Node) -> Run:
    exact: Run = torch.fmod if node.attr("fmod", 0) else torch.remainder
    return exact


def _power(node: Node) -> Run:
    dtype = node.out_dtype
    if node.is_known(1) and node.operand(1).numel == 1 and node.out == node.shape():
        exponent = node.known(1).ravel()[0].item()
        return lambda x, _: torch.pow(x, exponent).to(dtype)
    return lambda x, y: torch.pow(x, y).to(dtype)


def _clip(node: Node) -> Run:
    if any(node.has(at) and not node.is_known(at) for at in (1, 2)):
        return lambda x, low=None, high=None: torch.clamp(x, low, high)
    low, high = node.number("min", 1), node.number("max", 2)
    if low is None and high is None:
        return lambda x, *_: x.clone()
    if not node.out_dtype.is_floating_point:
        low, high = (None if end is None or abs(end) == inf else int(end) for end in (low, high))
    return lambda x, *_: torch.clamp(x, low, high)


def _cast(node: Node) -> Run:
    dtype, name = node.out_dtype, node.call.outputs[0].dtype
    if (
        name.startswith("float8")
        and node.operand(0).is_float
        and (name != "float8e4m3fn" or not node.attr("saturate", 1))
    ):
        raise node.refused(f"torch rounds to {name} in another way")
    if name in ("int4", "uint4", "int2", "uint2"):
        raise node.refused(f"torch has no {name}")
    return lambda x, *_: x.to(dtype)


def _is_inf(node: Node) -> Run:
    up, down = node.attr("detect_positive", 1), node.attr("detect_negative", 1)
    test: Run = torch.isinf if up and down else torch.isposinf if up else torch.isneginf
    return test if up or down else lambda x: torch.zeros_like(x, dtype=torch.bool)


def _shift(node: Node) -> Run:
    wide = torch.int64  # torch shifts no unsigned numbers of more than a byte
    shift = torch.bitwise_left_shift if node.attr("direction") == "LEFT" else torch.bitwise_right_shift
    dtype = node.out_dtype
    return lambda x, by: shift(x.to(wide), by.to(wide)).to(dtype)


_SAME = (
    "Abs abs Neg neg Sqrt sqrt Exp exp Log log Erf erf Sin sin Cos cos Tan tan Asin asin Acos acos Atan atan Sinh sinh "
    "Cosh cosh Asinh asinh Acosh acosh Atanh atanh Ceil ceil Floor floor Round round Sign sign Reciprocal reciprocal "
    "Not logical_not BitwiseNot bitwise_not IsNaN isnan Add add Mul mul Equal eq Greater gt GreaterOrEqual ge Less lt "
    "LessOrEqual le And logical_and Or logical_or Xor logical_xor BitwiseAnd bitwise_and BitwiseOr bitwise_or "
    "BitwiseXor bitwise_xor"
).split()

OPS: Table = {
    **{name: plain(getattr(torch, call)) for name, call in zip(_SAME[::2], _SAME[1::2], strict=True)},
    "Sub": _subtract,
    "Div": _divide,
    "Mod": _modulo,
    "Pow": _power,
    "Max": _left_to_right(torch.maximum),
    "Min": _left_to_right(torch.minimum),
    "Sum": _left_to_right(torch.add),
    "Mean": _mean,
    "Identity": _identity,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "Where": plain(torch.where),
    "IsInf": _is_inf,
    "BitShift": _shift,
}
FUSED: Table = {
    "rsqrt": plain(torch.rsqrt), "atan2": plain(torch.atan2), "addcmul": plain(torch.addcmul),
}  # fmt: skip
