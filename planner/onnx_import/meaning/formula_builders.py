"""What makes the call of a matched formula, or nothing if shapes and numbers say that it is another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isclose

from ...graph import ATEN_DOMAIN
from ..values.values import Call, Value
from ..values.view_ops import mark_view
from .formula_patterns import Match, number
from .parameter_detection import may_need_gradient


@dataclass(frozen=True, slots=True)
class Made:
    """A call for a formula, without its output; calls of the formula beside the matched ones; what goes before it."""

    call: Call
    more: tuple[Call, ...] = ()
    before: tuple[Call, ...] = ()


Build = Callable[[Match], Made | None]


def of_one(op_type: str, domain: str = "") -> Build:
    """A call of ``x`` alone."""
    return lambda match: Made(Call("", op_type, domain, (match.bound["x"],)))


def of_two(op_type: str) -> Build:
    """A call of aten of ``x`` and ``y``."""
    return lambda match: Made(Call("", op_type, ATEN_DOMAIN, (match.bound["x"], match.bound["y"])))


def hard(op_type: str) -> Build:
    """A call of ``x`` whose clip or hard sigmoid goes from 0 at -3 to its end at 3."""

    def build(match: Match) -> Made | None:
        inner = match.bound["c"].producer
        assert inner is not None
        if inner.op_type == "Clip":
            low, high = (_bound(inner, 1 + at, name) for at, name in enumerate(("min", "max")))
            right = low == 0 and high == 6
        else:
            slope, offset = (inner.attributes.get(*pair) for pair in (("alpha", 0.2), ("beta", 0.5)))
            right = isinstance(slope, float) and isclose(slope, 1 / 6, rel_tol=1e-4) and offset == 0.5
        return Made(Call("", op_type, "", (match.bound["x"],))) if right else None

    return build


def _bound(clip: Call, position: int, name: str) -> object:
    value = clip.inputs[position] if position < len(clip.inputs) else None
    return clip.attributes.get(name) if value is None else number(value)


def gated_half(match: Match) -> Made | None:
    """glu: one half of a tensor times the sigmoid of the other."""
    first, second = match.bound["a"], match.bound["b"]
    split = first.producer
    if split is None or split.op_type != "Split" or split.outputs != (first, second) or first.shape != second.shape:
        return None
    return Made(Call("", "glu", ATEN_DOMAIN, split.inputs[:1]), (split,))


def layer_norm(match: Match) -> Made | None:
    """A norm over the last dimensions, with scale and shift if matched."""
    source = match.bound["x"]
    means = {call.outputs[0].shape for call in match.calls if call.op_type == "ReduceMean"}
    rank = len(source.shape)
    axis = next((k for k in range(rank - 1, -1, -1) if means == {source.shape[:k] + (1,) * (rank - k)}), None)
    if axis is None or number(match.bound["e"]) is None or match.bound.get("y", source).dtype != source.dtype:
        return None
    affine = [match.bound[letter] for letter in "gb" if letter in match.bound]
    if any(not value.is_leaf or value.shape != source.shape[axis:] for value in affine):
        return None
    return Made(Call("", "LayerNormalization", "", (source, *affine), (), {"axis": axis}))


def group_norm(match: Match) -> Made | None:
    """A norm over groups of channels, which is an instance norm of another shape, with scale and shift if matched."""
    source, norm = match.bound["x"], match.bound["i"]
    scales = match.bound["o"].known, match.bound["z"].known
    if len(norm.shape) != 3 or len(source.shape) < 3 or norm.shape[0] != source.shape[0]:
        return None
    if scales[0] is None or scales[1] is None or (scales[0] != 1).any() or scales[1].any():
        return None
    if match.bound["y"].shape != source.shape:
        return None
    affine = [match.bound[letter].owner for letter in "gb" if letter in match.bound]
    if any(not value.is_leaf or value.numel != source.shape[1] for value in affine):
        return None
    return Made(Call("", "GroupNormalization", "", (source, *affine), (), {"num_groups": norm.shape[1]}))


def affine_norm(position: int, neutral: float) -> Build:
    """A norm made from a formula with its scale, or with its shift after that."""

    def build(match: Match) -> Made | None:
        norm, weight = match.bound["n"].producer, match.bound["w"]
        if norm is None or norm.op_type not in ("LayerNormalization", "GroupNormalization") or norm.domain:
            return None
        axis = norm.attributes.get("axis", 1)
        shape, wanted = weight.shape, match.bound["n"].shape
        assert isinstance(axis, int)
        if number(weight) == neutral and _is_of_exporter(norm, weight):
            return Made(_copy(norm, norm.inputs), (norm,))
        if len(norm.inputs) != position or not weight.owner.is_leaf or not weight.is_float:
            return None
        normalised = wanted[axis:] if norm.op_type == "LayerNormalization" else (wanted[1],) + (1,) * (len(wanted) - 2)
        if (1,) * (len(normalised) - len(shape)) + shape not in (normalised, (1,) * axis + normalised):
            return None
        return Made(_copy(norm, (*norm.inputs, weight.owner)), (norm,))

    return build


def _is_of_exporter(norm: Call, factor: Value) -> bool:
    """Whether torch's exporter wrote a number for the scale or shift that a group norm does not have."""
    return norm.op_type == "GroupNormalization" and len(norm.inputs) == 1 and not factor.owner.is_initializer


