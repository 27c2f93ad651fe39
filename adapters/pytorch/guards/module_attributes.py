"""Guards on the attributes that a forward read of its modules and their plain objects, checked at every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, filterfalse
from operator import is_, itemgetter
from types import FunctionType, MemberDescriptorType
from typing import Any

import torch
from torch import nn

from .attribute_reads import ALL, AttributeReads, Outside, Owner, found
from .dictionary_versions import Unwritten
from .side_effects import DERIVED
from .snapshots import IdentityCheck, equal_snapshots, refuse_iterator, slots_of, snapshot, without_references
from .sources import MISSING

TRAINING = "training"
"""The attribute whose guard belongs to a submodule's setting (attachment.py)."""


def refuse_iterators(module: nn.Module, reads: AttributeReads) -> None:
    """Raise UnsupportedModuleError if an attribute read is an iterator or a file open for reading."""
    for holder, key, value, owner in _values(module, reads):
        where = f"submodule {owner!r}" if owner and isinstance(owner, str) else type(module).__name__
        name = key if holder is None or isinstance(owner, str) else _name(owner, key)
        refuse_iterator(snapshot(value, into_objects=False), f"the forward of {where} reads {name!r}")


def _values(module: nn.Module, reads: AttributeReads) -> Iterator[tuple[Any, str, Any, Owner]]:
    """Each attribute read: its owner in ``module``, None if there is none; its name, its value, and whose it is."""
    children = dict(module.named_modules())
    for owner, key in reads.reads:
        holder = found(owner, children)
        yield holder, key, MISSING if holder is None else _value(holder, key), owner


class AttributeGuards:
    """Guards on the attributes in ``reads``, with the values that they have now."""

    def __init__(self, module: nn.Module, reads: AttributeReads) -> None:
        known = [
            read
            for read in _values(module, reads)
            if (read[3], read[1]) != ("", "forward")  # that of a bound module runs the plan
            and not (isinstance(read[3], str) and (read[1] == TRAINING or read[0] is None))
            and not (isinstance(read[0], nn.RNNBase) and read[1] in DERIVED)
        ]
        self._reads = [(owner, key, holder) for holder, key, _, owner in known]
        self._values = [value for _, _, value, _ in known]
        different = {id(value): value for value in self._values}  # a configuration is often read from every submodule
        contents = {
            number: (snapshot(value, into_objects=False), IdentityCheck(value)) for number, value in different.items()
        }
        self._snapshots = [contents[id(value)][0] for value in self._values]
        self._checks = [contents[id(value)][1] for value in self._values]
        self._quick = _QuickCheck(known, [check for _, check in contents.values()])

    def changed(self) -> str | None:
        """A description of an attribute that changed; None if none did."""
        if self._quick:
            return None
        checked: set[int] = set()
        entries = zip(self._reads, self._values, self._snapshots, self._checks, strict=True)
        for (owner, key, holder), before, known, check in entries:
            value = _value(holder, key)
            if value is before and (id(before) in checked or check):
                checked.add(id(before))
            elif not equal_snapshots(snapshot(value, into_objects=False), known):
                return _description(owner, key)
        return None

    @property
    def values(self) -> list[Any]:
        """What the attributes hold, for `differs_from` of a copy of the module."""
        return [without_references(known) for known in self._snapshots]

    def differs_from(self, other: list[Any]) -> str | None:
        """A description of an attribute that differs from another module's `values`; None if none does."""
        for (owner, key, _), mine, theirs in zip(self._reads, self.values, other, strict=True):
            if not equal_snapshots(mine, theirs):
                return _description(owner, key)
        return None


