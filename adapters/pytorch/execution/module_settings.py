"""What tracing assumed of each submodule besides its attributes: its class, its mode, its hooks and its submodules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_, itemgetter
from types import FunctionType
from typing import Any

from torch import nn

from ..capture.module_checks import HOOKS
from ..guards.attribute_reads import AttributeReads
from ..guards.dictionary_versions import Unwritten
from ..guards.module_attributes import TRAINING


@dataclass(frozen=True, slots=True)
class Setting:
    """What tracing assumed of one submodule: its class, its mode if the forward read it, its hooks."""

    path: str
    kind: type[nn.Module] | None
    training: bool | None
    hooks: tuple[Any, ...]


def settings_of(module: nn.Module, reads: AttributeReads) -> tuple[Setting, ...]:
    """The settings of a module and all its submodules.

    The root's own mode and hooks act around the step, and the class of a bound one is not the one that was traced.
    """
    return tuple(
        Setting(
            path,
            type(child) if path else None,
            child.training if path and (path, TRAINING) in reads.reads else None,
            hooks_of(child) if path else (),
        )
        for path, child in module.named_modules()
    )


def hooks_of(module: nn.Module) -> tuple[Any, ...]:
    """The code of a module's hooks, which a copy of the module shares."""
    hooks = [hook for name in HOOKS for hook in module.__dict__[name].values()]
    return tuple([hook if isinstance(hook, FunctionType) else getattr(hook, "__func__", type(hook)) for hook in hooks])


_REGISTRIES, _MODE, _HOOKS = itemgetter("_modules", "_parameters", "_buffers"), itemgetter(TRAINING), itemgetter(*HOOKS)


class QuickCheck:
    """True only while all ``modules``, a root first, have these ``settings`` and the submodules that they have now.

    It may be false of others too. It runs in every step, and looks at all modules in a few calls.
    """

    def __init__(self, modules: Sequence[nn.Module], settings: Sequence[Setting]) -> None:
        inner = [pair for pair in zip(modules, settings, strict=True) if pair[1].path]
        self._as_planned = all(hooks_of(module) == setting.hooks for module, setting in inner)
        self._inner, self._kinds = [module for module, _ in inner], [setting.kind for _, setting in inner]
        with_mode = [(module, setting.training) for module, setting in inner if setting.training is not None]
        self._with_mode, self._modes = [module.__dict__ for module, _ in with_mode], [mode for _, mode in with_mode]
        self._all, self._spaces = list(modules), list(map(vars, modules))
        self._inner_spaces = list(map(vars, self._inner))
        self._hooks = hooks = list(chain.from_iterable(map(_HOOKS, self._inner_spaces)))
        self._filled = [(own, dict(own)) for own in hooks if own]
        self._registries = list(chain.from_iterable(map(_REGISTRIES, self._spaces)))
        homes = [module._modules for module in modules]
        self._empty = [own for own in (*hooks, *homes) if not own]
        self._parents = [home for home in homes if home]
        self._sizes, self._names = list(map(len, self._parents)), list(chain.from_iterable(self._parents))
        self._views = [home.values() for home in self._parents]  # each shows what its dictionary has then
        self._children = list(chain.from_iterable(self._views))
        self._attributes = Unwritten(lambda: chain(map(vars, self._all), self._parents), self._holds)

    def __bool__(self) -> bool:
        return (
            self._as_planned
            and bool(self._attributes)
            and not any(self._empty)
            and all(own == known for own, known in self._filled)
            and all(map(is_, map(type, self._inner), self._kinds))
        )

    def _holds(self) -> bool:
        """Whether the attributes of all modules, and the submodules, are those that were here."""
        try:
            return (
                all(map(is_, map(vars, self._all), self._spaces))
                and all(map(is_, chain.from_iterable(map(_REGISTRIES, self._spaces)), self._registries))
                and all(map(is_, chain.from_iterable(map(_HOOKS, self._inner_spaces)), self._hooks))
                and all(map(is_, map(_MODE, self._with_mode), self._modes))
                and list(map(len, self._parents)) == self._sizes
                and list(chain.from_iterable(self._parents)) == self._names
                and all(map(is_, chain.from_iterable(self._views), self._children))
            )
        except KeyError:
            return False
