"""Element types that exporters write although the opset of the file does not allow them.

Shapes do not depend on element types: they are inferred with types that are allowed, and bytes are counted with those
of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...units import is_or_are
from ..values.values import Call

_FLOATS = ("float32", "float64", "float16")  # replace a floating type that is not allowed, best first
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"})
_TYPE_ATTRIBUTES = {"Cast": "to", "EyeLike": "dtype", "RandomNormalLike": "dtype", "RandomUniformLike": "dtype",
                    "RandomNormal": "dtype", "RandomUniform": "dtype", "Bernoulli": "dtype"}  # fmt: skip
_ONNX_NAMES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True, slots=True)
class Formals:
    """The types of an op's inputs and outputs, as type variables or names of types, and what each variable allows."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    repeated: bool  # the last input may be repeated
    allowed: Mapping[str, frozenset[str]]

    def input(self, position: int) -> str:
        """The type variable of an input, "" if it has none."""
        if position >= len(self.inputs) and self.repeated:
            return self.inputs[-1]
        return self.inputs[position] if position < len(self.inputs) else ""

    def takes(self, variable: str, dtype: str) -> bool:
        """Whether a type variable allows a dtype."""
        return dtype in self.allowed.get(variable, frozenset({dtype}))


@dataclass(frozen=True, slots=True)
class StandIns:
    """The types to infer a node with, where its own are not allowed.

    Attributes:
        dtype: The type that the op does not allow.
        inputs: By position, the type that replaces that of an input.
        shapes: By position, the shape that replaces that of an input.
        outputs: By position, the real type of an output.
        attribute: The name of an attribute that names a type, and the type that replaces it.
    """

    dtype: str
    inputs: Mapping[int, str]
    outputs: Mapping[int, str]
    attribute: tuple[str, str] | None = None
    shapes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def dtypes(texts: Iterable[str]) -> frozenset[str]:
    """The dtypes of ``tensor(...)`` types; other types have none."""
    inner = (text.removeprefix("tensor(").removesuffix(")") for text in texts if text.startswith("tensor("))
    return frozenset(_ONNX_NAMES.get(name, name) for name in inner)


def stand_ins(op: Formals, call: Call, attribute_dtype: str) -> StandIns | None:
    """The types that replace floating types that are not allowed; None if all are allowed or none can be replaced.

    ``attribute_dtype`` is the type that an attribute of the node names, "" if none does.
    """
    types = {position: value.dtype for position, value in enumerate(call.inputs) if value is not None}
    first = types.get(0, "")
    parts = tuple(dict.fromkeys(types.values()))
    if call.op_type in _NORMS and not call.domain and len(parts) > 1 and all(map(_is_floating, parts)):
        # torch's norms take halves with a float32 scale, as autocast leaves them, and keep the type of the halves
        shown = first if op.takes(op.input(0), first) else "float32"
        return StandIns(" and ".join(parts), dict.fromkeys(types, shown), {0: first})
    if has_class_probabilities(call):
        scores = call.inputs[0]
        assert scores is not None
        return StandIns("class probabilities", {1: "int64"}, {}, shapes={1: (*scores.shape[:1], *scores.shape[2:])})
    inputs: dict[int, str] = {}
    replaced: dict[str, str] = {}
    for position, dtype in types.items():
        variable = op.input(position)
        other = _other_float(op, variable, dtype)
        if other:
            inputs[position] = other
            replaced.setdefault(variable, dtype)
    attribute = None
    named = _TYPE_ATTRIBUTES.get(call.op_type) if attribute_dtype else None
    if named is not None and op.outputs[0] not in op.inputs:
        other = _other_float(op, op.outputs[0], attribute_dtype)
        if other:
            attribute, replaced[op.outputs[0]] = (named, other), attribute_dtype
    if not replaced:
        return None
    outputs = {position: replaced[variable] for position, variable in enumerate(op.outputs) if variable in replaced}
    return StandIns(next(iter(replaced.values())), inputs, outputs, attribute)


def has_class_probabilities(call: Call) -> bool:
    """Whether a loss is given a probability of each class, as torch's cross entropy takes and exports it."""
    if call.domain or call.op_type != "SoftmaxCrossEntropyLoss" or len(call.inputs) < 2:
        return False
    scores, labels = call.inputs[:2]
    return scores is not None and labels is not None and labels.shape == scores.shape and labels.is_float


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _other_float(op: Formals, variable: str, dtype: str) -> str:
    if not _is_floating(dtype) or op.takes(variable, dtype):
        return ""
    return next((other for other in _FLOATS if op.takes(variable, other)), "")


def attribute_of_type(call: Call) -> int:
    """The number of the element type that an attribute of the call names, 0 if none does."""
    number = call.attributes.get(_TYPE_ATTRIBUTES.get(call.op_type, ""), 0)
    return number if isinstance(number, int) else 0


def not_taken(op: Formals, call: Call) -> int | None:
    """The first input of a type that the op does not take."""
    for position, value in enumerate(call.inputs):
        if value is not None and not op.takes(op.input(position), value.dtype):
            return position
    return None


def bool_operand(call: Call) -> tuple[int, str] | None:
    """The position of a bool operand of floating-point arithmetic, and the type of the other operand."""
    if call.domain or call.op_type not in _ARITHMETIC or len(call.inputs) != 2:
        return None
    types = [None if value is None else value.dtype for value in call.inputs]
    for position, dtype in enumerate(types):
        other = types[1 - position]
        if dtype == "bool" and other is not None and _is_floating(other):
            return position, other
    return None


def taken_as_they_are(count: int, op_type: str, dtype: str, opset: int) -> str:
    """The sentence on ops whose element type their definition does not allow."""
    are, they_are = ("is", "it is") if count == 1 else ("are", "they are")
    return f"{count} {op_type} of {dtype}, which opset {opset} does not allow there, {are} read as {they_are}"


def cast_operands(count: int, op_type: str, dtype: str) -> str:
    """The sentence on ops of a floating-point and a bool operand."""
    told = f"{count} {op_type} of {dtype} and bool, which ONNX does not allow, {is_or_are(count)}"
    return f"{told} read with the bool cast to {dtype}"
