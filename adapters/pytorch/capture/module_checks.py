"""Refuses, before anything is traced, modules that are not in training or of which tracing would miss something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ....planner.errors import AdapterError
from .. import torch_private
from ..errors import UnsupportedModuleError
from ..guards.snapshots import slots_of
from ..torch_private import pytree
from ..unbind import RUNNER, is_forward_of
from .autocast import hides_autocast
from .tensor_attributes import attributes_of

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes in which a module keeps its hooks."""
REGISTRIES = frozenset(key for key, value in nn.Module().__dict__.items() if isinstance(value, dict))
"""The attributes in which a module keeps parameters, buffers, submodules and all that is registered on it."""

_COMPILED = "is compiled (torch.compile), and a plan would run its calls one by one"
_COMPILE_LATER = (
    "plan modules that are not compiled; within_budget(model, budget=..., compile=True) compiles one within its budget"
)


def tensors_of(module: nn.Module, leaves: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among argument leaves, and a module's parameters, buffers and tensor attributes."""
    arguments = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [*arguments, *module.parameters(), *module.buffers(), *attributes_of(module).values()]


def check_module(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Raise AdapterError or UnsupportedModuleError for a module that cannot be planned as it is."""
    if not isinstance(module, nn.Module):
        raise AdapterError(f"{module!r} is no torch.nn.Module", remedy="wrap it in a module")
    name = type(module).__name__
    if not isinstance(args, tuple):
        raise AdapterError(f"args is a {type(args).__name__}, not a tuple", remedy="write (x,) for one argument")
    if not module.training:
        raise AdapterError(f"{name} is in evaluation mode", remedy="call .train() on it before planning its training")
    for tensor_name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise AdapterError(
                f"{tensor_name!r} of {name} has no shape yet: the module that holds it is lazy",
                remedy="run one forward before planning",
            )
    if any(tensor.device.type == "meta" for tensor in tensors_of(module, pytree.tree_leaves(args))):
        raise AdapterError(f"{name} is on the meta device", remedy="move it to where it will train")
    if hides_autocast(module):
        raise UnsupportedModuleError(
            f"{name} is a traced graph, whose casts under autocast would not be those of eager",
            remedy="plan the module that it was traced from",
        )
    check_forward(module)
    if torch_private.is_sharded(module) and any(
        type(tensor.data) is not torch.Tensor for tensor in module.parameters()
    ):
        raise AdapterError(
            f"the parameters of {name} are shards (fully_shard) outside of its steps",
            remedy="bind it without arguments, within_budget(model, budget=...): it is planned in its first step",
        )
    for path, child in module.named_modules():
        _check_submodule(path, child)


def check_forward(module: nn.Module) -> None:
    """Raise UnsupportedModuleError if the module itself has a forward that a bound one could not have.

    Raises an error if it is a wrapper that runs another one compiled, or in data parallel.
    """
    _refuse_wrapper(module)
    forward = module.__dict__.get("forward")
    if forward is not None and not is_forward_of(module, forward):
        raise UnsupportedModuleError(
            f"the forward of {type(module).__name__} was replaced by a {type(forward).__name__} that is no method of "
            "it",
            remedy="bind it before its forward is replaced, or replace it by types.MethodType(function, module)",
        )


def _check_submodule(path: str, child: nn.Module) -> None:
    where = f"submodule {path!r}" if path else type(child).__name__
    if isinstance(child, torch.jit.ScriptModule):
        raise UnsupportedModuleError(
            f"{where} is scripted (torch.jit), and a plan could not see what it reads",
            remedy="plan with the module that it was scripted from",
        )
    if child._compiled_call_impl is not None or torch_private.is_compiled(child):
        raise UnsupportedModuleError(f"{where} {_COMPILED}", remedy=_COMPILE_LATER)
    if RUNNER in child.__dict__:
        raise UnsupportedModuleError(
            f"{where} is bound to a plan already", remedy="bind the original, or the whole, but not both"
        )
    slotted = next((cls for cls in reversed(type(child).__mro__) if slots_of(cls)), None)
    if slotted is not None:
        raise UnsupportedModuleError(
            f"{where} keeps {slots_of(slotted)[0]!r} in a slot, where a change would not be seen",
            remedy=f"leave __slots__ out of {slotted.__name__}",
        )
    if path and torch_private.is_sharded(child):
        raise UnsupportedModuleError(
            f"{where} is sharded on its own (fully_shard), so its parameters are not there for the whole step",
            remedy="bind each sharded submodule by itself, before or after it is sharded, and not the whole",
        )
    if path and (child._backward_hooks or child._backward_pre_hooks):
        raise UnsupportedModuleError(
            f"{where} has a backward hook, which a planned step would not run",
            remedy="remove it by the handle that registered it, or bind the submodules that have none",
        )
    hooks = [hook for name in HOOKS for hook in child.__dict__[name].values()]
    # Forward hooks of submodules are traced with the forward; the module's own run around the step.
    homes = [getattr(hook, "__module__", None) or type(hook).__module__ for hook in hooks]
    if not path and any(home.startswith("torch.nn.utils") for home in homes):
        raise UnsupportedModuleError(
            f"{where} has a norm of torch.nn.utils, whose hook would run outside of the step",
            remedy="use torch.nn.utils.parametrizations, or wrap the module in another",
        )


def _refuse_wrapper(module: nn.Module) -> None:
    """Raise an error for a module that runs another one compiled, or in data parallel."""
    if torch_private.is_compiled(module):
        raise UnsupportedModuleError(f"the module {_COMPILED}", remedy=_COMPILE_LATER)
    within = "model.module = within_budget(model.module, ...)"
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise AdapterError(
            "DistributedDataParallel reduces gradients among processes, which is no part of a plan",
            remedy=f"bind what it wraps: {within}, or before it is wrapped",
        )
    if isinstance(module, nn.DataParallel):
        raise AdapterError(
            "DataParallel copies what it wraps for each step, which is no part of a plan",
            remedy="bind what it wraps and train that: model = within_budget(model.module, ...)",
        )