def _copy(norm: Call, inputs: tuple[Value | None, ...]) -> Call:
    return Call("", norm.op_type, "", inputs, (), dict(norm.attributes))


def attention(match: Match) -> Made | None:
    """Fused attention of four dimensions, unless its mask is trained: then torch composes it of other calls.

    Torch's exporter multiplies query and transposed key by a root each, which tells them from numbers of a user.
    """
    query, turned, value = (match.bound[letter] for letter in "qkv")
    scales = [number(match.bound[letter]) for letter in "st"]
    if None in scales or scales[0] != scales[1] or any(len(v.shape) != 4 for v in (query, turned, value)):
        return None
    if not all(_is_root(match.bound[letter]) for letter in "st"):
        return None
    batch, heads, length, width = turned.shape[0], turned.shape[1], turned.shape[3], turned.shape[2]
    if query.shape[:2] != (batch, heads) or value.shape != (batch, heads, length, query.shape[3]):
        return None
    if any(call.op_type == "Softmax" and call.attributes.get("axis") not in (-1, 3) for call in match.calls):
        return None
    mask = match.bound.get("m")
    if mask is not None and (len(mask.shape) not in (2, 4) or may_need_gradient(mask)):
        return None
    key, before, more = _key(turned)
    attributes: dict[str, object] = {}
    if mask is not None and _is_causal(mask):
        attributes, mask = {"is_causal": 1}, None
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    assert width == key.shape[3]
    return Made(Call("", "Attention", "", inputs, (), attributes), more, before)


def _is_root(scale: Value) -> bool:
    maker = scale.producer
    if maker is not None and maker.op_type == "Cast" and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer
    return maker is not None and maker.op_type == "Sqrt"


def _key(turned: Value) -> tuple[Value, tuple[Call, ...], tuple[Call, ...]]:
    """The key of a transposed one, a Transpose that makes it, and the one that is not needed any more."""
    source, order, gone = turned, (0, 1, 3, 2), tuple[Call, ...]()
    call = turned.producer
    if call is not None and call.op_type == "Transpose" and call.inputs[0] is not None:
        perm = call.attributes.get("perm")
        assert isinstance(perm, tuple)
        source, order, gone = call.inputs[0], (*perm[:2], perm[3], perm[2]), (call,)
    if order == (0, 1, 2, 3):
        return source, (), gone
    key = Value(f"{turned.name} as key", turned.dtype, tuple(source.shape[axis] for axis in order))
    made = Call(f"{turned.name}.key", "Transpose", "", (source,), (key,), {"perm": order})
    key.producer, key.from_input, key.from_file = made, source.from_input, source.from_file
    mark_view(made)
    return key, (made,), gone


