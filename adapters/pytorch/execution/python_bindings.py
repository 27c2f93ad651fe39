"""Functions of torch's Python interface that make the very call of an operator, in less time than ``torch.ops`` does.

A call by ``torch.ops`` passes its arguments through a generic stack. A function such as ``torch.relu`` was generated
for its operator and passes them on as they are. Which overload it calls depends on the arguments, so each is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, NamedTuple

import torch

from .. import torch_private
from ..torch_private import OpOverload, TorchDispatchMode

_HOMES = (torch_private.VariableFunctions, torch_private.nn_functions, torch.Tensor)
"""Where the functions are, by the names of their operators."""
_GENERATED = (BuiltinFunctionType, MethodDescriptorType)
"""What torch generated for an operator. A function written in Python may do more after its first call."""
_OTHER_NAMES = {"_to_copy": "to"}
_COPY = torch.ops.aten._to_copy.default


class Binding(NamedTuple):
    """A function, and the keyword arguments that say what holds anyway and are left out."""

    function: Callable[..., Any]
    left_out: frozenset[str]


def binding(target: Any, args: Any, kwargs: Any) -> Binding | None:
    """What calls ``target`` with these arguments, fake or real ones, and nothing else; None if nothing does.

    Nothing is computed: the call is stopped where torch would choose its kernel.
    """
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    left_out = _said_anyway(target, args, kwargs)
    kwargs = {key: value for key, value in kwargs.items() if key not in left_out}
    expected = list(_values(target, args, kwargs))
    name = target.overloadpacket.__name__
    for home in _HOMES:
        function = getattr(home, _OTHER_NAMES.get(name, name), None)
        if isinstance(function, _GENERATED) and _is_same(_first_call(function, args, kwargs), target, expected):
            return Binding(function, left_out)
    return None


def _said_anyway(target: OpOverload, args: Any, kwargs: Any) -> frozenset[str]:
    """Of a copy to another type, the layout and the device, if they are those of the tensor."""
    if target is not _COPY:
        return frozenset()
    return frozenset(key for key in ("layout", "device") if key in kwargs and kwargs[key] == getattr(args[0], key))


class _CallReachedError(Exception):
    """A call that was tried has reached the choice of its kernel."""


class _FirstCall(TorchDispatchMode):  # type: ignore[misc]
    """Stops at the first call and keeps it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.call = func, args, kwargs or {}
        raise _CallReachedError


def _first_call(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any, Any] | None:
    """The first operator that a function calls, with its arguments; None if it does not take the arguments."""
    mode = _FirstCall()
    try:
        with torch_private.WithoutAutocast(), torch.no_grad(), mode:
            function(*args, **kwargs)
    except _CallReachedError:
        return mode.call
    except (TypeError, ValueError, RuntimeError, IndexError):  # the arguments are not those of the function
        return None
    return None


def _is_same(call: tuple[Any, Any, Any] | None, target: OpOverload, expected: list[Any]) -> bool:
    return call is not None and call[0] is target and all(map(_equal, _values(*call), expected))


def _values(target: OpOverload, args: Any, kwargs: Any) -> Iterator[Any]:
    """The value of every argument of an operator, in their order, defaults included."""
    for position, argument in enumerate(torch_private.schema_of(target).arguments):
        if position < len(args):
            yield args[position]
        else:
            yield kwargs.get(argument.name, argument.default_value)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)
