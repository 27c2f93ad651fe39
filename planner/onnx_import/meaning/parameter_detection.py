"""Which constants of a file are trained, if the program that wrote it did not record that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape
from json import dumps as quoted

from ...errors import UsageError, shell_word
from ..values.values import Call, Value
from .naming_schemes import NamingSchemes
from .straight_through import FAKE_QUANTIZE, STOPS_GRADIENT

LAYER_SLOTS: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3), "Gemm": (0, 1, 2), "MatMul": (0, 1),
    "BatchNormalization": (1, 2), "LayerNormalization": (1, 2), "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2), "RMSNormalization": (1,), "PRelu": (1,), "GridSample": (0,),
    "LSTM": (1, 2, 3, 7), "GRU": (1, 2, 3), "RNN": (1, 2, 3), "Einsum": (0, 1, 2, 3), "CausalConvWithState": (1, 2),
}  # fmt: skip
"""The inputs at which layers take weights: every constant that such a value is computed from is trained."""

_ALL = tuple(range(64))
ARITHMETIC_SLOTS: dict[str, tuple[int, ...]] = {
    "Add": (0, 1), "Mul": (0, 1), "Sub": (0, 1), "Div": (0, 1), "Pow": (0, 1), "Where": (1, 2), "Gather": (0,),
    "GatherElements": (0,), "GatherND": (0,), "Max": _ALL, "Min": _ALL, "Sum": _ALL, "Mean": _ALL, "Concat": _ALL,
}  # fmt: skip
"""The inputs at which a constant may be a weight, a mask, a table of positions or a number."""

INPUT_SCALING = frozenset({"Sub", "Div"})
"""Ops that normalise an input by the mean and the deviation of the data."""

_EVEN_CONSTANTS = frozenset({"Add", "Mul", "Gather"})  # a Constant node there is trained too
_TO_SCORES = frozenset({"Add", "Cast", "Identity", "Where"})
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_MOVES = frozenset({
    "Cast", "Concat", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
_FIRST_ONLY = frozenset({
    "Resize", "Upsample", "Clip", "Pad", "Dropout", "Expand", "Gather", "GatherND", "GatherElements", "Tile",
    FAKE_QUANTIZE,
})  # fmt: skip
_HIDDEN = -1e4
_STOPS = frozenset({"DequantizeLinear", "OneHot", "Range", "ConstantOfShape", "Sin", "Cos"})


def find_parameters(
    values: Sequence[Value], calls: Sequence[Call], producer: str = "", trained: Sequence[str] = ()
) -> tuple[frozenset[int], tuple[str, ...]]:
    """Identities of the constants that are trained, and sentences on those of one element that are in doubt.

    Trained are those recorded as such, those whose names match a glob of ``trained``, and of those without a record

    - a floating constant of rank one or more in a weight slot of a layer, and an initializer from which a value in such
      a slot is computed (weight norms, exponentials of parameters), except tables of sines, and except the ones and
      zeros that an exporter names itself and writes for a norm without weights;
    - an initializer of two or more elements, or a value computed from one, that arithmetic, a Concat, a Where or a
      Gather combines with a value that depends on an input. A Sub or a Div of an input before any weight is excluded:
      its constants are the mean and the deviation of the data;
      So are masks: constants of several rows that are added to the scores of a Softmax;
    - a constant of one element in the same slots, if its name follows a scheme for weights (`NamingSchemes`), or if it
      is the bias of a layer with one output.

    A file that records anything about its constants records all parameters; in such a file only the weight slots of
    layers, Add, Mul and Gather are considered. ``producer`` is the name of the program in the file.

    Raises UsageError for a glob of ``trained`` that matches no floating constant.
    """
    recorded = any(value.declared for value in values)
    initializers = {id(v) for v in values if v.is_initializer and v.is_float}
    taken = _Leaves(
        initializers or {id(v) for v in values if v.is_float},
        recorded,
        _schemes(calls, producer == "pytorch"),
        _scores(calls),
    )
    found = {id(value) for value in values if value.declared == "PARAMETER" and value.is_float}
    asked: set[int] = set()
    for glob in trained:
        named = {id(value) for value in values if value.is_float and fnmatchcase(value.name, glob)}
        if not named:
            raise UsageError(
                f"--frozen {'!' + glob!r} matches no floating constant", remedy="list them with: ogc-plan show MODEL -v"
            )
        asked |= named
    found |= asked
    learned: set[int] = set()
    for call in calls:
        found.update([id(leaf) for leaf in taken.of(call, learned) if not leaf.declared])
        if any(id(value) in learned or id(value.owner) in found for value in call.data_inputs):
            learned.update(id(output) for output in call.outputs)
    doubted = [leaf for key, leaf in taken.doubted.items() if not leaf.declared and key not in asked]
    return frozenset(found), tuple(_doubts(doubted, found))


def _schemes(calls: Sequence[Call], by_module: bool) -> NamingSchemes:
    """How the file names what weight slots of layers take, and the numbers where no layer has a weight."""
    weights, numbers = dict[int, Value](), dict[int, Value]()
    for call in calls:
        layer = LAYER_SLOTS.get(call.op_type, ()) if not call.domain else ()
        for slot, value in enumerate(call.inputs):
            if value is None or not value.is_float or not value.from_file:
                continue
            if slot in layer:
                weights.update((id(leaf), leaf) for leaf in _moved_leaves(value) if leaf.numel > 1)
            elif not value.shape or (value.numel == 1 and call.op_type not in ("Add", "Mul")):
                numbers[id(value.owner)] = value.owner
    return NamingSchemes(
        (leaf.name for leaf in weights.values()), (leaf.name for leaf in numbers.values()), by_module=by_module
    )


def _scores(calls: Sequence[Call]) -> set[int]:
    """The values that a Softmax takes as they are, or after a sum, a cast or a choice."""
    found: set[int] = set()
    for call in reversed(calls):
        softmax = call.op_type == "Softmax" and not call.domain
        if softmax or (call.op_type in _TO_SCORES and id(call.outputs[0]) in found):
            found.update(id(value) for value in call.data_inputs)
    return found


def _doubts(leaves: Sequence[Value], found: set[int]) -> Iterator[str]:
    """How the numbers of one element were taken that Add or Mul may apply as weights or as a formula's."""
    for trained in (True, False):
        names = [leaf.name for leaf in leaves if (id(leaf) in found) is trained]
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            what = "are weights by their names or places" if trained else "are taken for a formula's"
            glob = shell_word(("" if trained else "!") + escape(names[0]))
            remedy = f"--frozen {glob} {'freezes' if trained else 'trains'} it"
            yield f"single numbers of Add and Mul {what}: {quoted(names[0])}{more} ({remedy})"


