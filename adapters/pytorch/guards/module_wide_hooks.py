"""Hooks of all modules (`register_module_forward_hook`): those of submodules are traced with the forward, and guarded.

Those of the module that is bound run around its planned step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torch import nn

from .. import torch_private
from ..errors import UnsupportedModuleError


def hooks_of_submodules(root: nn.Module) -> tuple[Any, ...]:
    """The hooks of all modules that run inside ``root``, without PyTorch's own, which observe and change nothing."""
    if not root._modules:
        return ()
    return tuple(
        [hook for hooks in torch_private.HOOKS_OF_ALL_MODULES for hook in hooks.values() if not _is_of_torch(hook)]
    )


@contextmanager
def module_wide_hooks_inside(root: nn.Module) -> Iterator[None]:
    """Call the hooks of all modules that are registered now for submodules of ``root`` only, and PyTorch's own not.

    Raises UnsupportedModuleError for a backward hook, and for one that may have a state of its own.
    """
    _refuse_unseen(root)
    saved = [(hooks, dict(hooks)) for hooks in torch_private.FORWARD_HOOKS_OF_ALL_MODULES if hooks]
    for hooks, own in saved:
        hooks.update({key: _not_called_for(root, hook) for key, hook in own.items()})
    try:
        yield
    finally:
        for hooks, own in saved:
            hooks.update(own)


def _not_called_for(root: nn.Module, hook: Callable[..., Any]) -> Callable[..., Any]:
    observes = _is_of_torch(hook)
    return lambda module, *values: None if observes or module is root else hook(module, *values)


def _refuse_unseen(root: nn.Module) -> None:
    forward = [hook for hooks in torch_private.FORWARD_HOOKS_OF_ALL_MODULES for hook in hooks.values()]
    for hook in hooks_of_submodules(root):
        if isinstance(hook, FunctionType) and any(hook is one for one in forward):
            continue
        kind = "has a state of its own" if any(hook is one for one in forward) else "runs in the backward"
        raise UnsupportedModuleError(
            f"hook {getattr(hook, '__qualname__', type(hook).__name__)!r} of all modules {kind}, and a planned step of "
            f"{type(root).__name__} would not run it for submodules",
            remedy="remove it by the handle that registered it, or register it on the modules around the bound one",
        )


def _is_of_torch(hook: Any) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return bool(home.partition(".")[0] == "torch")
