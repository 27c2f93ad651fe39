"""Fake quantisation: what rounds in the forward and passes its gradient straight through in the backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from json import dumps as quoted

from numpy import array_equal

from ...graph import ATEN_DOMAIN
from ...units import counted, is_or_are
from ..values.values import Call, Value

FAKE_QUANTIZE = "fake_quantize"
STOPS_GRADIENT = "stops_gradient"
"""Attribute of an op without a gradient: a detach, or what is subtracted and added again without one."""

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_BETWEEN = ("Clip", "Identity")
_ROUNDING = frozenset({"Round", "Floor", "Ceil", "Sign", "DequantizeLinear", FAKE_QUANTIZE})
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum"})
_SCALING = frozenset({"Add", "Sub", "Mul", "Div"})
_NEARBY = 64  # values between a tensor and what is rounded of it: a search for a codebook's nearest vector has ten


def straight_through(calls: Sequence[Call], outputs: Sequence[Value]) -> tuple[list[Call], tuple[str, ...]]:
    """The calls with each pair of quantisation and dequantisation as one fake_quantize, and sentences on what was read.

    A DequantizeLinear of what a quantiser made with the same scale and zero point reads the quantiser's input instead.
    A difference q - x that is read only to add it to x is marked if q is a rounding of x: written as
    x + (q - x).detach(), it lets the gradient of x pass alone.
    """
    readers = Counter(id(value) for call in calls for value in call.inputs if value is not None)
    readers.update(id(value) for value in outputs)
    made: list[Call] = []
    pairs = sums = unequal = 0
    stored: list[Value] = []
    for call in calls:
        source = call.inputs[0] if call.inputs else None
        if not call.domain and call.op_type == "DequantizeLinear" and source is not None:
            maker = _quantizer(source)
            if maker is not None and not _same_steps(maker, call):
                unequal += 1
            elif maker is not None:
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
            for correction in _corrections(call, readers):
                correction.attributes[STOPS_GRADIENT] = 1
                sums += 1
        made.append(call)
    kept: list[Call] = []
    for call in reversed(made):
        if pairs and call.op_type in (*_QUANTIZERS, *_BETWEEN) and not any(readers[id(out)] for out in call.outputs):
            readers.subtract(id(value) for value in call.inputs if value is not None)
        else:
            kept.append(call)
    return kept[::-1], tuple(_said(pairs, unequal, sums, stored))


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


def _same_steps(quantiser: Call, dequantiser: Call) -> bool:
    """Whether two calls have the same scale, zero point and axis."""
    made_here = quantiser.op_type == "DynamicQuantizeLinear"
    steps = quantiser.outputs[1:3] if made_here else quantiser.inputs[1:3]
    pairs = zip_longest(steps, dequantiser.inputs[1:3])
    axes = [(call.attributes.get("axis", 1), call.attributes.get("block_size", 0)) for call in (quantiser, dequantiser)]
    return all(_equal(*pair) for pair in pairs) and (made_here or axes[0] == axes[1])


def _equal(first: Value | None, second: Value | None) -> bool:
    """Whether two values are one or equal constants; an absent zero point is zero."""
    if first is None or second is None:
        other = first or second
        return other is None or (other.known is not None and not other.known.any())
    if _behind_copies(first) is _behind_copies(second):
        return True
    return first.known is not None and second.known is not None and array_equal(first.known, second.known)


def _corrections(total: Call, readers: Mapping[int, int]) -> Iterator[Call]:
    """What makes a difference q - x that is added to x itself and read nowhere else, where q is a rounding of x."""
    for mine, other in (total.inputs, total.inputs[::-1]):
        if mine is None or other is None or any(readers[id(value)] != 1 for value in _copies(other)):
            continue
        maker = _behind_copies(other).producer
        if maker is None or maker.op_type != "Sub" or maker.domain:
            continue
        rounded, taken = maker.inputs
        if rounded is None or taken is None or not mine.shape == rounded.shape == taken.shape:
            continue
        if _behind_copies(taken) is _behind_copies(mine) and _is_rounding(rounded, _behind_copies(mine)):
            yield maker


def _is_rounding(rounded: Value, source: Value) -> bool:
    """Whether a value follows from another, or from what that was made of, only through ops without a gradient.

    Those are roundings, and all ops that make integers or truth values. A smaller factor or addend is a scale, which
    may follow from the source in any way. A layer of weights over a rounded value is no rounding any more, but one over
    integers may be: it takes vectors out of a codebook.
    """
    waiting, flat, seen = [(rounded, False)], list[Value](), set[int]()
    while waiting:
        value, behind_layer = waiting.pop()
        call = value.producer
        if value is source or value.is_input or len(seen) > _NEARBY:
            return False
        if call is None or id(value) in seen:
            continue
        seen.add(id(value))
        for operand in call.data_inputs:
            if not operand.is_float and not operand.is_leaf:
                flat.append(operand)
        if call.op_type in _ROUNDING:
            if behind_layer:
                return False
            flat.extend(call.data_inputs[:1])
            continue
        layered = behind_layer or call.op_type in _LAYERS
        whole = max((operand.numel for operand in call.data_inputs if operand.is_float), default=0)
        waiting.extend(
            (operand, layered)
            for operand in call.data_inputs
            if operand.is_float and (call.op_type not in _SCALING or operand.numel == whole)
        )
    return _meets(flat, source)


def _meets(values: Sequence[Value], source: Value) -> bool:
    """Whether values follow from a source, or from what that was made of."""
    made = source.producer
    behind = made.data_inputs if made is not None and made.op_type not in _LAYERS else ()
    wanted = {id(source), *(id(value) for value in behind)}
    waiting, seen = list(values), set[int]()
    while waiting and len(seen) < _NEARBY:
        value = waiting.pop(0)
        if id(value) in wanted:
            return True
        if id(value) not in seen and value.producer is not None:
            seen.add(id(value))
            waiting.extend(value.producer.data_inputs)
    return False


def _copies(value: Value) -> Iterator[Value]:
    """A value and those that it is a copy of."""
    yield value
    while value.producer is not None and value.producer.op_type == "Identity" and value.producer.inputs[0] is not None:
        value = value.producer.inputs[0]
        yield value


def _behind_copies(value: Value) -> Value:
    return [*_copies(value)][-1]


def _said(pairs: int, unequal: int, sums: int, stored: Sequence[Value]) -> Iterator[str]:
    if pairs:
        yield (
            f"{counted(pairs, 'pair')} of quantisation and dequantisation: the gradient passes straight through, as "
            "through torch's fake_quantize, which saves a mask"
        )
    if unequal:
        yield (
            f"{counted(unequal, 'pair')} of quantisation and dequantisation with unequal scales or zero points "
            f"{is_or_are(unequal)} charged as written: no gradient passes"
        )
    if sums:
        yield (
            f"{counted(sums, 'sum')} x + (q - x), where q is x rounded, {is_or_are(sums)} read as "
            "x + (q - x).detach(): the gradient of x passes alone"
        )
    if stored:
        largest = max(dict.fromkeys(stored), key=lambda value: value.nbytes)
        yield (
            f"{counted(len(dict.fromkeys(stored)), 'weight')} stored as integers and dequantised have no gradient and "
            f"are not trained, the largest is {quoted(largest.name)}"
        )
