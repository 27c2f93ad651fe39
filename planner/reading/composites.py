"""Groups of nodes that torch's exporter wrote for one call of aten are read as that call again.

Eager torch keeps for a fused call what the call itself saves, not what its decomposition would: silu keeps
its input, Sigmoid and Mul keep three tensors. Only the exporter's own record tells the two apart, so a group
is folded where the record names the call, the nodes are the ones the exporter writes for it, and nothing
else reads what lies between them. Without a record everything stays as the file writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..graph import View
from .copies import copied_inputs, is_dense
from .recorded_calls import RecordedCall, recorded_call
from .values import Call, Value, row_major
from .views import mark_view

if TYPE_CHECKING:
    from .shapes import NodeProto

_ONE_OPERAND = {
    "silu": ("Swish", "Sigmoid Mul"),
    "gelu": ("Gelu", "Mul Add Div Erf Tanh Pow Sqrt"),
    "softplus": ("Softplus", "Softplus Mul Div Greater Where"),
    "mish": ("Mish", "Tanh Softplus Mul"),
    "hardswish": ("HardSwish", "Mul Add Clip Div HardSigmoid"),
    "hardsigmoid": ("HardSigmoid", "Clip Add Div Mul HardSigmoid"),
    "rsqrt": ("rsqrt", "Sqrt Reciprocal"),
    "glu": ("glu", "Sigmoid Split Mul"),
    "log_sigmoid_forward": ("log_sigmoid", "Log Sigmoid"),
    "log_sigmoid": ("log_sigmoid", "Log Sigmoid"),
    "roll": ("roll", "Concat Slice Reshape"),
}
"""Name of a call of one operand -> (op it is read as, nodes that may stand for it, of which the first has to)."""

_GROUP_NORM = "InstanceNormalization Reshape Mul Add"
_ATTENTION = "Softmax Transpose Reshape Mul MatMul Add Where Unsqueeze Expand IsNaN"
ATEN_DOMAIN = "aten"
"""Domain of calls for which ONNX has no op."""
_ATEN_ONLY = frozenset({"rsqrt", "glu", "log_sigmoid", "roll"})


@dataclass(slots=True)
class _Group:
    """The nodes of one recorded call, by index."""

    recorded: RecordedCall
    nodes: list[int] = field(default_factory=list)
    start: int = -1  # how many calls there were before its first node
    whole: bool = True  # nothing else has come between its nodes


class Composites:
    """Watches a walk over nodes and folds each recorded group once its last node has been read."""

    def __init__(self, nodes: Sequence[NodeProto], live: Iterable[int], outputs: Iterable[str]) -> None:
        """``live`` are the indices of the nodes in the order of the walk, ``outputs`` the names a caller gets."""
        self._folded: Counter[tuple[str, str]] = Counter()  # (call, op it is read as) -> how many
        self._no_copies = 0
        self._lost_dropouts = 0
        self._groups: dict[int, _Group] = {}
        self._readers: dict[str, set[int]] = {name: {-1} for name in outputs}
        self._open: _Group | None = None
        self._calls_before = 0
        found: dict[str, _Group] = {}
        for index in live:
            for name in nodes[index].input:
                self._readers.setdefault(name, set()).add(index)
            recorded = recorded_call(nodes[index])
            if recorded is None:
                continue
            group = found.setdefault(recorded.text, _Group(recorded))
            group.nodes.append(index)
            self._groups[index] = group

    def visited(self, index: int, calls: list[Call]) -> None:
        """Note that one node has been read; ``calls`` are all calls so far, the group's are replaced by one."""
        group = self._groups.get(index)
        if group is not self._open and self._open is not None and len(calls) > self._calls_before:
            self._open.whole = False
        if group is not None:
            if group.start < 0:
                group.start = self._calls_before
                self._open = group
            if index == group.nodes[-1]:
                self._close(group, calls)
                self._open = None
        self._calls_before = len(calls)

    def notes(self) -> Iterable[str]:
        """What was read otherwise than it is written, in sentences."""
        if self._folded:
            listed = ", ".join(
                f"{count} {name}" if name.lower() == op_type.lower() else f"{count} {name} as {op_type}"
                for (name, op_type), count in sorted(self._folded.items())
            )
            yield f"calls that the exporter recorded and wrote as several nodes are read as one op each: {listed}"
        if self._lost_dropouts:
            yield (
                f"{self._lost_dropouts} attentions were traced with a dropout that the file has lost, and are charged "
                "without it: export with optimize=False"
            )
        if self._no_copies:
            yield f"{self._no_copies} copies of a softmax are taken for dropouts of nothing and charged as no copies"

    def _close(self, group: _Group, calls: list[Call]) -> None:
        made = calls[group.start :]
        name = group.recorded.name
        if name == "clone":
            if len(made) == 1 and made[0].op_type == "Identity":
                self._clone(made[0], group.recorded)
            return
        if not group.whole or len(made) < 2:
            return
        produced = {id(value) for call in made for value in call.outputs}
        results = [value for call in made for value in call.outputs if self._leaves(value, group)]
        if len(results) != 1 or results[0] not in made[-1].outputs[:1]:
            return
        operands = [
            value
            for value in {id(v): v for call in made for v in call.inputs if v is not None}.values()
            if id(value) not in produced
        ]
        types = {call.op_type for call in made if any(value.from_input for value in call.outputs)}
        folded = _fold(group.recorded, types, operands, made)
        if folded is None:
            if name == "scaled_dot_product_attention":
                calls[group.start :] = _safe_softmax(made)
                self._lost_dropouts += _drops(group.recorded) and all(call.op_type != "Dropout" for call in made)
            return
        folded.outputs = (results[0],)
        results[0].producer, results[0].view_of, results[0].strides = folded, None, row_major(results[0].shape)
        mark_view(folded)
        folded.copied = copied_inputs(folded)
        calls[group.start :] = [folded]
        self._folded[name, folded.op_type] += 1

    def _clone(self, call: Call, recorded: RecordedCall) -> None:
        """A recorded clone copies, unless it stands for a dropout of nothing, which eager torch leaves out.

        That is known by its module or its line of source; after a softmax it is taken to be one, for nobody
        copies a softmax, and a helper function's lines are not recorded. A trace on the meta device knows no
        fused attention, whose joined heads are dense: what it copies after attention is looked at here.
        """
        source = call.inputs[0]
        maker = source.owner.producer if source is not None else None
        made_by = maker.op_type if maker is not None else ""
        if source is None or not recorded.copies or (made_by == "Attention" and is_dense(source)):
            return
        if made_by == "Softmax" and not recorded.contiguous:
            self._no_copies += 1
            return
        _copy(call)

    def _leaves(self, value: Value, group: _Group) -> bool:
        """Whether something outside the group reads a value."""
        return not self._readers.get(value.name, set()) <= set(group.nodes)


