"""Groups of nodes that torch's exporter wrote for one call of aten are read as that call, which saves less.

A group is fused if the exporter's record names the call, the nodes are those that it writes for it, and no other node
reads an intermediate value. Nodes without a record stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...graph import View
from ..document.exporter_records import RecordedCall, recorded_call
from ..document.topological_order import NodeOrder
from ..values.layout_copies import copied_inputs, is_dense
from ..values.values import Call, Value, row_major
from ..values.view_ops import mark_view
from .formulas import Formulas
from .fusion_patterns import SOFTMAX, drops, fold, safe_softmax, scaled_product
from .straight_through import STOPS_GRADIENT

if TYPE_CHECKING:
    from ..document.protobuf import NodeProto


@dataclass(slots=True)
class _Group:
    """The indices of the nodes of one recorded call."""

    recorded: RecordedCall
    nodes: list[int] = field(default_factory=list)
    start: int = -1  # the number of calls before its first node
    whole: bool = True  # no other call was read between its nodes


class FusedCalls:
    """Follows a walk over nodes and fuses each recorded group as soon as its last node has been read."""

    def __init__(self, order: NodeOrder, outputs: Iterable[str], producer: str) -> None:
        """``outputs`` are the names of graph outputs, ``producer`` is the program that wrote the file."""
        self._folded: Counter[tuple[str, str]] = Counter()  # (call, op that it is read as) -> count
        self._no_copies = 0
        self._lost_dropouts = 0
        self._widened = 0
        self._nodes = order.nodes
        self._groups: dict[int, _Group] = {}
        self._readers: dict[str, set[int]] = {name: {-1} for name in outputs}
        self._open: _Group | None = None
        self._calls_before = 0
        self._formulas = Formulas(self._readers, producer)
        group: _Group | None = None  # nodes of one call are adjacent; the same record elsewhere is another call
        for index in order.live:
            node = order.nodes[index]
            for name in _read_for_values(node, order.reads[index]):
                self._readers.setdefault(name, set()).add(index)
            recorded = recorded_call(node) if node.metadata_props else None
            if recorded is None:
                group = group if node.op_type == "Constant" else None
                continue
            if group is None or group.recorded.text != recorded.text:
                group = _Group(recorded)
            group.nodes.append(index)
            self._groups[index] = group

    def visited(self, index: int, calls: list[Call]) -> None:
        """Note that one node has been read; in ``calls``, all calls so far, a fused call replaces its group."""
        group = self._groups.get(index)
        if group is None and self._nodes[index].op_type == "Cast" and len(calls) > self._calls_before:
            self._widen(calls)
        if group is not self._open and self._open is not None and len(calls) > self._calls_before:
            self._open.whole = False
        if group is not None:
            if group.start < 0:
                group.start = self._calls_before
                self._open = group
            if index == group.nodes[-1]:
                self._close(group, calls)
                self._open = None
        if len(calls) > self._calls_before:
            self._formulas.visited(calls, group.recorded if group is not None else None)
        self._calls_before = len(calls)

    def finish(self, calls: list[Call]) -> None:
        """Take out of ``calls``, all calls of the file, what belongs to formulas."""
        calls[:] = self._formulas.left(calls)

    def assumed(self) -> Iterable[str]:
        """A sentence for everything that is read differently from what the file says."""
        yield from self._formulas.assumed()
        if self._folded:
            listed = ", ".join(
                f"{count} {name}" if name.lower() == op_type.lower() else f"{count} {name} as {op_type}"
                for (name, op_type), count in sorted(self._folded.items())
            )
            yield f"calls that the exporter recorded and wrote as several nodes are read as one op each: {listed}"
        if self._widened:
            yield (
                "softmax of a half type with a cast behind is charged as torch computes it where it writes that: cast "
                f"first, with the wide result kept ({self._widened} in all)"
            )
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
        if name == "detach" and len(made) == 1 and made[0].op_type == "Identity":
            made[0].attributes[STOPS_GRADIENT] = 1
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
        folded = fold(group.recorded, types, operands, made)
        if folded is None:
            if name == "baddbmm" and types == {"MatMul", "Mul", "Add"}:
                calls[group.start :] = scaled_product(made)
            if name == "scaled_dot_product_attention":
                calls[group.start :] = safe_softmax(made)
                self._lost_dropouts += drops(group.recorded) and all(call.op_type != "Dropout" for call in made)
            return
        folded.stand_for(made).outputs = (results[0],)
        results[0].producer, results[0].view_of, results[0].strides = folded, None, row_major(results[0].shape)
        mark_view(folded)
        folded.copied = copied_inputs(folded)
        calls[group.start :] = [folded]
        self._folded[name, folded.op_type] += 1

    def _clone(self, call: Call, recorded: RecordedCall) -> None:
        """A recorded clone copies, unless it is a dropout with rate 0, which eager torch leaves out.

        Its module or its source line says so; the lines of a function that another one calls are not recorded, so a
        clone of a softmax is taken to be a dropout, too: copies of a softmax are unusual. A trace on the meta device
        has no fused attention, whose joined heads are dense; a clone after it copies nothing that is dense already.
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

    def _widen(self, calls: list[Call]) -> None:
        """Fuse a softmax without a record and the cast of its result into one softmax with the wide result.

        Torch's exporters write the two for a softmax with a given type, which casts first. If an op other than a cast
        reads the result, the narrow result is charged as well: the file may mean what it says.
        """
        cast = calls[-1]
        narrow = cast.inputs[0] if cast.op_type == "Cast" and not cast.domain else None
        softmax = None if narrow is None else narrow.producer
        if narrow is None or softmax is None or softmax.domain or softmax.op_type not in SOFTMAX.values():
            return
        result = cast.outputs[0]
        if not result.is_float or result.nbytes <= narrow.nbytes or len(self._readers.get(narrow.name, ())) != 1:
            return
        position = next((i for i in range(len(calls) - 2, -1, -1) if calls[i] is softmax), None)
        if position is None:
            return
        readers = self._readers.get(result.name, set())
        attributes = dict(softmax.attributes)
        if any(reader < 0 or self._nodes[reader].op_type != "Cast" for reader in readers):
            attributes["narrow_nbytes"] = narrow.nbytes
        calls[position] = Call(
            cast.name, softmax.op_type, "", softmax.inputs[:1], (result,), attributes, scope=softmax.scope
        ).stand_for((softmax, cast))
        result.producer = calls[position]
        calls.pop()
        self._widened += 1

    def _leaves(self, value: Value, group: _Group) -> bool:
        """Whether a node outside the group reads a value."""
        return not self._readers.get(value.name, set()) <= set(group.nodes)


def _read_for_values(node: NodeProto, reads: tuple[str, ...]) -> Sequence[str]:
    """Those of the ``reads`` of a node of which it needs more than the type."""
    if node.domain or node.op_type not in ("Shape", "Size", "CastLike"):
        return reads
    return tuple(node.input[: node.op_type == "CastLike"])


def _copy(call: Call) -> None:
    """Make an Identity that the exporter wrote for a clone a dense copy with an allocation of its own."""
    call.view = View.NONE
    for output in call.outputs:
        output.view_of, output.strides = None, row_major(output.shape)