def _is_causal(mask: Value) -> bool:
    """Whether a mask is minus infinity where a lower triangle of ones is zero."""
    value, call = mask, mask.producer
    for op_type in ("Where", "Equal", "Trilu"):
        call = value.producer
        if call is None or call.op_type != op_type or call.inputs[0] is None:
            return False
        value = call.inputs[0]
    return mask.from_file and call is not None and not call.attributes.get("upper", 1)


def lerp(match: Match) -> Made | None:
    """lerp of two tensors by a number or a tensor."""
    first, second, weight = (match.bound[letter] for letter in "abw")
    inputs = (first, second) if number(weight) is not None else (first, second, weight)
    return Made(Call("", "lerp", ATEN_DOMAIN, inputs))


def sum_into(*, saves: bool) -> Build:
    """Values added into a tensor at indices, which older opsets write as a sum with values scattered into zeros."""

    def build(match: Match) -> Made | None:
        target, zeros, indices, values, scatter = (match.bound[letter] for letter in "azisl")
        if not zeros.zeros or zeros.declared or zeros.shape != target.shape or target.shape != match.bound["y"].shape:
            return None
        if scatter.producer is None or scatter.producer.attributes.get("reduction", "none") != "none":
            return None
        axis = scatter.producer.attributes.get("axis", 0)
        attributes: dict[str, object] = {"axis": axis, "reduction": "add", "saves_updates": int(saves)}
        return Made(Call("", "ScatterElements", "", (target, indices, values), (), attributes))

    return build


def index_put(match: Match) -> Made | None:
    """index_add, which the newer exporter takes apart into an index_put that saves less."""
    put = match.bound["l"].producer
    if put is None or put.attributes.get("reduction") != "add":
        return None
    return Made(Call("", "ScatterND", "", put.inputs, (), {**put.attributes, "saves_updates": 1}))


def adaptive_pool(match: Match) -> Made | None:
    """adaptive_avg_pool2d to a size that does not divide the input's: windows are gathered, masked and summed."""
    counts, result = match.bound["n"], match.bound["y"]
    if not counts.from_file or len(result.shape) < 3 or counts.shape == ():
        return None
    calls: dict[int, Call] = {}
    sources: dict[int, Value] = {}
    terms = [match.bound["a"]]
    while terms:
        value = terms.pop()
        call = value.producer
        if call is None or call.op_type not in ("Add", "Gather"):
            return None
        calls[id(call)] = call
        if call.op_type == "Add":
            terms.extend(operand for operand in call.inputs if operand is not None)
            continue
        while call is not None and call.op_type == "Gather":
            index = call.inputs[1]
            if index is None or index.known is None or index.shape != () or call.inputs[0] is None:
                return None
            calls[id(call)] = call
            value = call.inputs[0]
            call = value.producer
        sources[id(value)] = value
    window = _window_source(next(iter(sources.values())), calls) if len(sources) == 1 else None
    if window is None or window.shape[:-2] != result.shape[:-2] or len(window.shape) != len(result.shape):
        return None
    kernel = tuple(-(-old // new) for old, new in zip(window.shape[-2:], result.shape[-2:], strict=True))
    return Made(Call("", "AveragePool", "", (window,), (), {"kernel_shape": kernel}), tuple(calls.values()))


def _window_source(value: Value, calls: dict[int, Call]) -> Value | None:
    """What windows are gathered of, after masks of elements beyond a window; enters the calls between."""
    wanted = ["Transpose", "GatherND", "Transpose"]
    while wanted:
        call = value.producer
        if call is None:
            return None
        if call.op_type == "Where" and len(wanted) == 3:
            condition, filler, source = call.inputs[0], call.inputs[1], call.inputs[2]
            if condition is None or not condition.from_file or filler is None or number(filler) != 0:
                return None
        elif call.op_type == wanted.pop():
            source = call.inputs[0]
        else:
            return None
        if call.op_type == "GatherND" and (call.inputs[1] is None or not call.inputs[1].from_file):
            return None
        if source is None:
            return None
        calls[id(call)] = call
        value = source
    return value
