"""Fake quantisation: what rounds in the forward and passes its gradient straight through in the backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from json import dumps as quoted

from ...graph import ATEN_DOMAIN
from ...units import counted
from ..values.values import Call, Value

FAKE_QUANTIZE = "fake_quantize"
STOPS_GRADIENT = "stops_gradient"
"""Attribute of an op without a gradient: a detach, or what is subtracted and added again without one."""

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_BETWEEN = ("Clip", "Identity")


def straight_through(calls: Sequence[Call], outputs: Sequence[Value]) -> tuple[list[Call], tuple[str, ...]]:
    """The calls with each pair of quantisation and dequantisation as one fake_quantize, and sentences on what was read.

    A DequantizeLinear of what a quantiser made reads the quantiser's input instead. A difference q - x that is read
    only to add it to x is marked: written as x + (q - x).detach(), it lets the gradient of x pass alone.
    """
    readers = Counter(id(value) for call in calls for value in call.inputs if value is not None)
    readers.update(id(value) for value in outputs)
    made: list[Call] = []
    pairs = sums = 0
    stored: list[Value] = []
    for call in calls:
        source = call.inputs[0] if call.inputs else None
        if not call.domain and call.op_type == "DequantizeLinear" and source is not None:
            maker = _quantizer(source)
            if maker is not None:
                inputs = (maker.inputs[0], *call.inputs[1:])
                pair = (*_until(source, maker), call)
                call = Call(call.name, FAKE_QUANTIZE, ATEN_DOMAIN, inputs, call.outputs, scope=call.scope)
                call.stand_for(pair)
                call.outputs[0].producer = call
                readers[id(source)] -= 1
                pairs += 1
            elif source.owner.is_leaf:
                stored.append(source.owner)
        if not call.domain and call.op_type == "Add":
            for difference in _corrections(call):
                if readers[id(difference)] == 1 and difference.producer is not None:
                    difference.producer.attributes[STOPS_GRADIENT] = 1
                    sums += 1
        made.append(call)
    kept: list[Call] = []
    for call in reversed(made):
        if pairs and call.op_type in (*_QUANTIZERS, *_BETWEEN) and not any(readers[id(out)] for out in call.outputs):
            readers.subtract(id(value) for value in call.inputs if value is not None)
        else:
            kept.append(call)
    return kept[::-1], tuple(_said(pairs, sums, stored))


def _quantizer(value: Value) -> Call | None:
    """The call that quantised a value, of the same shape; torch's exporter clips between if the range is narrow."""
    while value.producer is not None and value.producer.op_type in _BETWEEN and value.producer.inputs[0] is not None:
        value = value.producer.inputs[0]
    maker = value.producer
    return maker if maker is not None and maker.op_type in _QUANTIZERS and not maker.domain else None


def _until(value: Value, maker: Call) -> Iterator[Call]:
    """The calls from ``maker`` to a value that it quantised."""
    call = value.producer
    assert call is not None
    if call is not maker and call.inputs[0] is not None:
        yield from _until(call.inputs[0], maker)
    yield call


def _corrections(total: Call) -> Iterator[Value]:
    """What is added of the form q - x to x itself."""
    for mine, other in (total.inputs, total.inputs[::-1]):
        if mine is not None and other is not None:
            difference = _behind_copies(other)
            maker = difference.producer
            taken = maker.inputs[1] if maker is not None and maker.op_type == "Sub" and not maker.domain else None
            if taken is not None and _behind_copies(taken) is _behind_copies(mine):
                yield difference


def _behind_copies(value: Value) -> Value:
    while value.producer is not None and value.producer.op_type == "Identity" and value.producer.inputs[0] is not None:
        value = value.producer.inputs[0]
    return value


def _said(pairs: int, sums: int, stored: Sequence[Value]) -> Iterator[str]:
    if pairs:
        yield (
            f"{counted(pairs, 'pair')} of quantisation and dequantisation: the gradient passes straight through, as "
            "through torch's fake_quantize, which saves a mask"
        )
    if sums:
        yield f"{counted(sums, 'sum')} x + (q - x) are read as x + (q - x).detach(): the gradient of x passes alone"
    if stored:
        largest = max(dict.fromkeys(stored), key=lambda value: value.nbytes)
        yield (
            f"{counted(len(dict.fromkeys(stored)), 'weight')} stored as integers and dequantised have no gradient and "
            f"are not trained, the largest is {quoted(largest.name)}"
        )
