"""One reading of a file exported at a fixed batch, at another batch: its constants are given the new one.

What a constant becomes is a placement (batch_placements.py). Where several are possible, the reading takes the one that
was decided on for all nodes of the same form, and notes the choice. It ends with a `Conflict` at the first node that
shows a wrong one. batch_search.py decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps as quoted
from typing import cast

import numpy as np

from ...errors import UsageError, shell_word
from ..document.protobuf import NodeProto
from ..values.consistency import shape_text
from ..values.constant_folding import Array
from ..values.values import Call, Value, row_major
from . import batch_placements as placements
from .batch_placements import Change, Sizes, batch_axes

_MIXING = {
    "MatMul", "Gemm", "Attention", "Softmax", "LogSoftmax", "LayerNormalization", "Conv", "Gather", "GatherND",
    "ScatterND",
}  # fmt: skip
"""Ops that work on each sample alone. What sums over the batch, pairs samples, or takes some of them is misplaced."""
_NORMS = {"Softmax": -1, "LogSoftmax": -1, "LayerNormalization": -1}
"""Ops along a dimension, by its default."""
_DOUBTFUL = {"Reshape", "Slice"}
"""Ops whose other placements are tried even if the first one fits: two that fit make a file ambiguous."""
_PAIRING = {"Expand", "Tile"}
"""Ops that may repeat data with the batch once more for each sample."""


class Conflict(Exception):
    """A node works across samples, which a wrong placement of the batch makes it do."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A placement taken by a node, or by a constant of the file.

    Attributes:
        form: what nodes that are decided together have in common.
        where: the node or constant, for messages.
        options: the placements, likeliest first.
        taken: which one was taken.
        doubtful: whether another placement that fits, too, makes the file ambiguous.
    """

    form: Hashable
    where: str
    options: tuple[Sizes, ...]
    taken: int
    doubtful: bool

    def __str__(self) -> str:
        shown = " or ".join(shape_text(list(sizes)) for sizes in self.options[:3])
        return f"{self.where}: {shown}"


class Rebatch:
    """Changes what carries the old batch in one reading.

    Args:
        change: the batch of the file and the new one, or None if nothing changes.
        before: the shapes of a reading at the old batch, by name.
        decisions: by form, which placement is taken; the first without an entry.
        accepted: names of nodes that may work across samples.
    """

    def __init__(
        self,
        change: tuple[int, int] | None,
        before: Mapping[str, Sizes] | None = None,
        decisions: Mapping[Hashable, int] | None = None,
        *,
        accepted: frozenset[str] = frozenset(),
    ) -> None:
        self.change = None if change is None or before is None else Change(*change)
        self._before, self._decisions, self._accepted = before or {}, decisions or {}, accepted
        self.choices: dict[str, Choice] = {}  # by the name of the result, in the order of the reading
        self._reading: tuple[NodeProto, Call] | None = None  # the node that is read now
        self._changed: list[str] = []

    # --- constants of the file --------------------------------------------------------------------

    def enter_constants(self, values: Iterable[Value]) -> None:
        """Let constants that are no recorded parameters have the batch where that was decided.

        One of a single dimension is a list of sizes or axes.
        """
        if self.change is None:
            return
        for value in values:
            sizes = value.shape
            if value.is_leaf and value.declared != "PARAMETER" and len(sizes) > 1:
                uniform = (
                    value.known is not None
                    and value.known.size > 1
                    and bool((value.known == value.known.flat[0]).all())
                )
                options = placements.filled(self.change, sizes, folded=uniform)
                taken = self._take(value.name, ("constant", value.name), f"constant {quoted(value.name)}", options)
                if taken != sizes:
                    value.shape, value.strides, value.known = taken, row_major(taken), None

    def refuse_split(self, node: NodeProto, data: Value | None, where: str) -> None:
        """Raise UsageError for a node that takes parts of a fixed size from the batch as a sequence."""
        if self.change is None or node.op_type != "SplitToSequence" or data is None:
            return
        axis = next((int(entry.i) for entry in node.attribute if entry.name == "axis"), 0)
        if axis % max(len(data.shape), 1) in self._axes(data):
            raise UsageError(
                f"{where} takes samples of the batch {self.change.old} in parts of a fixed size",
                remedy=f"export the model at batch {self.change.new}",
            )

    # --- nodes --------------------------------------------------------------------------------------

    def apply(self, node: NodeProto, call: Call) -> tuple[NodeProto, Mapping[int, Array]]:
        """The node to infer, and by position the inputs whose values change."""
        self._reading = node, call
        if self.change is None or call.domain:
            return node, {}
        mixes = call.op_type in _MIXING or call.op_type.startswith("Reduce")
        if mixes and call.name not in self._accepted:
            self._check(call)
        if call.op_type not in _CONSTANTS:
            return node, {}
        return node, getattr(self, f"_{call.op_type.lower()}")(node, call, self.change)

    def _axes(self, value: Value | None) -> tuple[int, ...]:
        """The dimensions of a value that have the batch."""
        before = None if value is None else self._before.get(value.name)
        if value is None or before is None or len(before) != len(value.shape):
            return ()
        return batch_axes(before, value.shape)

    def _take(
        self, owner: str, form: Hashable, where: str, options: Sequence[Sizes], *, doubtful: bool = False
    ) -> Sizes:
        """The placement that was decided on. If there are several, the choice is noted."""
        options = tuple(dict.fromkeys(options))
        taken = min(self._decisions.get(form, 0), len(options) - 1)
        if len(options) > 1:
            self.choices[owner] = Choice(form, where, options, taken, doubtful)
        return options[taken]

    def _taken(self, call: Call, node: NodeProto, options: Sequence[Sizes], before: Sizes) -> Sizes | None:
        """The placement that a node takes; None if it changes nothing."""
        data = call.inputs[0] if call.inputs else None
        shape = None if data is None else self._before.get(data.name)
        form = (call.op_type, shape, self._axes(data), before, tuple(options))
        where = f"node {quoted(call.name)} ({call.op_type})"
        assert self.change is not None
        sure = call.op_type == "Reshape" and placements.is_sure(self.change, before, options[0])
        doubtful = (call.op_type in _DOUBTFUL and not sure) or (call.op_type in _PAIRING and bool(self._axes(data)))
        taken = self._take(node.output[0], form, where, options, doubtful=doubtful)
        if taken == before:
            return None
        self._changed.append(f"{shape_text(list(before))} to {shape_text(list(taken))}")
        return taken

    def _constant(self, call: Call, position: int) -> Sizes | None:
        """The numbers of a constant of the file."""
        value = call.inputs[position] if len(call.inputs) > position else None
        if value is None or value.known is None or not value.from_file or not np.isfinite(value.known).all():
            return None
        return tuple(int(number) for number in value.known.ravel())

    def _reshape(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        attribute = next((entry for entry in node.attribute if entry.name == "shape"), None)  # opset 1 to 4
        target = self._constant(call, 1) if attribute is None else tuple(int(size) for size in attribute.ints)
        data, result = call.inputs[0], self._before.get(node.output[0])
        axes = self._axes(data)
        if target is None or data is None or result is None or not axes:
            return {}
        if call.attributes.get("allowzero", 0):
            target = tuple(size or 1 for size in target)  # nothing is copied
        options = placements.reshaped(change, self._before[data.name], axes, target, result)
        taken = self._taken(call, node, options, result) if options else None
        if taken is None:
            return {}
        if attribute is None:
            return {1: np.asarray(taken, np.int64)}
        attribute.ints[:] = taken
        call.attributes["shape"] = taken
        call.replaced = {-1: np.asarray(taken, np.int64)}
        return {}

    def _expand(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        data, result = call.inputs[0], self._before.get(node.output[0])
        if data is None or result is None or self._constant(call, 1) is None:
            return {}
        before = self._before.get(data.name, data.shape)
        options = placements.expanded(change, before, self._axes(data), result)
        return _given(1, self._taken(call, node, options, result))

    def _tile(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        repeats, data = self._constant(call, 1), call.inputs[0]
        if repeats is None or data is None or len(call.inputs) > 2:
            return {}
        has_batch = bool(self._axes(data))
        if has_batch and set(repeats) == {1} and data.name in self.choices and call.name not in self._accepted:
            raise Conflict(call.name)  # a Tile that repeats nothing stands for the batch, not the Expand before it
        old = change.old
        once = [repeats[axis] == old for axis in self._axes(data)] if old > 1 else [set(repeats) == {1}]
        if has_batch and any(once):
            raise UsageError(
                f"node {quoted(call.name)} (Tile) repeats samples {old} times, which may be the batch or not",
                remedy=f"export the model at batch {change.new}",
            )
        options = placements.tiled(change, has_batch, repeats)
        return _given(1, self._taken(call, node, options, repeats))

    def _constantofshape(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        shape = self._constant(call, 0)
        if shape is None:
            return {}
        return _given(0, self._taken(call, node, placements.filled(change, shape), shape))

    def _range(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        limit = self._constant(call, 1)
        if limit is None:
            return {}
        taken = self._taken(call, node, placements.filled(change, limit), limit)
        value = cast(Value, call.inputs[1])
        assert value.known is not None
        return {} if taken is None else {1: np.asarray(taken, value.known.dtype).reshape(value.known.shape)}

    def _resize(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        sizes, axes = self._constant(call, 3), self._axes(call.inputs[0])
        if not sizes or not axes or "axes" in call.attributes:
            return {}
        return _given(3, self._taken(call, node, placements.resized(change, axes, sizes), sizes))

    def _split(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        sizes, data = self._constant(call, 1), call.inputs[0]
        if sizes is None or data is None:
            return {}
        axis = cast(int, call.attributes.get("axis", 0)) % len(data.shape)
        options = placements.split(change, sizes) if axis in self._axes(data) else []
        return _given(1, self._taken(call, node, options, sizes)) if options else {}

    def _slice(self, node: NodeProto, call: Call, change: Change) -> dict[int, Array]:
        starts, ends, data = self._constant(call, 1), self._constant(call, 2), call.inputs[0]
        axes = self._axes(data)
        if starts is None or ends is None or data is None or not axes:
            return {}
        along = self._constant(call, 3) or tuple(range(len(starts)))
        steps = self._constant(call, 4) or (1,) * len(starts)
        at = [axis % len(data.shape) for axis in along]
        if axes[0] not in at or steps[at.index(axes[0])] != 1:
            return {}
        place = at.index(axes[0])
        size = self._before[data.name][axes[0]]
        bounds = placements.sliced(change, size, starts[place], min(ends[place], 2**31))
        taken = self._taken(call, node, list(bounds), (starts[place], min(ends[place], 2**31)))
        if taken is None:
            return {}
        first, last = list(starts), list(ends)
        first[place], last[place] = taken
        return {1: np.asarray(first, np.int64), 2: np.asarray(last, np.int64)}

    # --- conflicts ----------------------------------------------------------------------------------

    def suspects(self) -> list[Choice]:
        """The choices that the node which is read now depends on, the nearest one first."""
        if self._reading is None:
            return []
        node, call = self._reading
        names = dict.fromkeys(node.output)
        queue = [value for value in call.inputs if value is not None]
        seen = {id(value) for value in queue}
        for value in queue:
            names[value.name] = None
            if value.producer is not None:
                names.update(dict.fromkeys(output.name for output in value.producer.outputs))
                sources = [source for source in value.producer.inputs if source is not None and id(source) not in seen]
                seen.update(map(id, sources))
                queue.extend(sources)
        return [self.choices[name] for name in names if name in self.choices]

    def _check(self, call: Call) -> None:
        """Raise Conflict if a node would work across samples."""
        axes = [self._axes(value) for value in call.inputs]
        if not any(axes):
            return
        first = call.inputs[0]
        assert first is not None
        rank = len(first.shape)
        if call.op_type in _NORMS:
            along = cast(int, call.attributes.get("axis", _NORMS[call.op_type])) % max(rank, 1)
            crossed = any(axis >= along if call.op_type == "LayerNormalization" else axis == along for axis in axes[0])
        elif call.op_type == "Conv":
            crossed = any(axis != 0 for axis in axes[0])
        elif call.op_type == "Attention":
            crossed = any(axis != 0 for one in axes[:3] for axis in one)
        elif call.op_type.startswith("Reduce"):
            over = call.integers("axes", 1) or ()  # a loss is a reduction of everything
            crossed = any(axis % rank in axes[0] for axis in over) and len(over) < rank
        elif call.op_type in ("Gather", "GatherND", "ScatterND"):
            crossed = _takes_samples(call, axes)
        else:
            crossed = _product_crosses(call, axes)
        if crossed:
            raise Conflict(call.name)

    def assumed(self) -> Iterable[str]:
        """A sentence for the constants that were changed."""
        if self.change is not None and self._changed:
            yield (
                f"batch {self.change.old} becomes {self.change.new} in constants of the file ({len(self._changed)} in "
                f"all), e.g. {self._changed[0]}"
            )


_CONSTANTS = {"Reshape", "Expand", "Tile", "ConstantOfShape", "Range", "Resize", "Split", "Slice"}
"""Ops that take sizes, counts or bounds from constants."""


def _is_uniform(known: Array | None) -> bool:
    return known is not None and known.size > 1 and bool((known == known.flat[0]).all())


def _given(position: int, sizes: Sizes | None) -> dict[int, Array]:
    return {} if sizes is None else {position: np.asarray(sizes, np.int64)}


def _takes_samples(call: Call, axes: Sequence[tuple[int, ...]]) -> bool:
    """Whether indices that are constants of the file, and have no batch, select along the batch."""
    data, indices = call.inputs[0], call.inputs[1]
    if data is None or indices is None or axes[1] or not indices.from_file:
        return False
    if call.op_type == "Gather":
        return cast(int, call.attributes.get("axis", 0)) % len(data.shape) in axes[0]
    first = cast(int, call.attributes.get("batch_dims", 0))
    return any(first <= axis < first + indices.shape[-1] for axis in axes[0])


def _product_crosses(call: Call, axes: Sequence[tuple[int, ...]]) -> bool:
    """Whether a matrix product sums over the batch, or pairs the samples of its two arguments."""
    left, right = call.inputs[0], call.inputs[1]
    if left is None or right is None:
        return False
    rows, inner = len(left.shape) - 2, len(left.shape) - 1
    summed, columns = len(right.shape) - 2, len(right.shape) - 1
    if call.op_type == "Gemm" and call.attributes.get("transA", 0):
        rows, inner = inner, rows
    if call.op_type == "Gemm" and call.attributes.get("transB", 0):
        summed, columns = columns, summed
    pairs = rows in axes[0] and columns in axes[1]
    return inner in axes[0] or summed in axes[1] or pairs


def check_batch_axis(
    calls: Iterable[Call], declared: Mapping[str, tuple[int | str | None, ...] | None], batch: int
) -> None:
    """Refuse a batch that replaced the time axis of a recurrent layer of default layout.

    ``declared`` are the sizes of the inputs in the file, before ``batch`` replaced the leading one.
    """
    for call in calls:
        data = call.inputs[0] if call.inputs else None
        if call.domain or call.op_type not in ("LSTM", "GRU", "RNN") or call.attributes.get("layout", 0):
            continue
        if data is None or not data.is_input or data.shape[0] != batch:
            continue
        before = (declared[data.name] or (None,))[0]
        if before != batch:
            raise UsageError(
                f"--batch {batch} changes the leading dimension of input {quoted(data.name)}, which node "
                f"{quoted(call.name)} ({call.op_type}) reads as time",
                remedy=_with_the_batch_second(call, data, before if isinstance(before, int) else 64, batch),
            )


def _with_the_batch_second(call: Call, data: Value, length: int, batch: int) -> str:
    """The options that change the batch: the shape of the input, and those of initial states that are inputs."""
    shapes = [(data, (length, batch, *data.shape[2:]))]
    for state in call.inputs[5:7]:
        if state is None or len(state.shape) != 3 or state.shape[1] == batch:
            continue
        if not state.is_input:
            return f"export the model at batch {batch}: its initial state {quoted(state.name)} fixes {state.shape[1]}"
        shapes.append((state, (state.shape[0], batch, state.shape[2])))
    options = (f"--shape {shell_word(value.name)}={'x'.join(map(str, shape))}" for value, shape in shapes)
    return f"pass {' '.join(options)} in place of --batch"