def weight_slots(op_type: str) -> tuple[int, ...]:
    """The inputs at which an op of the default domain may take a weight."""
    return LAYER_SLOTS.get(op_type, ()) or ARITHMETIC_SLOTS.get(op_type, ())


class _Leaves:
    """Finds, call by call, the constants that it trains."""

    def __init__(self, initializers: set[int], recorded: bool, schemes: NamingSchemes, scores: set[int]) -> None:
        self.doubted: dict[int, Value] = {}  # of one element, which arithmetic applies
        self._initializers = initializers
        self._recorded = recorded
        self._schemes = schemes
        self._scores = scores

    def of(self, call: Call, learned: set[int]) -> Iterator[Value]:
        """The constants that ``call`` trains; ``learned`` are the values that depend on a parameter."""
        if call.charged:
            for value in call.inputs:
                yield from self._in_layer(call, value)
        if call.domain:
            return
        for slot in LAYER_SLOTS.get(call.op_type, ()):
            value = call.inputs[slot] if slot < len(call.inputs) else None
            if value is not None and not self._is_neutral(call, slot, value.owner):
                yield from self._in_layer(call, value)
        for slot in ARITHMETIC_SLOTS.get(call.op_type, ())[: len(call.inputs)]:
            value = call.inputs[slot] if slot < len(call.inputs) else None
            if value is not None:
                yield from self._in_arithmetic(call, value, learned)

    def _in_layer(self, call: Call, value: Value | None) -> list[Value]:
        if value is None or not value.is_float:
            return []
        found = [leaf for leaf in _moved_leaves(value) if leaf.is_float and leaf.shape]
        if not self._recorded and value.from_file and _reads_data(call):
            found += [leaf for leaf in computed_from(value) if self._may_be_weight(leaf)]
        return found

    def _in_arithmetic(self, call: Call, value: Value, learned: set[int]) -> Iterator[Value]:
        owner = value.owner
        rows = owner.is_leaf and value.numel > max(value.shape[-1:], default=1)
        if rows and call.op_type == "Add" and id(call.outputs[0]) in self._scores:
            return
        if call.op_type in _EVEN_CONSTANTS and owner.is_leaf and owner.is_float and owner.shape:
            if owner.numel > 1:
                yield owner
            elif _reads_data(call):
                self.doubted[id(owner)] = owner
                if self._is_weight(owner) or _is_bias(call, value):
                    yield owner
        if self._recorded or not value.is_float or not value.from_file or not _reads_data(call):
            return
        others = (other for other in call.data_inputs if other is not value)
        if call.op_type in INPUT_SCALING and not any(id(other) in learned for other in others):
            return
        yield from (leaf for leaf in computed_from(value) if self._may_be_weight(leaf))

    def _may_be_weight(self, leaf: Value) -> bool:
        return id(leaf) in self._initializers and (leaf.numel > 1 or self._is_weight(leaf))

    def _is_neutral(self, call: Call, slot: int, constant: Value) -> bool:
        """Whether an exporter wrote the scale of ones or the shift of zeros for a norm that has none."""
        known = constant.known
        if known is None or not call.op_type.endswith("Normalization") or not (known == (slot == 1)).all():
            return False
        return self._schemes.is_weight(constant.name, initializer=constant.is_initializer) is False

    def _is_weight(self, number: Value) -> bool:
        return self._schemes.is_weight(number.name, initializer=number.is_initializer) is True


