"""Refuses side effects of a forward that a planned step, which only runs aten calls, would silently leave out."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import HERE, TORCH, UnsupportedModuleError
from ..torch_private import FunctionalTensor
from .assignments import Assignment
from .attribute_reads import FORWARD_HOOKS, Read
from .host_rng import is_generator
from .rollback import roll_back, save
from .snapshots import equal_snapshots, snapshot


@contextmanager
def refuse_side_effects(module: nn.Module, assigned: Mapping[Read, Assignment]) -> Iterator[None]:
    """Trace ``module`` inside; what its forward changes is rolled back at the end.

    Raises UnsupportedModuleError if the forward changes anything but buffers in place and attributes in ``assigned``.
    """
    derived_by_hooks = _set_by_norm_hooks(module)
    states: list[dict[tuple[str, str], Any]] = []
    generator = torch.default_generator
    cards: tuple[torch.Generator, ...] = ()  # there are none until CUDA begins, which tracing itself may cause

    def seedable() -> None:
        torch.default_generator = torch.random.default_generator = generator
        if cards:
            torch.cuda.default_generators = cards

    def enter(child: nn.Module, _: Any) -> None:
        nonlocal cards
        if child is module:
            states.append(_state(module))
            name = type(module).__name__
            torch.random.default_generator = _Unseedable(generator, name)
            torch.default_generator = _UnseedableArgument(generator, name)
            cards = cards or torch.cuda.default_generators
            if cards:
                torch.cuda.default_generators = tuple([_Unseedable(card, name) for card in cards])

    def leave(child: nn.Module, _: Any, __: Any) -> None:
        if child is module and states:
            seedable()
            before, after = states.pop(), _state(module)
            if any(name[1].startswith(_HOOK) for name in after.keys() - before.keys()):
                _refuse_hooks_once(module, assigned)
            for name in {**before, **after}:
                if name[1].startswith(_HOOK) and name not in before:
                    continue  # rolled back: the graph has what it did
                if name in assigned:
                    continue  # the step sets them too
                unchanged = equal_snapshots(before.get(name), after.get(name), ignore_filled=True)
                if name not in derived_by_hooks and not unchanged:
                    raise _changed(module, *name, new=name not in before)

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    values = [value for child in module.modules() for key, value in child.__dict__.items() if key not in _IGNORED]
    saved = [pair for value in values for pair in save(value)]
    recurrent = [child for child in module.modules() if isinstance(child, nn.RNNBase)]
    derived = [{key: child.__dict__[key] for key in DERIVED if key in child.__dict__} for child in recurrent]
    homes = [(module.get_submodule(path), key) for path, key in derived_by_hooks]
    places = [(home, key) for child, key in homes for home in (child._buffers, child.__dict__) if key in home]
    computed = [(home, key, home[key]) for home, key in places]
    try:
        yield
    finally:
        seedable()
        for hook in hooks:
            hook.remove()
        for child, own in zip(recurrent, derived, strict=True):
            child.__dict__.update(own)
        for home, key, value in computed:
            home[key] = value
        for container, content in saved:
            roll_back(container, content)


def _refuse_hooks_once(module: nn.Module, assigned: Mapping[Read, Assignment]) -> None:
    """Raise UnsupportedModuleError if a forward that installs hooks, which are removed again, notes that it did."""
    noted = next((assignment.target[1] for assignment in assigned.values() if assignment.fills), None)
    if noted is not None:
        raise UnsupportedModuleError(
            f"the forward of {type(module).__name__} installs a hook while {noted!r} is None, which a planned step "
            "would not",
            remedy="install it in __init__, or run one forward before planning",
        )


@contextmanager
def refuse_kept_tensors(module: nn.Module, forget: Callable[[list[Any]], None]) -> Iterator[None]:
    """Raise UnsupportedModuleError if a tensor that tracing ``module`` made inside is still there at the end.

    ``forget`` is given those that are.
    """
    with _tensors_made() as made:
        try:
            yield
        finally:
            if any(tensor() is not None for tensor in made):
                gc.collect(0)  # what a trace makes is young, and torch's own cycles hold most of these tensors
            forget([tensor for tensor in (reference() for reference in made) if tensor is not None])
    if any(tensor() is not None for tensor in made):
        gc.collect()
        if any(tensor() is not None for tensor in made):
            raise UnsupportedModuleError(
                f"the forward of {type(module).__name__} stores a tensor outside the module",
                remedy=f"set it as an attribute of the module, {INSTEAD}",
            )


_SEEDING = ("manual_seed", "seed", "set_state")


class _Unseedable:
    """A generator that refuses to be seeded or set to another state, except by torch itself."""

    def __init__(self, generator: torch.Generator, name: str) -> None:
        self._generator, self._name = generator, name

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _SEEDING and not _called_by_torch():
            raise UnsupportedModuleError(
                f"the forward of {self._name} seeds or rewinds the random generator, which a planned step would not",
                remedy="seed before the step, or pass what is drawn as an argument",
            )
        return getattr(self._generator, attribute)


class _UnseedableArgument(torch.Generator):  # type: ignore[misc]
    """The same for ``torch.default_generator``, which may be passed to calls that draw."""

    def __new__(cls, generator: torch.Generator, name: str) -> _UnseedableArgument:
        made: _UnseedableArgument = super().__new__(cls, device=generator.device)
        made._instead = _Unseedable(generator, name)
        return made

    def __getattribute__(self, attribute: str) -> Any:
        instead = super().__getattribute__("__dict__").get("_instead")
        own = attribute in (*_SEEDING, "get_state", "initial_seed") and instead is not None
        return getattr(instead, attribute) if own else super().__getattribute__(attribute)


def _called_by_torch() -> bool:
    """Whether torch itself sets a generator's state, as it does around calls that it traces."""
    between = (
        torch.random.__file__, contextlib.__file__, f"{TORCH}/cuda", f"{TORCH}/_compile.py", f"{TORCH}/_dynamo"
    )  # fmt: skip
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*between, __file__)):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith((TORCH, HERE))


