"""The calls of aten that torch's exporter writes as groups of nodes, and the types of these nodes."""

from __future__ import annotations

from ...graph import ATEN_DOMAIN, ITEM_BITS
from ..document.exporter_records import RecordedCall
from ..values.values import Call, Value
from .parameter_detection import may_need_gradient

_ONE_OPERAND = {
    "silu": ("Swish", "Sigmoid Mul"),
    "gelu": ("Gelu", "Mul Add Div Erf Tanh Pow Sqrt"),
    "softplus": ("Softplus", "Softplus Mul Div Greater Where"),
    "mish": ("Mish", "Tanh Softplus Mul"),
    "hardswish": ("HardSwish", "Mul Add Clip Div HardSigmoid"),
    "hardsigmoid": ("HardSigmoid", "Clip Add Div Mul HardSigmoid"),
    "rsqrt": ("rsqrt", "Sqrt Reciprocal"),
    "log1p": ("log1p", "Log Add CastLike"),
    "expm1": ("expm1", "Exp Sub CastLike"),
    "glu": ("glu", "Sigmoid Split Mul"),
    "log_sigmoid_forward": ("log_sigmoid", "Log Sigmoid"),
    "log_sigmoid": ("log_sigmoid", "Log Sigmoid"),
    "roll": ("roll", "Concat Slice Reshape"),
}
"""Name of a call with one operand -> (op that it is read as, types of its nodes; the first one must be there)."""

_GROUP_NORM = "InstanceNormalization Reshape Mul Add"
_ATTENTION = "Softmax Transpose Reshape Mul MatMul Add Where Unsqueeze Expand IsNaN"
_ATEN_ONLY = frozenset({"rsqrt", "log1p", "expm1", "glu", "log_sigmoid", "roll"})
_REDUCTIONS = {"mean": "ReduceMean", "sum": "ReduceSum"}
SOFTMAX = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}


def fold(recorded: RecordedCall, types: set[str], operands: list[Value], made: list[Call]) -> Call | None:
    """The call that a group was written for, without its outputs; None if the nodes are not the expected ones."""
    last = made[-1]
    moving = [value for value in operands if value.from_input]
    if recorded.name in _ONE_OPERAND and len(moving) == 1:
        op_type, expected = _ONE_OPERAND[recorded.name]
        if _is(types, expected) and _is_once(made, expected) and (op_type != "Swish" or _gates(moving[0], made)):
            domain = ATEN_DOMAIN if op_type in _ATEN_ONLY else ""
            return Call(last.name, op_type, domain, (moving[0],), scope=last.scope)
    op_type = SOFTMAX.get(recorded.name) or _REDUCTIONS.get(recorded.name, "")
    if op_type and [call.op_type for call in made if call.outputs[0].from_input] == [op_type, "Cast"]:
        return _in_wider_type(op_type, made)
    if recorded.name == "atan2" and types >= {"Div", "Atan"} and len(moving) == 2:
        return Call(last.name, "atan2", ATEN_DOMAIN, (moving[0], moving[1]), scope=last.scope)
    if recorded.name == "addcmul" and types == {"Mul", "Add"}:
        return _scaled_sum("addcmul", "Mul", operands, made)
    if recorded.name == "addcdiv" and types == {"Div", "Mul", "Add"}:
        return _scaled_sum("addcdiv", "Div", operands, made)
    if recorded.name in ("group_norm", "native_group_norm") and len(moving) == 1 and _is(types, _GROUP_NORM):
        groups = recorded.integer(1 if recorded.name == "group_norm" else 5)
        weights = [value for value in operands if value.is_leaf and value.is_float and value.declared == "PARAMETER"]
        plain = recorded.arguments[1 if recorded.name == "native_group_norm" else 2 :][:1] == ("None",)
        if groups is not None and len(weights) == (0 if plain else 2):
            inputs = (moving[0], *weights)
            return Call(last.name, "GroupNormalization", "", inputs, (), {"num_groups": groups}, scope=last.scope)
    if recorded.name == "scaled_dot_product_attention" and _is(types, _ATTENTION):
        return _attention(recorded, operands, last)
    return None


def _in_wider_type(op_type: str, made: list[Call]) -> Call | None:
    """A softmax or a mean with a given wider type: the exporter casts the result, torch casts the input."""
    narrow = next(call for call in made if call.op_type == op_type)
    source, result = narrow.inputs[0], made[-1].outputs[0]
    if source is None or not result.is_float or ITEM_BITS[result.dtype] <= ITEM_BITS[source.dtype]:
        return None
    return Call(made[-1].name, op_type, "", narrow.inputs, (), dict(narrow.attributes), scope=narrow.scope)


