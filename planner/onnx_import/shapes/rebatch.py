"""A file exported at a fixed batch has it in the targets of Reshape and Expand; here the new batch replaces it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from json import dumps as quoted
from math import prod
from shlex import quote

import numpy as np

from ...errors import UsageError
from ..document.protobuf import NodeProto
from ..values.consistency import shape_text
from ..values.constant_folding import Array
from ..values.values import Call, Value


class Rebatch:
    """Changes constant Reshape and Expand targets of activations from the old batch to the new one."""

    def __init__(self, change: tuple[int, int] | None) -> None:
        self.change = change
        self._changed: list[str] = []

    def apply(self, node: NodeProto, call: Call) -> tuple[NodeProto, Mapping[int, Array]]:
        """The node to infer, and by position the inputs whose values change."""
        if self.change is None or call.domain or call.op_type not in ("Reshape", "Expand"):
            return node, {}
        data = call.inputs[0]
        if data is None or not data.from_input:
            return node, {}
        position = next((i for i, attribute in enumerate(node.attribute) if attribute.name == "shape"), None)
        if position is not None:  # opset 1 to 4
            target = [int(size) for size in node.attribute[position].ints]
            changed = self._reshape(target, data, zero_copies=True)
            if changed is not None:
                node.attribute[position].ints[:] = changed
                call.attributes["shape"] = tuple(changed)
            return node, {}
        shape = call.inputs[1] if len(call.inputs) > 1 else None
        if shape is None or shape.known is None or not shape.from_file:
            return node, {}
        target = [int(size) for size in shape.known.ravel()]
        if call.op_type == "Expand":
            changed = self._expand(target)
        else:
            changed = self._reshape(target, data, zero_copies=not call.attributes.get("allowzero", 0))
        return node, {} if changed is None else {1: np.asarray(changed, np.int64)}

    def _expand(self, target: Sequence[int]) -> list[int] | None:
        """A 1 in an Expand changes nothing, so a batch of one needs no new target."""
        assert self.change is not None
        old, new = self.change
        if not target or old == 1 or target[0] != old:
            return None
        return self._noted(target, [new, *target[1:]])

    def _reshape(self, target: Sequence[int], data: Value, *, zero_copies: bool) -> list[int] | None:
        """The new target, or None if the old one is still right.

        A first entry equal to the old batch is the batch. A larger one may be the product of the batch and another
        dimension; it changes only if the number of elements then fits.
        """
        assert self.change is not None
        old, new = self.change
        if not target or not data.shape:
            return None
        unchanged = _fits(target, data.shape, zero_copies)
        if target[0] == old:
            changed = [new, *target[1:]]
            if unchanged and not _fits(changed, data.shape, zero_copies):
                return None
        else:
            folded = target[0] > 0 and target[0] % old == 0
            changed = [target[0] // old * new, *target[1:]] if folded else []
            leads = bool(changed) and data.shape[0] in (new, changed[0])
            if unchanged or -1 in target or not leads or not _fits(changed, data.shape, zero_copies):
                return None
        return self._noted(target, changed)

    def _noted(self, target: Sequence[int], changed: list[int]) -> list[int]:
        self._changed.append(f"{shape_text(list(target))} to {shape_text(changed)}")
        return changed

    def assumed(self) -> Iterable[str]:
        """A sentence for the targets that were changed."""
        if self.change is not None and self._changed:
            old, new = self.change
            yield (
                f"batch {old} becomes {new} in constant targets of Reshape and Expand ({len(self._changed)} in all), "
                f"e.g. {self._changed[0]}"
            )


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
    options = (f"--shape {quote(value.name)}={'x'.join(map(str, shape))}" for value, shape in shapes)
    return f"pass {' '.join(options)} in place of --batch"


def _fits(target: Sequence[int], shape: Sequence[int], zero_copies: bool) -> bool:
    """Whether a Reshape to ``target`` keeps the number of elements."""
    sizes = [shape[i] if size == 0 and zero_copies and i < len(shape) else size for i, size in enumerate(target)]
    known = prod(size for size in sizes if size != -1)
    if -1 in sizes:
        return known > 0 and prod(shape) % known == 0
    return known == prod(shape)
