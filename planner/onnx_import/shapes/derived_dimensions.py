"""Dimensions that a file writes as a formula of others, as torch's exporter writes "2*s + 1"."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import cache

_OPERATORS: dict[type[ast.AST], Callable[..., Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "Max": max, "Min": min, "Mod": operator.mod, "FloorDiv": operator.floordiv, "floor": math.floor, "ceil": math.ceil,
    "CeilDiv": lambda a, b: math.ceil(a / b),
}  # fmt: skip
_ARGUMENTS = {"floor": 1, "ceil": 1, "Mod": 2, "FloorDiv": 2, "CeilDiv": 2}
_OF_A_FORMULA = re.compile(r"[*(]|//")
"""What no exporter writes in a name: "batch-size" is one name unless the file has the dimensions "batch" and "size"."""


class Formula:
    """A whole number that follows from named dimensions; ``names`` are theirs."""

    def __init__(self, tree: ast.expr) -> None:
        self._tree = tree
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        self.names = tuple(
            dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)
        )

    def value(self, dims: Mapping[str, int]) -> int | None:
        """The number; None if one of its names has none, or if it is no whole number."""
        try:
            found = _value(self._tree, dims)
        except (KeyError, ZeroDivisionError, TypeError):
            return None
        return found.numerator if found.denominator == 1 else None

    def solved(self, size: int, dims: Mapping[str, int]) -> int | None:
        """The number of the only name without one that makes a linear formula ``size``, 0 if no number does.

        None if several names have no number, or the formula is not linear.
        """
        missing = [name for name in self.names if name not in dims]
        if len(missing) != 1:
            return None
        zero, one, two = (self.value({**dims, missing[0]: number}) for number in (0, 1, 2))
        if zero is None or one is None or two is None or two - one != one - zero or zero == one:
            return None
        found = (size - zero) // (one - zero)
        return found if self.value({**dims, missing[0]: found}) == size else 0


def formula(text: str, symbols: Collection[str]) -> Formula | None:
    """The formula that a dimension's text is, None if it is a name; ``symbols`` are the file's dimensions."""
    found = _parsed(text)
    if found is None or text in found.names:
        return None
    known = all(name in symbols for name in found.names) or _OF_A_FORMULA.search(text)
    return found if known and found.names else None


@cache
def _parsed(text: str) -> Formula | None:
    if len(text) > 200:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return Formula(tree) if _is_formula(tree) else None


def _is_formula(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATORS and _is_formula(node.left) and _is_formula(node.right)
    if isinstance(node, ast.UnaryOp):
        return type(node.op) in _OPERATORS and _is_formula(node.operand)
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if not named or node.args == [] or node.keywords:
            return False
        assert isinstance(node.func, ast.Name)
        return len(node.args) == _ARGUMENTS.get(node.func.id, len(node.args)) and all(map(_is_formula, node.args))
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int)


def _value(node: ast.expr, dims: Mapping[str, int]) -> Fraction:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, dims), _value(node.right, dims))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, dims))
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        return Fraction(_FUNCTIONS[node.func.id](*(_value(argument, dims) for argument in node.args)))
    if isinstance(node, ast.Name):
        return Fraction(dims[node.id])
    assert isinstance(node, ast.Constant)
    return Fraction(int(str(node.value)))