INSTEAD = "return it as an output or write into a buffer in place; if it is a cache, run one forward before planning"


def _changed(module: nn.Module, path: str, key: str, *, new: bool) -> UnsupportedModuleError:
    owner = module.get_submodule(path)
    what = "buffer" if key in owner._buffers else "attribute"
    where = f"submodule {path!r}" if path else type(module).__name__
    if isinstance(owner.__dict__.get(key), torch.Generator):  # its draws are calls of the graph, refused there
        return UnsupportedModuleError(
            f"the forward of {where} seeds the generator {key!r}, which a planned step would not",
            remedy="draw from the default generator and seed before the step, or pass what is drawn as an argument",
        )
    if is_generator(owner.__dict__.get(key)):
        return UnsupportedModuleError(
            f"the forward of {where} draws from the generator {key!r}; a plan would repeat that draw for ever",
            remedy="draw with torch, or pass what is drawn as an argument",
        )
    if what == "buffer" and new:
        return UnsupportedModuleError(
            f"the forward of {where} registers buffer {key!r}, which a planned step would not",
            remedy="register it in __init__, or run one forward before planning",
        )
    return UnsupportedModuleError(
        f"the forward of {where} sets {what} {key!r}, which a planned step would not",
        remedy="write into the buffer with copy_" if what == "buffer" else INSTEAD,
    )


@contextmanager
def _tensors_made() -> Iterator[list[weakref.ref[Any]]]:
    """Weak references to the tensors that tracing makes inside; none should outlive the trace."""
    found: list[weakref.ref[Any]] = []
    make = FunctionalTensor.__new__

    def recorded(cls: type, *args: Any, **kwargs: Any) -> Any:
        made = make(cls, *args, **kwargs)
        found.append(weakref.ref(made))
        return made

    FunctionalTensor.__new__ = staticmethod(recorded)
    try:
        yield found
    finally:
        FunctionalTensor.__new__ = staticmethod(make)


def _set_by_norm_hooks(module: nn.Module) -> set[tuple[str, str]]:
    """Attributes that hooks of torch.nn.utils compute for every forward."""
    return {
        (path, str(getattr(hook, "name", None) or hook._tensor_name))
        for path, child in module.named_modules()
        for hook in child._forward_pre_hooks.values()
        if type(hook).__module__.startswith("torch.nn.utils")
        and (hasattr(hook, "name") or hasattr(hook, "_tensor_name"))
    }


_IGNORED = frozenset(nn.Module().__dict__) - {"training"} | {"_output_capturing_hooks_installed"}
"""Tracing restores what modules register. transformers installs hooks to collect outputs, which the graph returns."""
_HOOK = "hook "
_HERE = __name__.partition(".")[0]
DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Lists in which torch's recurrent layers keep their own parameters, which tracing replaces."""


def _state(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Snapshots of the attributes, buffers and parameters of a module and its submodules."""
    found: dict[tuple[str, str], Any] = {}
    for path, child in module.named_modules():
        for tensors in (child._parameters, child._buffers):
            found.update({(path, key): value for key, value in tensors.items()})
        ignored = _IGNORED.union(DERIVED if isinstance(child, nn.RNNBase) else ())
        own = {key: value for key, value in child.__dict__.items() if key not in ignored}
        own |= {
            f"{_HOOK}{number}": hook for key in FORWARD_HOOKS for number, hook in child.__dict__[key].items() if path
        }
        found.update({(path, key): snapshot(value, generator_states=True) for key, value in own.items()})
        for cls in type(child).__mro__:
            if cls.__module__.partition(".")[0] not in ("torch", "builtins", _HERE):
                found.update({(path, f"{cls.__name__}.{key}"): _class_data(value) for key, value in vars(cls).items()})
    return found


def _class_data(value: Any) -> Any:
    """A snapshot of a class attribute that a forward may count in; None for other values."""
    return snapshot(value) if isinstance(value, (bool, int, float, str, list, dict, set, deque)) else None
