"""Attributes that a forward reads: seen while it is traced, and watched from step to step.

A planned step repeats what the forward did with them. What they hold must stay as it was, or the step would go on
with what was there before, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedModuleError
from .identity_check import Unmoved
from .side_effects import DERIVED
from .snapshots import described, drawn_within, same, snapshot

_OWN = frozenset(nn.Module().__dict__)
"""What every module has; modes and hooks are checked elsewhere."""
_MISSING = object()

Read = tuple[str, str]
"""The path of a submodule, and the name of what was read of it."""


@contextmanager
def recorded_reads(module: nn.Module, seen: dict[Read, None]) -> Iterator[None]:
    """Note in ``seen``, in order, what is read of ``module`` and its submodules inside."""
    paths = {id(child): path for path, child in module.named_modules()}

    def noted(self: nn.Module, name: str) -> Any:
        path = paths.get(id(self))
        if path is not None and name not in _OWN and not name.startswith("__"):
            seen[path, name] = None
        return object.__getattribute__(self, name)

    nn.Module.__getattribute__ = noted
    try:
        yield
    finally:
        del nn.Module.__getattribute__


def refuse_drawn(module: nn.Module, reads: Iterable[Read]) -> None:
    """Raise UnsupportedModuleError where what was read is drawn from: an iterator, a file that is open for reading."""
    children = dict(module.named_modules())
    for path, key in reads:
        found = drawn_within(snapshot(_value(children[path], key)))
        if found is not None:
            raise UnsupportedModuleError(
                f"the forward of {f'submodule {path!r}' if path else type(module).__name__} reads {key!r}, "
                f"a {type(found).__name__}; a plan would repeat for ever what is drawn from it",
                remedy="draw outside and pass what is drawn as an argument",
            )


class WatchedReads:
    """What was read of a module, as it is now."""

    def __init__(self, module: nn.Module, reads: Iterable[Read]) -> None:
        children = dict(module.named_modules())
        around = ("", "forward")  # that of a bound module runs the plan
        self._places = [
            (path, key, children[path])
            for path, key in reads
            if (path, key) != around and path in children and not _is_derived(children[path], key)
        ]
        self._values = [_value(child, key) for _, key, child in self._places]
        different = {id(value): value for value in self._values}  # a configuration is often read of every submodule
        held = {number: (snapshot(value), Unmoved(value)) for number, value in different.items()}
        self._held = [held[id(value)][0] for value in self._values]
        self._unmoved = [held[id(value)][1] for value in self._values]
        self._quick = _Quick([(child, key) for _, key, child in self._places], [found for _, found in held.values()])

    def changed(self) -> str | None:
        """What has changed since, in words; None where nothing has."""
        if self._quick:
            return None
        looked_at: set[int] = set()
        places = zip(self._places, self._values, self._held, self._unmoved, strict=True)
        for (path, key, child), before, held, unmoved in places:
            value = _value(child, key)
            if value is before and (id(before) in looked_at or unmoved):
                looked_at.add(id(before))
            elif not same(snapshot(value), held):
                return _told(path, key)
        return None

    @property
    def described(self) -> list[Any]:
        """What is held, for `differs_from` of a copy of the module."""
        return [described(held) for held in self._held]

    def differs_from(self, other: list[Any]) -> str | None:
        """What this module holds otherwise than one that was ``described``, in words."""
        for (path, key, _), mine, theirs in zip(self._places, self.described, other, strict=True):
            if not same(mine, theirs):
                return _told(path, key)
        return None


class _Quick:
    """True as long as every attribute is found where it was, is the same object, and holds the same.

    One look per module, class or object instead of one per attribute that was read.
    """

    def __init__(self, places: Iterable[tuple[nn.Module, str]], unmoved: list[Unmoved]) -> None:
        self._unmoved = unmoved
        self._present: list[tuple[dict[str, Any], str, Any]] = []
        self._tensors: dict[tuple[int, str], tuple[dict[str, Any], str, bool]] = {}
        self._of_class: dict[tuple[type, str], tuple[Mapping[str, Any], str, Any]] = {}
        absent: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for child, key in places:
            own = child.__dict__
            if key in own:
                self._present.append((own, key, own[key]))
                continue
            absent.setdefault(id(own), (own, set()))[1].add(key)
            tensors = next((home for home in (own["_parameters"], own["_buffers"]) if key in home), None)
            if tensors is not None:
                self._tensors[id(tensors), key] = tensors, key, tensors[key] is None
            for cls in () if tensors is not None else type(child).__mro__:  # with those that might come to shadow it
                self._of_class.setdefault((cls, key), (cls.__dict__, key, cls.__dict__.get(key, _MISSING)))
                if key in cls.__dict__:
                    break
        self._absent = list(absent.values())

    def __bool__(self) -> bool:
        return (
            all(own.get(key, _MISSING) is value for own, key, value in self._present)
            and all(own.keys().isdisjoint(keys) for own, keys in self._absent)
            and all((tensors.get(key) is None) is none for tensors, key, none in self._tensors.values())
            and all(home.get(key, _MISSING) is value for home, key, value in self._of_class.values())
            and all(self._unmoved)
        )


def _told(path: str, key: str) -> str:
    name = f"{path}.{key}".lstrip(".")
    return f"attribute {name!r}"


def _is_derived(child: nn.Module, key: str) -> bool:
    return isinstance(child, nn.RNNBase) and key in DERIVED


def _value(child: nn.Module, key: str) -> Any:
    """What the attribute is; nothing for tensors, submodules and methods, but where one takes another's place."""
    own = child.__dict__
    if key in own:
        return _MISSING if isinstance(own[key], torch.Tensor) else own[key]
    for tensors in (own["_parameters"], own["_buffers"]):
        if key in tensors:
            return None if tensors[key] is None else _MISSING
    found = getattr(type(child), key, _MISSING)
    return _MISSING if hasattr(found, "__get__") else found
