"""From a bound module back to the unplanned one."""

from __future__ import annotations

import copy
from functools import partial
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

RUNNER = "_ogc_plan_runner"
"""The attribute of a bound module that runs its planned steps."""

FORWARD = "_ogc_plan_forward"
"""The attribute of a bound module that keeps the forward which the instance itself had when it was bound."""


class Bound:
    """The common base of the classes of bound modules (bound_module.py)."""


def _unbound(cls: type) -> type:
    """The class of the original of a bound module."""
    if is_parametrized(cls) and issubclass(cls.__bases__[0], Bound):  # made since the module was bound
        return remade(cls, _unbound(cls.__bases__[0]), {"__deepcopy__": _deepcopied})
    return cls.__mro__[
        cls.__mro__.index(Bound) + 1
    ]  # fully_shard puts a class of its own before that of a bound module


def is_parametrized(cls: type) -> bool:
    """Whether torch has made a class to parametrize tensors of one module."""
    return bool(getattr(cls.__dict__.get("__getstate__"), "__module__", "") == parametrize.__name__)


def remade(cls: type, base: type, more: dict[str, Any]) -> type:
    """The same class, that torch has made, of another base."""
    left_out = ("__dict__", "__weakref__", "__deepcopy__")
    own = {key: value for key, value in vars(cls).items() if key not in left_out}
    return type.__new__(type(cls), cls.__name__, (base,), {**own, **more})


def _deepcopied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """What torch gives a class that it makes: a copy that is no pickled one."""
    made: nn.Module = object.__new__(type(module))
    memo[id(module)] = made
    made.__dict__.update(copy.deepcopy(module.__dict__, memo))
    return made


def original(module: nn.Module) -> nn.Module:
    """The unplanned module behind a bound one, with the same parameters; any other module unchanged.

    What wraps the bound module's forward since it was bound is left out: it would run the plan.

    Args:
        module: any module.

    Returns:
        A module of the same class.

    Example:
        >>> trained = within_budget(torch.nn.Linear(4, 4), budget="60%")
        >>> original(trained).weight is trained.weight
        True
    """
    if not isinstance(module, Bound):
        return module
    made: nn.Module = object.__new__(_unbound(type(module)))
    made.__dict__.update(
        {key: value for key, value in module.__dict__.items() if key not in (RUNNER, FORWARD, "forward")}
    )
    if FORWARD in module.__dict__:
        made.__dict__["forward"] = method_of(made, module.__dict__[FORWARD])
    return made


def is_forward_of(module: nn.Module, forward: Any) -> bool:
    """Whether a forward that an instance has itself can be given to another instance: a method, or a partial call."""
    if isinstance(forward, partial):
        return bool(forward.args) and forward.args[0] is module
    return isinstance(forward, MethodType) and forward.__self__ is module


def method_of(module: nn.Module, forward: Any) -> Any:
    """The same method, or partial call, of another object."""
    if isinstance(forward, partial):
        return partial(forward.func, module, *forward.args[1:], **forward.keywords)
    return MethodType(forward.__func__, module)
