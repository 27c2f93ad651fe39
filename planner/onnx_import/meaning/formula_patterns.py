"""A small language for formulas: what a tree of ops looks like, in any order of the operands of a sum or a product.

Mul(x, Sigmoid(x))                                  a letter is any value, the same one wherever it stands
Div(d:Sub(x, ReduceMean(x)), Sqrt(...))             d names the value that the Sub makes, to be used again
{Div(x, 1.41421)|Mul(x, 0.70711)}                   one of several
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations
from math import isclose

from ..values.values import Call, Value

_COMMUTATIVE = frozenset({"Add", "Mul"})
_TOKEN = re.compile(r"\s*([A-Za-z]\w*|[\d.]+|[(){}|,:])")
_TOLERANCE = 5e-3  # a constant of a formula in a type of 16 bits is off by as much


@dataclass(frozen=True, slots=True)
class Node:
    """An op type over patterns, and the name of what it makes; without a type one of several patterns."""

    op_type: str
    operands: tuple[Pattern, ...]
    name: str = ""
    kinds: tuple[frozenset[str], ...] = ()  # of the operands that are no letters, what may make each of them


Pattern = Node | str | float


@dataclass(frozen=True, slots=True)
class Match:
    """The values that the letters of a pattern stand for, and the calls between them and the root."""

    bound: dict[str, Value] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()


def parse(text: str) -> Pattern:
    """A pattern from its text."""
    tokens: list[str] = _TOKEN.findall(text)[::-1]

    def listed(closing: str) -> tuple[Pattern, ...]:
        found = [pattern()]
        while tokens[-1] != closing:
            tokens.pop()
            found.append(pattern())
        tokens.pop()
        return tuple(found)

    def pattern() -> Pattern:
        token = tokens.pop()
        if token == "{":
            return Node("", listed("}"))
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        name = ""
        if tokens and tokens[-1] == ":":
            tokens.pop()
            name, token = token, tokens.pop()
        if token[0].isupper():
            tokens.pop()
            operands = listed(")")
            return Node(token, operands, name, tuple(found for found in map(_kinds, operands) if found))
        return token

    return pattern()


def _kinds(pattern: Pattern) -> frozenset[str]:
    """The op types that may make a value, a number of none; empty if anything may."""
    if isinstance(pattern, float):
        return frozenset({""})
    if isinstance(pattern, str):
        return frozenset()
    found = [frozenset({pattern.op_type})] if pattern.op_type else [_kinds(one) for one in pattern.operands]
    return frozenset().union(*found) if all(found) else frozenset()


def roots(pattern: Pattern) -> Iterator[Node]:
    """The patterns of one op type each that a pattern stands for."""
    assert isinstance(pattern, Node)
    if pattern.op_type:
        yield pattern
    else:
        for operand in pattern.operands:
            yield from roots(operand)


def makers(call: Call) -> frozenset[str]:
    """The op types that make the operands of a call, nothing for a known number."""
    return frozenset(
        ""
        if value.known is not None and value.known.size == 1
        else value.producer.op_type
        if value.producer
        else "leaf"
        for value in call.inputs
        if value is not None
    )


def number(value: Value) -> float | None:
    """The only element of a known constant."""
    return None if value.known is None or value.known.size != 1 else float(value.known.ravel()[0])


def matches(pattern: Pattern, value: Value, found: Match) -> Iterator[Match]:
    """The ways in which a value is what a pattern describes."""
    if isinstance(pattern, float):
        known = number(value)
        if known is not None and isclose(known, pattern, rel_tol=_TOLERANCE):
            yield found
    elif isinstance(pattern, str):
        taken = found.bound.get(pattern)
        if taken is None:
            yield Match({**found.bound, pattern: value}, found.calls)
        elif taken is value or (taken.is_leaf and _same_number(taken, value)):
            yield found
    elif not pattern.op_type:
        for one in pattern.operands:
            yield from matches(one, value, found)
    else:
        yield from _of_call(pattern, value, found)


def _same_number(first: Value, second: Value) -> bool:
    known = number(first)
    return known is not None and known == number(second)


def _of_call(pattern: Node, value: Value, found: Match) -> Iterator[Match]:
    call = value.producer
    if call is None or call.op_type != pattern.op_type or call.domain or call.outputs[0] is not value:
        return
    inputs = [operand for operand in call.inputs[: len(pattern.operands)] if operand is not None]
    if len(inputs) != len(pattern.operands):
        return
    if len(pattern.kinds) > 1:
        made_by = makers(call)
        if any(map(made_by.isdisjoint, pattern.kinds)):
            return
    bound = {**found.bound, pattern.name: value} if pattern.name else found.bound
    start = Match(bound, (*found.calls, call))
    for order in permutations(inputs) if call.op_type in _COMMUTATIVE else (inputs,):
        yield from _all(pattern.operands, tuple(order), start)


def _all(patterns: tuple[Pattern, ...], values: tuple[Value, ...], found: Match) -> Iterator[Match]:
    """The ways in which all of several values are what their patterns describe."""
    if not patterns:
        yield found
        return
    for one in matches(patterns[0], values[0], found):
        yield from _all(patterns[1:], values[1:], one)
