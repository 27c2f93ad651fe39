"""A module attached to a plan: where its tensors are, and whether it still is what was traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import nn

from ....planner.errors import AdapterError
from .. import torch_private
from ..capture.tensor_attributes import attributes_of
from ..guards.module_attributes import AttributeGuards
from ..guards.module_wide_hooks import hooks_of_submodules
from ..guards.values.value_tape import Drawn
from ..joint import Joint, Meta, Primal, meta
from .module_settings import QuickCheck, Setting, hooks_of


class InputMismatchError(AdapterError):
    """The arguments, parameters, modes or settings differ from those that the plan was bound for."""


class VaryingStepError(InputMismatchError):
    """The step differs from that of a plan in what may vary from step to step.

    That is sizes of arguments alone, a size that their values decide, or a way that random numbers decide.
    """


class ChangedModuleError(InputMismatchError):
    """The module, or something else that its forward reads, is not as it was when the plan was bound."""


class ChangedDataError(ChangedModuleError):
    """An attribute, a global or the like that the forward reads has another value."""


class ReplacedModuleError(ChangedModuleError):
    """A submodule was added, removed or replaced."""


@dataclass(frozen=True, slots=True)
class Described:
    """The attribute values that the forward reads of a module, and the names of each tied parameter."""

    values: list[Any]
    tied: list[list[str]]


class Attachment:
    """Finds the tensors of ``module`` for the primals of a plan, and checks it against the ``traced`` settings.

    If the module is not the one that was traced, ``like`` is what `described` returned for that one.
    """

    def __init__(
        self, module: nn.Module, joint: Joint, traced: tuple[Setting, ...], like: Described | None = None
    ) -> None:
        children = list(module.modules())
        if len(children) != len(traced):
            raise _replaced_error()
        self._watched = [
            (child, tuple(child._modules.values()), setting) for child, setting in zip(children, traced, strict=True)
        ]
        self._spaces = [(child, vars(child), child._parameters, child._buffers) for child in children]
        self._quick_check = partial(QuickCheck, children, traced)
        self._unchanged = self._quick_check()
        self._guards, self._sources, self.module = joint.guards, joint.sources, module
        self._reads = AttributeGuards(module, joint.reads)
        self._tied = _tied(module)
        self._module_wide_hooks = hooks_of_submodules(module)
        self._alike: Callable[..., bool] | None = None  # true only of tensors like those that were checked last
        if like is not None:
            changed = self._reads.differs_from(like.values)
            if changed is None and [names for _, names in self._tied] != like.tied:
                changed = "which of its parameters are one"
            if changed is not None:
                raise _changed_error(changed)
        owners = dict(module.named_modules(remove_duplicate=False))
        self._places: list[tuple[dict[str, Any], str]] = []
        for primal in joint.primals:
            if primal.kind != "input":
                path, _, key = primal.name.rpartition(".")
                owner = owners[path]
                homes = {"parameter": owner._parameters, "buffer": owner._buffers, "attribute": owner.__dict__}
                self._places.append((homes[primal.kind], key))

    @property
    def described(self) -> Described:
        """What is assumed of the module besides its settings."""
        return Described(self._reads.values, [names for _, names in self._tied])

    def check(self) -> None:
        """Raise ChangedModuleError if a submodule was replaced, or its mode, attributes or hooks changed."""
        if not self._unchanged:
            for child, children, setting in self._watched:
                _compare(child, children, setting)
            for child, space, parameters, buffers in self._spaces:
                if vars(child) is not space or child._parameters is not parameters or child._buffers is not buffers:
                    raise ChangedModuleError(
                        f"what a {type(child).__name__} keeps its attributes or tensors in was replaced since the plan "
                        "was bound",
                        remedy="bind again",
                    )
            self._unchanged = self._quick_check()  # what changed does not matter
        for positions, names in self._tied:
            first = positions[0][0].get(positions[0][1])
            if any(tensors.get(key) is not first for tensors, key in positions):
                raise ChangedModuleError(
                    f"parameters {', '.join(map(repr, names))} were one when the plan was bound and are not now",
                    remedy="tie them again, or bind again",
                )

        if hooks_of_submodules(self.module) != self._module_wide_hooks:
            raise ChangedModuleError(
                "the hooks of all modules (register_module_forward_hook) are others than when the plan was bound",
                remedy="bind again",
            )

    def has_its_modules(self) -> bool:
        """Whether each submodule is where it was: if not, this would keep one alive that the module has let go."""
        return all(_are(child._modules, tuple(child._modules), children) for child, children, _ in self._watched)

    def check_reads(self) -> None:
        """Raise ChangedModuleError if data that the forward reads changed; `checked_tensors` is for tensors."""
        changed = self._reads.changed() or self._sources.changed()
        if changed is not None:
            raise _changed_error(changed)

    def check_values(self, leaves: list[Any], drawn: Drawn | None = None) -> None:
        """Raise InputMismatchError if the module would take another branch for these argument leaves.

        ``drawn`` has what checks for other plans of the same step have drawn already.
        """
        if not self._guards:
            return
        buffers = dict(self.module.named_buffers(remove_duplicate=False)) | attributes_of(self.module)
        drawn = drawn or Drawn()
        with torch.random.fork_rng([]) if any(guard.draws for guard in self._guards) else nullcontext():
            for guard in self._guards:
                if not guard.holds(leaves, buffers, drawn):
                    raise (VaryingStepError if guard.decides_a_size or guard.draws else InputMismatchError)(
                        f"{guard} was {guard.value!r} for the arguments the plan was bound for and is not for these",
                        remedy="plan with within_budget, which makes a plan for each branch",
                    )

    def own_tensors(self) -> list[torch.Tensor]:
        """The module's own tensors, in the order of their primals."""
        return [tensors[key] for tensors, key in self._places]

    def checked_tensors(self, primals: Iterable[Primal], expected: list[Meta]) -> list[torch.Tensor]:
        """The module's own tensors, in the order of their ``primals``, each as ``expected``.

        Raises ChangedModuleError.
        """
        found = [tensors.get(key) for tensors, key in self._places]
        if self._alike is not None and self._alike(*found):
            return found
        own = (primal for primal in primals if primal.kind != "input")
        for primal, tensor, wanted in zip(own, found, expected, strict=True):
            if not wanted.describes(tensor):
                given = meta(tensor) if isinstance(tensor, torch.Tensor) else "gone"
                raise ChangedModuleError(
                    f"{primal.kind} {primal.name!r} is {given}; the plan was bound for {wanted}", remedy="bind again"
                )
        self._alike = torch_private.quick_check(found)
        return found


