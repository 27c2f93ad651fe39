"""Memory that library calls take for a moment beyond their results: each distinct call runs once, on zeros."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from ..pytorch.memory.allocator_record import Event, recording
from .forms import Call
from .lowering import Lowered
from .torch_private import pytree, real_tensors

_CPU = torch.device("cpu")


class WorkspaceMeter:
    """Measures the calls of lowered graphs, with the strides that Inductor's code gives them.

    ``unmeasured`` names the calls that could not run alone: their workspace is unknown, and counted as 0.
    """

    def __init__(self) -> None:
        self._nbytes: dict[str, int] = {}
        self.unmeasured: set[str] = set()

    def __call__(self, call: Call) -> int:
        """Bytes that the call takes beyond its results."""
        return self._nbytes.get(_signature(call), 0)

    def measure(self, lowered: Iterable[Lowered]) -> None:
        """Run each call that is not known yet."""
        calls = [event.call for code in lowered for event in code.events if event.call is not None]
        unknown = {_signature(call): call for call in calls if _signature(call) not in self._nbytes}
        results: dict[str, tuple[int, list[int]]] = {}
        if not unknown:
            return
        with real_tensors(), recording(_CPU) as record:
            for number, (signature, call) in enumerate(unknown.items()):
                made = _run(call, record, number)
                if made is None:
                    self.unmeasured.add(str(call.node.target))
                    self._nbytes[signature] = 0
                else:
                    results[signature] = number, made
        for signature, (number, addresses) in results.items():
            self._nbytes[signature] = _beyond(record.events(number), addresses)


def _signature(call: Call) -> str:
    constants = [None if isinstance(value, fx.Node) else value for value in pytree.tree_leaves(_arguments(call.node))]
    return f"{call.node.target} {_described(call)} {constants}"


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    return tuple(node.args), dict(node.kwargs)


def _described(call: Call) -> list[tuple[Any, ...]]:
    """Size, strides and type of each tensor that a call is given."""
    layouts = [layout for layout in call.layouts if layout is not None]
    described: list[tuple[Any, ...]] = []
    for leaf in pytree.tree_leaves(_arguments(call.node)):
        if not isinstance(leaf, fx.Node) or not isinstance(leaf.meta.get("val"), torch.Tensor):
            continue
        value = leaf.meta["val"]
        size = tuple(int(extent) for extent in value.shape)
        strides = tuple(int(stride) for stride in value.stride())
        given = next((layout for layout in layouts if layout[0] == size), None)
        if given is not None:
            layouts.remove(given)
            strides = given[1]
        described.append((size, strides, value.dtype))
    return described


def _run(call: Call, record: Any, number: int) -> list[int] | None:
    """Addresses of the results; None where the call fails."""
    layouts = iter(_described(call))

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        if not isinstance(leaf.meta.get("val"), torch.Tensor):
            return leaf.meta.get("val")
        size, strides, dtype = next(layouts)
        return torch.empty_strided(size, strides, dtype=dtype).zero_()

    args, kwargs = pytree.tree_map(real, _arguments(call.node))
    try:
        call.node.target(*args, **kwargs)  # what a first call keeps is no workspace
        with record.span(number):
            made = call.node.target(*args, **kwargs)
    except Exception:  # calls that users define refuse what they like
        return None
    return [leaf.untyped_storage().data_ptr() for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _beyond(events: Iterable[Event], results: list[int]) -> int:
    """The peak of a record without the blocks that the results are in."""
    events = list(events)
    live: Mapping[int, int] = {}
    taken = {event.address: position for position, event in enumerate(events) if event.nbytes > 0}
    final = {taken[address] for address in results if address in taken}
    total = most = 0
    live = {}
    for position, event in enumerate(events):
        if event.nbytes > 0:
            live[event.address] = 0 if position in final else event.nbytes
            total += live[event.address]
            most = max(most, total)
        else:
            total -= live.pop(event.address, 0)
    return most