def _scaled_sum(name: str, op_type: str, operands: list[Value], made: list[Call]) -> Call | None:
    """addcmul or addcdiv: the addend, and the two factors or the dividend and the divisor."""
    outside = {id(value) for value in operands}
    addends, pair = (
        [value for call in made if call.op_type == kind for value in call.inputs if id(value) in outside]
        for kind in ("Add", op_type)
    )
    if len(addends) != 1 or len(pair) != 2:
        return None
    return Call(made[-1].name, name, ATEN_DOMAIN, (addends[0], *pair), scope=made[-1].scope)


def scaled_product(made: list[Call]) -> list[Call]:
    """baddbmm with alpha: the kernel scales the product, and its backward scales another gradient."""
    for product in made:
        scaled = [call for call in made if call.op_type == "Mul" and product.outputs[0] in call.inputs]
        if product.op_type != "MatMul" or len(scaled) != 1:
            continue
        result = scaled[0].outputs[0]
        product.stand_for((product, scaled[0])).attributes = {**product.attributes, "alpha": 0.0}
        product.outputs, result.producer = (result,), product
        return [call for call in made if call is not scaled[0]]
    return made


def _is_once(made: list[Call], expected: str) -> bool:
    """Whether the first of the expected types occurs once, which means that this is one call and not several.

    Gelu and roll are exceptions: a gelu multiplies several times, and a roll concatenates along several axes.
    """
    return expected.startswith(("Mul ", "Concat ")) or sum(call.op_type == expected.split()[0] for call in made) == 1


def _gates(value: Value, made: list[Call]) -> bool:
    """Whether the last call multiplies a value by its own sigmoid."""
    gate = next(call for call in made if call.op_type == "Sigmoid")
    return gate.inputs == (value,) and set(map(id, made[-1].inputs)) == {id(value), id(gate.outputs[0])}


def _is(types: set[str], expected: str) -> bool:
    """Whether the nodes are of the expected types and the first of these is there."""
    return types <= set(expected.split()) and expected.split()[0] in types


def drops(recorded: RecordedCall) -> bool:
    """Whether a recorded scaled_dot_product_attention drops some of its weights."""
    return recorded.drops(4, "dropout_p")


def _attention(recorded: RecordedCall, operands: list[Value], last: Call) -> Call | None:
    """Attention without dropout and trained mask; with them, torch composes it of others on the CPU, as files do."""
    named = {value.name: value for value in operands}
    positions = [named.get(name) for name in recorded.tensors(4)]
    query, key, value, mask = positions
    if drops(recorded) or (mask is not None and may_need_gradient(mask)):
        return None
    if query is None or key is None or value is None or any(len(v.shape) != 4 for v in (query, key, value)):
        return None
    if (recorded.tensors(4)[3] and mask is None) or (mask is not None and len(mask.shape) not in (2, 4)):
        return None
    grouped = recorded.truth(7, "enable_gqa") and query.shape[1] % max(key.shape[1], 1) == 0
    same_heads = query.shape[1] == key.shape[1] or grouped
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3] or not same_heads:
        return None  # torch repeats keys and values and composes the call of others
    if query.shape[3] != value.shape[3]:
        return None
    attributes: dict[str, object] = {"is_causal": 1} if recorded.truth(5, "is_causal") else {}
    inputs = (query, key, value) if mask is None else (query, key, value, mask)
    return Call(last.name, "Attention", "", inputs, (), attributes, scope=last.scope)


def safe_softmax(made: list[Call]) -> list[Call]:
    """Read Where(IsNaN(p), 0, p) of a softmax p as the softmax: torch computes it in place."""
    for softmax, is_nan, where in zip(made, made[1:], made[2:], strict=False):
        if (softmax.op_type, is_nan.op_type, where.op_type) != ("Softmax", "IsNaN", "Where"):
            continue
        probabilities = softmax.outputs[0]
        readers = [call for call in made if probabilities in call.inputs]
        if readers == [is_nan, where] and is_nan.outputs[0] is where.inputs[0]:
            softmax.stand_for((softmax, is_nan, where))
            where.outputs[0].producer, softmax.outputs = softmax, where.outputs
            return [call for call in made if call is not is_nan and call is not where]
    return made