def _copy(call: Call) -> None:
    """What the exporter writes as Identity is a copy in memory of its own, dense in the order of its dimensions."""
    call.view = View.NONE
    for output in call.outputs:
        output.view_of, output.strides = None, row_major(output.shape)


def _fold(recorded: RecordedCall, types: set[str], operands: list[Value], made: list[Call]) -> Call | None:
    """The one call that a group stands for, without its outputs; None where the nodes are not the expected ones."""
    last = made[-1]
    moving = [value for value in operands if value.from_input]
    if recorded.name in _ONE_OPERAND and len(moving) == 1:
        op_type, expected = _ONE_OPERAND[recorded.name]
        if _is(types, expected):
            domain = ATEN_DOMAIN if op_type in _ATEN_ONLY else ""
            return Call(last.name, op_type, domain, (moving[0],), scope=last.scope)
    if recorded.name in ("group_norm", "native_group_norm") and len(moving) == 1 and _is(types, _GROUP_NORM):
        groups = recorded.integer(1 if recorded.name == "group_norm" else 5)
        weights = [value for value in operands if value.is_leaf and value.is_float and value.declared == "PARAMETER"]
        if groups is not None and len(weights) == 2:
            inputs = (moving[0], *weights)
            return Call(last.name, "GroupNormalization", "", inputs, (), {"num_groups": groups}, scope=last.scope)
    if recorded.name == "scaled_dot_product_attention" and _is(types, _ATTENTION):
        return _attention(recorded, operands, last)
    return None


def _is(types: set[str], expected: str) -> bool:
    """Whether the nodes are of the expected types, the first of which has to be there."""
    return types <= set(expected.split()) and expected.split()[0] in types


def _drops(recorded: RecordedCall) -> bool:
    """Whether a recorded scaled_dot_product_attention drops some of its weights."""
    return recorded.drops(4, "dropout_p")


def _attention(recorded: RecordedCall, operands: list[Value], last: Call) -> Call | None:
    """Attention without dropout; with it torch composes the call of others on the CPU, as the file does."""
    named = {value.name: value for value in operands}
    positions = [named.get(name) for name in recorded.tensors(4)]
    query, key, value, mask = positions
    if _drops(recorded):
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


def _safe_softmax(made: list[Call]) -> list[Call]:
    """Where(IsNaN(p), 0, p) of probabilities p, which torch computes in place of them, is the softmax itself."""
    for softmax, is_nan, where in zip(made, made[1:], made[2:], strict=False):
        if (softmax.op_type, is_nan.op_type, where.op_type) != ("Softmax", "IsNaN", "Where"):
            continue
        probabilities = softmax.outputs[0]
        readers = [call for call in made if probabilities in call.inputs]
        if readers == [is_nan, where] and is_nan.outputs[0] is where.inputs[0]:
            where.outputs[0].producer, softmax.outputs = softmax, where.outputs
            return [call for call in made if call is not is_nan and call is not where]
    return made