def _is_bias(call: Call, number: Value) -> bool:
    """Whether a call adds a number to the only output channel of a layer."""
    for value in call.data_inputs:
        layer = value.owner.producer
        if call.op_type == "Add" and value is not number and layer is not None and layer.op_type in _LAYERS:
            channels = layer.outputs[0].shape[1:2] if "Conv" in layer.op_type else layer.outputs[0].shape[-1:]
            return channels == (1,) and len(layer.data_inputs) == 2
    return False


def _reads_data(call: Call) -> bool:
    """Whether a call reads anything but constants of the file."""
    return any(not value.from_file for value in call.data_inputs)


def _moved_leaves(value: Value) -> list[Value]:
    """The constants whose elements make up a value of the file; empty if any element is computed."""

    def sources(call: Call) -> Sequence[Value] | None:
        if call.op_type == FAKE_QUANTIZE:
            return call.data_inputs[:1]
        if call.domain or call.op_type not in _MOVES:
            return None
        return call.data_inputs if call.op_type == "Concat" else call.data_inputs[:1]

    found = _origins(value, sources)
    return [leaf for leaf in found if leaf is not None] if None not in found else []


def computed_from(value: Value) -> list[Value]:
    """The floating constants that a gradient of a value of the file reaches. Sines count as fixed."""

    def sources(call: Call) -> Sequence[Value] | None:
        if call.op_type in _STOPS:
            return None
        read = call.data_inputs[:1] if call.op_type in _FIRST_ONLY else call.data_inputs
        return [source for source in read if source.is_float]

    return [leaf for leaf in _origins(value, sources) if leaf is not None]


def may_need_gradient(value: Value) -> bool:
    """Whether the gradient of a value may reach a weight: any initializer of several elements that shows no mask."""
    waiting, seen = [value.owner], {id(value.owner)}
    while waiting:
        owner = waiting.pop()
        weight = owner.is_initializer and owner.is_float and owner.numel > 1 and owner.declared != "BUFFER"
        if weight and not (owner.declared == "" and _hides(owner)):
            return True
        call = owner.producer
        if call is not None and not call.attributes.get(STOPS_GRADIENT):
            read = call.data_inputs[:1] if call.op_type in _FIRST_ONLY else call.data_inputs
            fresh = {id(source.owner): source.owner for source in read if source.is_float}
            waiting.extend(source for key, source in fresh.items() if key not in seen)
            seen.update(fresh)
    return False


def _hides(leaf: Value) -> bool:
    """Whether a constant is a mask by its numbers: zeros, and what a Softmax makes zero. Training leaves none such."""
    from ..document.protobuf import TensorProto  # planning without a file imports no onnx
    from ..values.constant_folding import contents

    if not isinstance(leaf.source, TensorProto) or not leaf.source.raw_data:
        return False
    numbers = contents(leaf.source, f"initializer {quoted(leaf.name)}")
    hidden = numbers <= _HIDDEN
    return bool(hidden.any() and (hidden | (numbers == 0)).all())


def _origins(value: Value, sources: Callable[[Call], Sequence[Value] | None]) -> list[Value | None]:
    """The constants that a value is made of, followed through the ``sources`` of each call; None if it has none."""
    if value.owner.is_leaf:
        return [value.owner]
    origins: list[Value | None] = []
    waiting, seen = [value.owner], {id(value.owner)}
    while waiting:
        owner = waiting.pop()
        if owner.is_leaf:
            origins.append(owner)
            continue
        found = sources(owner.producer) if owner.producer is not None and owner.from_file else None
        if found is None:
            origins.append(None)
            continue
        fresh = {id(source.owner): source.owner for source in found if id(source.owner) not in seen}
        seen.update(fresh)
        waiting.extend(fresh.values())
    return origins