class Order:
    """The order of the tensors of ``primals``: a module's own, and those of arguments."""

    def __init__(self, primals: Iterable[Primal]) -> None:
        self._arguments = [(at, primal.index) for at, primal in enumerate(primals) if primal.kind == "input"]

    def __call__(self, own: list[torch.Tensor], leaves: list[Any]) -> list[torch.Tensor]:
        """All of them; those of arguments are from ``leaves``."""
        found = list(own)
        for position, leaf in self._arguments:
            found.insert(position, leaves[leaf])
        return found


_SETTINGS = ("its class", "training", "its hooks")


def _are(modules: dict[str, nn.Module | None], names: tuple[str, ...], values: tuple[nn.Module | None, ...]) -> bool:
    """Whether submodules are these, under these names: a class may compare its instances as it likes."""
    return len(modules) == len(values) and tuple(modules) == names and all(map(is_, modules.values(), values))


def _compare(module: nn.Module, children: tuple[nn.Module | None, ...], setting: Setting) -> None:
    """Raise ChangedModuleError with what changed in a module, if something did."""
    if not _are(module._modules, tuple(module._modules), children):
        raise _replaced_error()
    mode = None if setting.training is None else module.training
    found = (type(module) if setting.path else None, mode, hooks_of(module) if setting.path else ())
    pairs = zip(_SETTINGS, found, (setting.kind, setting.training, setting.hooks), strict=True)
    now = next(
        (what if what == "its hooks" else f"{what} is now {a!r}, was {b!r}" for what, a, b in pairs if a != b), None
    )
    if now is not None:
        where = f"submodule {setting.path!r}" if setting.path else "the module"
        raise ChangedModuleError(f"{where} changed since the plan was bound: {now}", remedy="bind again")


def _tied(module: nn.Module) -> list[tuple[list[tuple[dict[str, Any], str]], list[str]]]:
    """Where each tied parameter is kept, and its names."""
    found: dict[int, tuple[list[tuple[dict[str, Any], str]], list[str]]] = {}
    for path, child in module.named_modules():
        for key, parameter in child._parameters.items():
            if parameter is not None:
                positions, names = found.setdefault(id(parameter), ([], []))
                positions.append((child._parameters, key))
                names.append(f"{path}.{key}".lstrip("."))
    return [entry for entry in found.values() if len(entry[1]) > 1]


def _changed_error(what: str) -> ChangedDataError:
    return ChangedDataError(f"{what} changed since the plan was bound, and the forward reads it", remedy="bind again")


def _replaced_error() -> ReplacedModuleError:
    return ReplacedModuleError(
        "a submodule was added, removed or replaced since the plan was bound", remedy="bind again"
    )
