"""One module that trains by a plan: where its tensors are, and whether it still is what was traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from ogc_plan.planner.errors import AdapterError
from torch import nn

from .capture import HOOKS, Joint, Meta, Primal, meta
from .tensor_attributes import attributes_of


class InputMismatchError(AdapterError):
    """The arguments, parameters, modes or settings differ from those the plan was bound for."""


class OtherValuesError(InputMismatchError):
    """The module asks for a value of its arguments, and these arguments answer otherwise than the plan's did."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What tracing took for granted of one submodule: its mode, plain attributes and number of hooks."""

    path: str
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    hooks: int

    @classmethod
    def of(cls, path: str, module: nn.Module) -> Setting:
        """The present setting. The root's own mode and hooks may change: they act around the step."""
        own = module.__dict__
        keys = [k for k, v in own.items() if type(v) in (int, float, bool, str) and (path or k != "training")]
        return cls(path, tuple(keys), tuple(own[k] for k in keys), _hook_count(module) if path else 0)


def settings_of(module: nn.Module) -> tuple[Setting, ...]:
    """The settings of a module and all its submodules."""
    return tuple(Setting.of(path, child) for path, child in module.named_modules())


class Attachment:
    """Finds the tensors of ``module`` for the primals of a plan, and checks it against the ``traced`` settings."""

    def __init__(self, module: nn.Module, joint: Joint, traced: tuple[Setting, ...]) -> None:
        children = list(module.modules())
        if len(children) != len(traced):
            raise _replaced()
        self._watched = [
            (child.__dict__, tuple(child._modules.values()), child, setting)
            for child, setting in zip(children, traced, strict=True)
        ]
        self._guards, self.module = joint.guards, module
        owners = dict(module.named_modules(remove_duplicate=False))
        self._places: list[tuple[dict[str, Any], str]] = []
        for primal in joint.primals:
            if primal.kind != "input":
                path, _, key = primal.name.rpartition(".")
                owner = owners[path]
                homes = {"parameter": owner._parameters, "buffer": owner._buffers, "attribute": owner.__dict__}
                self._places.append((homes[primal.kind], key))

    def check(self) -> None:
        """Raise InputMismatchError where a submodule was replaced or its mode, attributes or hooks changed."""
        for own, children, child, setting in self._watched:
            if tuple(own["_modules"].values()) != children:
                raise _replaced()
            values = tuple([own.get(key) for key in setting.keys])
            hooks = _hook_count(child) if setting.path else 0
            if values != setting.values or hooks != setting.hooks:
                now = next((f"{k} is now {a!r}, was {b!r}" for k, a, b in zip(
                    setting.keys, values, setting.values, strict=True) if a != b), "its hooks")  # fmt: skip
                where = f"submodule {setting.path!r}" if setting.path else "the module"
                raise InputMismatchError(f"{where} changed since the plan was bound: {now}", remedy="bind again")

    def check_values(self, leaves: list[Any]) -> None:
        """Raise OtherValuesError where the module would go another way for these argument leaves."""
        buffers = dict(self.module.named_buffers(remove_duplicate=False)) if self._guards else {}
        buffers |= attributes_of(self.module) if self._guards else {}
        for guard in self._guards:
            if not guard.holds(leaves, buffers):
                raise OtherValuesError(
                    f"{guard} was {guard.answer!r} for the arguments the plan was bound for and is not for these",
                    remedy='plan with signatures="plan", which makes one plan per way',
                )

    def own_tensors(self) -> list[torch.Tensor]:
        """The tensors of the module itself, in the order of the primals that are no arguments."""
        return [tensors[key] for tensors, key in self._places]

    def tensors(self, primals: tuple[Primal, ...], expected: list[Meta], leaves: list[Any]) -> list[torch.Tensor]:
        """The tensors of all primals in order, arguments from ``leaves``. Raises InputMismatchError."""
        own = iter(zip(self._places, expected, strict=True))
        found = []
        for primal in primals:
            if primal.kind == "input":
                found.append(leaves[primal.index])
                continue
            (tensors, key), wanted = next(own)
            tensor = tensors.get(key)
            if meta(tensor) != wanted:
                given = meta(tensor) if isinstance(tensor, torch.Tensor) else "gone"
                raise InputMismatchError(
                    f"{primal.kind} {primal.name!r} is {given}; the plan was bound for {wanted}", remedy="bind again"
                )
            found.append(tensor)
        return found


def _hook_count(module: nn.Module) -> int:
    own = module.__dict__
    return sum([len(own[name]) for name in HOOKS])


def _replaced() -> InputMismatchError:
    return InputMismatchError(
        "a submodule was added, removed or replaced since the plan was bound", remedy="bind again"
    )
