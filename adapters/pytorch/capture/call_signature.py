"""Checks the arguments of a call against the signature of a forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from ....planner.errors import AdapterError

PASS_THEM = "pass what its forward takes: in args by position, in kwargs by name"


def signature_error(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Which arguments of the forward of ``module`` are missing or too many; None if they fit."""
    name = f"{type(module).__name__}.forward"
    try:
        signature = inspect.signature(type(module).forward)
    except ValueError:  # a built-in has no signature
        return None
    try:
        signature.bind(module, *args, **kwargs)
        return None
    except TypeError as error:
        fault = str(error)
    own = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    try:
        given = signature.bind_partial(module, *args, **kwargs).arguments
    except TypeError:
        shown = inspect.Signature(own[1:])
        return f"{name}{shown} does not take these arguments: {fault}"
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [p.name for p in own if p.default is p.empty and p.kind not in variable and p.name not in given]
    return f"{name} needs {' and '.join(map(repr, missing))}, missing from the arguments"


def is_untraceable(leaf: Any) -> bool:
    """Whether an argument leaf has a type that cannot be traced."""
    return type(leaf).__module__.partition(".")[0] not in ("torch", "builtins")


def untraceable_argument(name: str, leaf: Any) -> AdapterError:
    """The error for an argument leaf that `is_untraceable`."""
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
    remedy = "pass tensors, numbers, texts and None in tuples, lists and dicts, or keep it in the module"
    if kind == "numpy.ndarray":
        remedy = "pass torch.from_numpy(...) of it, and convert nothing in the forward"
    elif kind.startswith("numpy."):
        remedy = "pass float(...) or int(...) of it, or a tensor"
    return AdapterError(f"argument {name} is a {kind}, which a plan cannot take", remedy=remedy)
