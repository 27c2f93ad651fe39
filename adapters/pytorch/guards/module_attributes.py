"""Guards on the attributes that a forward read of its modules and their plain objects, checked at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import is_, itemgetter
from types import FunctionType
from typing import Any

import torch
from torch import nn

from .attribute_reads import AttributeReads
from .side_effects import DERIVED
from .snapshots import IdentityCheck, equal_snapshots, refuse_iterator, snapshot, without_references
from .sources import MISSING

TRAINING = "training"
"""The attribute whose guard belongs to a submodule's setting (attachment.py)."""


def refuse_iterators(module: nn.Module, reads: AttributeReads) -> None:
    """Raise UnsupportedModuleError if an attribute read is an iterator or a file open for reading."""
    children = dict(module.named_modules())
    for path, key in reads.of_modules:
        where = f"submodule {path!r}" if path else type(module).__name__
        content = snapshot(_value(children[path], key), fields=reads.of_objects)
        refuse_iterator(content, f"the forward of {where} reads {key!r}")


class AttributeGuards:
    """Guards on the attributes in ``reads``, with the values that they have now."""

    def __init__(self, module: nn.Module, reads: AttributeReads) -> None:
        children = dict(module.named_modules())
        self._fields = reads.of_objects
        self._reads = [
            (path, key, children[path])
            for path, key in reads.of_modules
            if (path, key) != ("", "forward")  # that of a bound module runs the plan
            and key != TRAINING
            and path in children
            and not (isinstance(children[path], nn.RNNBase) and key in DERIVED)
        ]
        self._values = [_value(child, key) for _, key, child in self._reads]
        different = {id(value): value for value in self._values}  # a configuration is often read from every submodule
        known = {
            number: (snapshot(value, fields=self._fields), IdentityCheck(value, fields=self._fields))
            for number, value in different.items()
        }
        self._snapshots = [known[id(value)][0] for value in self._values]
        self._checks = [known[id(value)][1] for value in self._values]
        self._quick = _QuickCheck(
            [(child, key) for _, key, child in self._reads], [check for _, check in known.values()]
        )

    def changed(self) -> str | None:
        """A description of an attribute that changed; None if none did."""
        if self._quick:
            return None
        checked: set[int] = set()
        entries = zip(self._reads, self._values, self._snapshots, self._checks, strict=True)
        for (path, key, child), before, known, check in entries:
            value = _value(child, key)
            if value is before and (id(before) in checked or check):
                checked.add(id(before))
            elif not equal_snapshots(snapshot(value, fields=self._fields), known):
                return _description(path, key)
        return None

    @property
    def values(self) -> list[Any]:
        """What the attributes hold, for `differs_from` of a copy of the module."""
        return [without_references(known) for known in self._snapshots]

    def differs_from(self, other: list[Any]) -> str | None:
        """A description of an attribute that differs from another module's `values`; None if none does."""
        for (path, key, _), mine, theirs in zip(self._reads, self.values, other, strict=True):
            if not equal_snapshots(mine, theirs):
                return _description(path, key)
        return None


class _QuickCheck:
    """True while every attribute is found where it was, is the same object, and has the same content.

    Makes one look-up for each module, class or object, not one for each attribute read.
    """

    def __init__(self, reads: Iterable[tuple[nn.Module, str]], checks: list[IdentityCheck]) -> None:
        self._checks = [check for check in checks if check.has_content]
        present: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._tensors: dict[tuple[int, str], tuple[dict[str, Any], str, bool]] = {}
        self._of_class: dict[tuple[type, str], tuple[Mapping[str, Any], str, Any]] = {}
        absent: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for child, key in reads:
            own = child.__dict__
            if key in own:
                present.setdefault(id(own), (own, {}))[1][key] = own[key]
                continue
            absent.setdefault(id(own), (own, set()))[1].add(key)
            tensors = next((group for group in (own["_parameters"], own["_buffers"]) if key in group), None)
            if tensors is not None:
                self._tensors[id(tensors), key] = tensors, key, tensors[key] is None
            for cls in () if tensors is not None else type(child).__mro__:  # including classes that may come to hide it
                self._of_class.setdefault((cls, key), (cls.__dict__, key, cls.__dict__.get(key, MISSING)))
                if key in cls.__dict__:
                    break
        self._absent = list(absent.values())
        # A key that is there twice: with one alone `itemgetter` would not give a tuple.
        self._present = [
            (own, itemgetter(*found, next(iter(found))), (*found.values(), next(iter(found.values()))))
            for own, found in present.values()
        ]

    def __bool__(self) -> bool:
        try:
            if not all(all(map(is_, read(own), values)) for own, read, values in self._present):
                return False
        except KeyError:
            return False
        return (
            all(own.keys().isdisjoint(keys) for own, keys in self._absent)
            and all((tensors.get(key) is None) is none for tensors, key, none in self._tensors.values())
            and all(namespace.get(key, MISSING) is value for namespace, key, value in self._of_class.values())
            and all(self._checks)
        )


def _description(path: str, key: str) -> str:
    name = f"{path}.{key}".lstrip(".")
    return f"attribute {name!r}"


def _value(child: nn.Module, key: str) -> Any:
    """An attribute's value, of a method its function; MISSING for tensors, submodules and properties."""
    own = child.__dict__
    if key in own:
        return MISSING if isinstance(own[key], torch.Tensor) else own[key]
    for tensors in (own["_parameters"], own["_buffers"]):
        if key in tensors:
            return None if tensors[key] is None else MISSING
    found = getattr(type(child), key, MISSING)
    return MISSING if hasattr(found, "__get__") and not isinstance(found, FunctionType) else found
