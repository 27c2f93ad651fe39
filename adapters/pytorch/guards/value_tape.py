"""The calls that lead from arguments and buffers to a plain value, and the guard that makes them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_private
from ..torch_private import OpOverload, pytree
from ..value_shapes import count_distinct, count_true


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor whose value is known: output ``index`` of call ``call`` of the tape."""

    call: int
    index: int


@dataclass(frozen=True, slots=True)
class Source:
    """An argument leaf (``index``), or a buffer or tensor attribute (``name``)."""

    index: int
    name: str


@dataclass(slots=True)
class Call:
    """One call of the tape, with the storages that it writes and reads; without a ``function`` it is a source."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Guard:
    """The calls that lead from arguments and buffers to one plain value, in order, and the value for the example."""

    calls: tuple[tuple[int, Call], ...]
    value: Any
    names: tuple[str, ...]

    def holds(self, leaves: Sequence[Any], buffers: Mapping[str, torch.Tensor]) -> bool:
        """Whether these argument leaves and buffers give the value of the example."""
        return bool(self.evaluate(leaves, buffers) == self.value)

    def evaluate(self, leaves: Sequence[Any], buffers: Mapping[str, torch.Tensor]) -> Any:
        """The value for these argument leaves and buffers."""
        made: dict[int, list[Any]] = {}
        changed = {s for _, call in self.calls if call.function is not None for s in call.writes & call.reads}

        def computed(leaf: Any) -> Any:
            return made[leaf.call][leaf.index] if isinstance(leaf, Known) else leaf

        result: Any = None
        with torch.no_grad(), torch_private.WithoutAutocast():
            for number, call in self.calls:
                if call.function is None:
                    (source,) = call.args
                    result = buffers[source.name] if source.name else leaves[source.index]
                    result = result.detach().clone() if call.writes & changed else result.detach()
                else:
                    args, kwargs = pytree.tree_map(
                        computed, (call.args, call.kwargs), is_leaf=lambda leaf: isinstance(leaf, Known)
                    )
                    result = call.function(*args, **kwargs)
                made[number] = pytree.tree_leaves(result)
        return result

    @property
    def decides_a_size(self) -> bool:
        """Whether the value is a size of a result, and not a condition."""
        return self.calls[-1][1].function in (count_true, count_distinct)

    def __str__(self) -> str:
        last = self.calls[-1][1]
        before = self.calls[-2][1] if len(self.calls) > 1 else last
        made = before.function or last.function
        made = made if isinstance(made, OpOverload) else made.__name__
        return f"a value that decides the way through the module ({made} of {', '.join(self.names) or 'constants'})"
