"""Contradictions that shape inference does not see: reshapes that lose elements, weights that do not fit their data.

They appear if a batch is changed on the command line but is also a constant in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from json import dumps as quoted
from math import prod

from ...errors import InvalidModelError
from .values import Call, Value

REMEDY = "check the file, and that --batch and --shape fit the shapes that it fixes"

Shape = tuple[int, ...]


def shape_text(shape: Shape | list[int]) -> str:
    """A shape as text: ``[64, 2048]``."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


_AXES = ("axis", "axes", "batch_dims")
_BEYOND_LAST = ("Flatten", "OneHot", "Softmax", "LogSoftmax", "Hardmax")
"""Ops whose axis may be the number of dimensions."""
_WITH_CHANNELS = ("LRN", "GroupNormalization", "InstanceNormalization")


def check_axes(call: Call, where: str) -> None:
    """Raise InvalidModelError for dimensions that the first input does not have, and for an equation that is none.

    The library reads beyond its memory at such an axis, and never ends on such an equation. It infers shapes of fewer
    dimensions, or none, where a transpose orders some alone.
    """
    data, attributes = _shape(call, 0), call.attributes
    if data is not None and len(data) < 2 and call.op_type in _WITH_CHANNELS:
        raise InvalidModelError(f"{where} takes {shape_text(data)}, which has no channels", remedy=REMEDY)
    for name in attributes if data is not None else ():
        if name not in _AXES:
            continue
        given = attributes[name]
        axes = given if isinstance(given, tuple) else (given,)
        further = len(axes) if call.op_type == "Unsqueeze" else call.op_type in _BEYOND_LAST
        end = max(len(data or ()), 1) + further
        least = 0 if name == "batch_dims" else -end
        beyond = [axis for axis in axes if isinstance(axis, int) and not least <= axis < end]
        if beyond:
            raise InvalidModelError(f"{where} has {name} {beyond[0]} and takes {shape_text(data or ())}", remedy=REMEDY)
    order = attributes.get("perm") if call.op_type == "Transpose" else None
    if data is not None and isinstance(order, tuple) and sorted(map(str, order)) != sorted(map(str, range(len(data)))):
        raise InvalidModelError(
            f"{where} takes {shape_text(data)} with perm {list(order)}, which is no order of its dimensions",
            remedy=REMEDY,
        )
    if "equation" in attributes:
        _check_equation(attributes["equation"], where)


def _check_equation(equation: object, where: str) -> None:
    terms = str(equation).replace(" ", "").replace("->", ",", 1).split(",")
    letters = "".join(term.replace("...", "", 1) for term in terms)
    if letters and not (letters.isascii() and letters.isalpha()):
        raise InvalidModelError(f"{where} has the equation {quoted(str(equation)[:100])}", remedy=REMEDY)


def check_call(call: Call, where: str) -> None:
    """Raise InvalidModelError, which names the node and both shapes, for a call that contradicts itself."""
    rule = _RULES.get(call.op_type)
    if rule is None or call.domain:
        return
    reason = rule(call)
    if reason:
        raise InvalidModelError(f"{where} {reason}", remedy=REMEDY)


def _shape(call: Call, position: int) -> Shape | None:
    value: Value | None = call.inputs[position] if position < len(call.inputs) else None
    return None if value is None else value.shape


def _same_elements(call: Call) -> str:
    before, after = _shape(call, 0), call.outputs[0].shape
    if before is None or prod(before) == prod(after):
        return ""
    return f"turns {shape_text(before)} ({prod(before)} elements) into {shape_text(after)} ({prod(after)} elements)"


def _channels(call: Call) -> str:
    data, weight = _shape(call, 0), _shape(call, 1)
    groups = call.attributes.get("group", 1)
    assert isinstance(groups, int)
    if not data or not weight or len(data) < 2:
        return ""
    if call.op_type == "Conv":
        wanted = weight[1] * groups if len(weight) > 1 else -1
    else:
        wanted = weight[0]
    if data[1] == wanted:
        return ""
    return f"takes {shape_text(data)}, whose {data[1]} channels do not fit weights of shape {shape_text(weight)}"


def _groups(call: Call) -> str:
    data, groups = _shape(call, 0), call.attributes.get("num_groups", 1)
    assert isinstance(groups, int)
    assert data is not None
    if groups > 0 and data[1] % groups == 0:
        return ""
    return f"takes {shape_text(data)}, whose channels do not fit {groups} groups"