class _QuickCheck:
    """True while every attribute is found where it was, is the same object, and has the same content.

    Makes one look-up for each module, class or object, not one for each attribute read.
    """

    def __init__(self, reads: Iterable[tuple[Any, str, Any, Owner]], checks: list[IdentityCheck]) -> None:
        self._checks = [check for check in checks if check.has_content]
        present: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        none: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        of_class: dict[type, dict[str, Any]] = {}
        absent: dict[int, tuple[Mapping[str, Any], set[str]]] = {}
        self._spaces: list[tuple[Any, dict[str, Any], type]] = []  # of objects, which may get others, or another class
        self._looked_up: list[tuple[Any, str, Any]] = []
        for holder, key, value, owner in reads:
            own = getattr(holder, "__dict__", {})
            # A class keeps its namespace, and makes another view of it each time. Modules are watched elsewhere.
            known = id(own) in present or id(own) in absent or not hasattr(holder, "__dict__")
            if not known and not isinstance(holder, (nn.Module, type)):
                self._spaces.append((holder, own, type(holder)))
            if key == ALL:
                continue
            if key in own:
                present.setdefault(id(own), (own, {}))[1][key] = own[key]
                continue
            absent.setdefault(id(own), (own, set()))[1].add(key)
            homes = (own["_parameters"], own["_buffers"]) if isinstance(holder, nn.Module) else ()
            tensors = next((group for group in homes if key in group), None)
            if tensors is not None:
                if tensors[key] is None:  # a tensor is a primal, and looked for in every step
                    none[id(tensors), key] = tensors, key
                continue
            for cls in type(holder).__mro__:  # including classes that may come to hide it
                if key in cls.__dict__:
                    of_class.setdefault(cls, {})[key] = cls.__dict__[key]
                    break
                absent.setdefault(id(cls), (cls.__dict__, set()))[1].add(key)
            computed = key in slots_of(type(holder)) or (key not in cls.__dict__ and _computes(type(holder)))
            if computed and not isinstance(owner, str):
                self._looked_up.append((holder, key, value))
        there = [*present.values(), *((cls.__dict__, found) for cls, found in of_class.items())]
        missing = list(absent.values())
        # Namespaces of classes are no dictionaries, and have no versions.
        own_spaces = _Spaces(filter(_of_object, there), filter(_of_object, missing), none.values())
        self._own = Unwritten(lambda: own_spaces.dictionaries, own_spaces.are_as_they_were)
        self._classes = _Spaces(filterfalse(_of_object, there), filterfalse(_of_object, missing), ())

    def __bool__(self) -> bool:
        return (
            bool(self._own)
            and self._classes.are_as_they_were()
            and all(holder.__dict__ is own and type(holder) is cls for holder, own, cls in self._spaces)
            and all(getattr(holder, key, MISSING) is value for holder, key, value in self._looked_up)
            and all(self._checks)
        )


def _of_object(entry: tuple[Mapping[str, Any], Any]) -> bool:
    return isinstance(entry[0], dict)


class _Spaces:
    """Dictionaries with the values that were read from them, with keys that they lack, and with keys of no tensor."""

    def __init__(
        self,
        present: Iterable[tuple[Mapping[str, Any], dict[str, Any]]],
        absent: Iterable[tuple[Mapping[str, Any], set[str]]],
        none: Iterable[tuple[dict[str, Any], str]],
    ) -> None:
        there, missing, self._none = list(present), list(absent), list(none)
        self._absent = [(own.keys().isdisjoint, keys) for own, keys in missing]  # a view of what is there then
        # A key that is there twice: with one alone `itemgetter` would not give a tuple.
        self._reads = [(itemgetter(*found, next(iter(found))), own) for own, found in there]
        self._values = [value for _, found in there for value in (*found.values(), next(iter(found.values())))]
        every = (own for own, _ in (*there, *missing, *self._none))
        self.dictionaries: list[Any] = list({id(own): own for own in every}.values())

    def are_as_they_were(self) -> bool:
        """Whether all is found as it was here."""
        for is_disjoint, keys in self._absent:
            if not is_disjoint(keys):
                return False
        for tensors, key in self._none:
            if tensors.get(key) is not None:
                return False
        try:
            found = chain.from_iterable([read(own) for read, own in self._reads])
        except KeyError:
            return False
        return all(map(is_, found, self._values))


def _computes(cls: type) -> bool:
    """Whether a class has a say in what its objects' attributes are."""
    return hasattr(cls, "__getattr__") or getattr(cls, "__getattribute__", None) is not object.__getattribute__


def _description(owner: Owner, key: str) -> str:
    return f"attribute {_name(owner, key)!r}"


def _name(owner: Owner, key: str) -> str:
    """How code would name an attribute: ``blocks.0.options.rate``."""
    first, *steps = owner if isinstance(owner, tuple) else (owner,)
    path = first.name if isinstance(first, Outside) else first
    keys = [*steps, *([key] if key != ALL else [])]
    return (path + "".join(f"[{step[0]!r}]" if isinstance(step, tuple) else f".{step}" for step in keys)).lstrip(".")


def _value(holder: Any, key: str) -> Any:
    """An attribute's value, of a method its function; MISSING for submodules, properties and a module's tensors."""
    own = getattr(holder, "__dict__", {})
    if key == ALL:
        return own
    if isinstance(holder, nn.Module):
        if key in own:
            return MISSING if isinstance(own[key], torch.Tensor) else own[key]
        for tensors in (own["_parameters"], own["_buffers"]):
            if key in tensors:
                return None if tensors[key] is None else MISSING
    if key in own:
        return own[key]
    for cls in type(holder).__mro__:
        if key in cls.__dict__:
            value = cls.__dict__[key]
            if isinstance(value, MemberDescriptorType):
                return getattr(holder, key, MISSING)
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            return MISSING if hasattr(value, "__get__") and not isinstance(value, FunctionType) else value
    if isinstance(holder, nn.Module):
        return holder._modules.get(key, MISSING)
    try:
        value = getattr(holder, key)  # another name for an attribute, or none
        return value if value is getattr(holder, key) else MISSING
    except Exception:
        return MISSING
