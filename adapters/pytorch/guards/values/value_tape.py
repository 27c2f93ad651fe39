"""The calls that lead from arguments and buffers to a plain value, and the guard that makes them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import torch_private
from ...torch_private import OpOverload, pytree
from ...value_shapes import count_distinct, count_true


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


GENERATOR = -1
"""Stands among storages for the default generator of the CPU, which every draw reads and writes."""


@dataclass(frozen=True)
class Like:
    """Stands for an argument of a draw: a tensor of the CPU with this layout."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Like:
        """The layout of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def empty(self) -> torch.Tensor:
        """A tensor of this layout."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Draw:
    """A call that draws random numbers of the CPU, as many as its arguments have places for, whatever they hold.

    Its result is ``kept`` if it decides something, else only the generator moves. Draws of one ``key`` are alike.
    """

    function: OpOverload
    kept: bool
    key: str

    @property
    def __name__(self) -> str:
        return str(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Draw, with empty tensors in place of layouts."""
        args, kwargs = pytree.tree_map_only(Like, Like.empty, (args, kwargs))
        made = self.function(*args, **kwargs)
        return made if self.kept else ()


class Drawn:
    """What a step draws that begins as the generator stands at the first draw: each sequence of draws runs once."""

    def __init__(self) -> None:
        self._states: list[torch.Tensor] = []
        self._next: dict[tuple[int, str], tuple[int, Any]] = {}

    def after(self, place: int, draw: Draw, args: Any, kwargs: Any) -> tuple[int, Any]:
        """The place after a draw, with its result, from the ``place`` before it; the first one is 0."""
        self._states = self._states or [torch.get_rng_state()]
        if (place, draw.key) not in self._next:
            torch.set_rng_state(self._states[place])
            made = draw(*args, **kwargs)
            self._next[place, draw.key] = len(self._states), made
            self._states.append(torch.get_rng_state())
        place, made = self._next[place, draw.key]
        return place, made.clone() if draw.kept else made


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
    """The calls that lead from arguments, buffers and draws to one plain value, in order, and the example's value."""

    calls: tuple[tuple[int, Call], ...]
    value: Any
    names: tuple[str, ...]

    def holds(self, leaves: Sequence[Any], buffers: Mapping[str, torch.Tensor], drawn: Drawn) -> bool:
        """Whether these argument leaves, buffers and draws give the value of the example.

        The generator is anywhere afterwards.
        """
        return bool(self.evaluate(leaves, buffers, drawn) == self.value)

    @property
    def draws(self) -> bool:
        """Whether random numbers decide the value."""
        return any(isinstance(call.function, Draw) for _, call in self.calls)

    def evaluate(self, leaves: Sequence[Any], buffers: Mapping[str, torch.Tensor], drawn: Drawn) -> Any:
        """The value for these argument leaves, buffers and draws."""
        made: dict[int, list[Any]] = {}
        changed = {s for _, call in self.calls if call.function is not None for s in call.writes & call.reads}

        def computed(leaf: Any) -> Any:
            return made[leaf.call][leaf.index] if isinstance(leaf, Known) else leaf

        result: Any = None
        place = 0
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
                    if isinstance(call.function, Draw):
                        place, result = drawn.after(place, call.function, args, kwargs)
                    else:
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