def _layer_scale(call: Call) -> str:
    data, scale = _shape(call, 0), _shape(call, 1)
    axis = call.attributes.get("axis", -1)
    if not isinstance(axis, int):
        return f"has axis = {axis!r}"
    if not data or scale is None:
        return ""
    normalised = data[axis % len(data) :]
    padded = (1,) * (len(normalised) - len(scale)) + scale
    if len(padded) == len(normalised) and all(b in (1, a) for a, b in zip(normalised, padded, strict=True)):
        return ""
    return f"normalises {shape_text(normalised)} of {shape_text(data)} with a scale of shape {shape_text(scale)}"


def _recurrent(call: Call) -> str:
    data, weight, recurrence = (_shape(call, position) for position in range(3))
    if not data or not weight or not recurrence or {len(data), len(weight), len(recurrence)} != {3}:
        return ""
    gates = {"LSTM": 4, "GRU": 3}.get(call.op_type, 1)
    directions, hidden = weight[0], recurrence[2]
    first = bool(call.attributes.get("layout", 0))
    if weight != (directions, gates * hidden, data[2]) or recurrence != (directions, gates * hidden, hidden):
        return f"takes {shape_text(data)} with weights of shapes {shape_text(weight)} and {shape_text(recurrence)}"
    wanted = (data[0], directions, hidden) if first else (directions, data[1], hidden)
    for position in (5, 6):
        state = _shape(call, position)
        if state and state != wanted:
            return f"takes {shape_text(data)} with an initial state of shape {shape_text(state)}"
    return ""


def _attention(call: Call) -> str:
    shapes = [shape for shape in (_shape(call, position) for position in range(3)) if shape is not None]
    if {len(shape) for shape in shapes} not in ({3}, {4}):
        shown = ", ".join(shape_text(shape) for shape in shapes)
        return f"takes query, key and value of shapes {shown}; all need three dimensions or all four"
    if len({shape[0] for shape in shapes}) > 1:
        return "takes query, key and value of different batches: " + ", ".join(shape_text(shape) for shape in shapes)
    for position in (4, 5):
        past = _shape(call, position)
        if past is not None and len(past) != 4:
            return f"takes past keys or values of shape {shape_text(past)}, which need four dimensions"
    for heads in ("q_num_heads", "kv_num_heads"):
        count = call.attributes.get(heads, 1)
        if not isinstance(count, int) or count < 1:
            return f"has {heads} = {count!r}"
    return ""


def _reverse_sequence(call: Call) -> str:
    data = _shape(call, 0)
    axes = [call.attributes.get(name, default) for name, default in (("batch_axis", 1), ("time_axis", 0))]
    if data is None or (len(data) >= 2 and sorted(axes, key=str) == [0, 1]):
        return ""
    return f"takes {shape_text(data)} with batch axis {axes[0]} and time axis {axes[1]}, which have to be 0 and 1"


def _slice(call: Call) -> str:
    if _shape(call, 0) == ():
        return "takes a scalar"
    listed = (("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4))
    lengths = [len(found) for name, position in listed if (found := call.integers(name, position)) is not None]
    return "" if len(set(lengths)) < 2 else f"takes starts, ends, axes and steps of different lengths: {lengths}"


def _einsum(call: Call) -> str:
    equation = call.attributes.get("equation", "")
    assert isinstance(equation, str)
    terms = equation.replace(" ", "").split("->")[0].split(",")
    if "." in equation:
        return ""
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms):
        for letter, size in zip(term, _shape(call, position) or (), strict=False):
            known = sizes.setdefault(letter, size)
            if known == 1:
                sizes[letter] = size
            elif size not in (1, known):
                return f"has index {letter} of both {known} and {size} in {equation}"
    return ""


_RULES: dict[str, Callable[[Call], str]] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "DepthToSpace", "SpaceToDepth"), _same_elements),
    **dict.fromkeys(("Conv", "ConvTranspose", "InstanceNormalization", "BatchNormalization"), _channels),
    "GroupNormalization": _groups,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _layer_scale),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Attention": _attention,
    "ReverseSequence": _reverse_sequence,
    "Slice": _slice,
    "Einsum": _einsum,
}
