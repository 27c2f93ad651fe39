"""The module that trains by a plan: the original in every respect except how its training step runs."""

from __future__ import annotations

import copy
import inspect
from abc import ABCMeta
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from ....planner.errors import AdapterError
from .. import torch_private
from ..capture.module_checks import check_forward
from ..execution.attachment import InputMismatchError
from ..execution.executor import Executor
from ..unbind import FORWARD, RUNNER, Bound, is_parametrized, method_of, original, remade
from .pickled_plan import OnePlan
from .plans import NOT_PLANNED, Plans

Runner = OnePlan | Plans
"""Runs the training steps of one bound module; pickled, it takes its plans along."""


def _refuse_transforms(module: nn.Module) -> None:
    """Raise InputMismatchError inside torch.func's transforms, forward-mode differentiation, a trace, an export, or
    where forwards share parametrized tensors.
    """
    if torch_private.inside_functorch():
        found = "inside a transform of torch.func (vmap, grad, jvp, ...)"
    elif torch_private.differentiates_forward():
        found = "under forward-mode differentiation (torch.autograd.forward_ad), which it has no rule for"
    elif torch.jit.is_tracing():
        found = "inside torch.jit.trace"
    elif torch.compiler.is_exporting():
        found = "inside torch.export"
    elif torch_private.caches_parametrizations() and any(map(parametrize.is_parametrized, module.modules())):
        found = "inside parametrize.cached(), which shares what its parametrizations compute among forwards"
    else:
        return
    raise InputMismatchError(
        f"a planned step cannot run {found}",
        remedy="give it ogc_plan.adapters.pytorch.original(module), of the same parameters, or call .eval() before",
    )


def _step(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _refuse_transforms(module)
    return module.__dict__[RUNNER](module, args, kwargs)


_uncompiled_step: Any = torch.compiler.disable(_step, reason="a planned step runs as it was planned")


class _Planned(Bound):
    """Mixed into the class of a bound module; training calls run the plan, all others the original."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Keep from the planned class what it does with its subclasses: to others a bound module has its class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The planned step in training mode with gradients on, otherwise the original forward."""
        planned = RUNNER in self.__dict__  # a slice of a Sequential has none
        if planned and self.training and torch.is_grad_enabled():  # type: ignore[attr-defined]
            result = _uncompiled_step(self, args, kwargs)
            if result is not NOT_PLANNED:
                return result
        if FORWARD in self.__dict__:
            return self.__dict__[FORWARD](*args, **kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def extra_repr(self) -> str:
        """That of the planned class, and that it trains by a plan."""
        own: str = super().extra_repr()  # type: ignore[misc]
        if RUNNER not in self.__dict__:
            return own
        told = f"ogc_plan: {self.__dict__[RUNNER].outcome}"
        return told if not own else f"{own}\n{told}" if "\n" in own else f"{own}, {told}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = self._bound_like(copy.deepcopy(original(self), memo))
        if "forward" in self.__dict__:  # a wrapper
            memo[id(self)] = made
            made.__dict__["forward"] = copy.deepcopy(self.__dict__["forward"], memo)
        return made

    def __copy__(self) -> Any:
        made = self._bound_like(copy.copy(original(self)))
        if "forward" in self.__dict__:
            made.__dict__["forward"] = self.__dict__["forward"]
        return made

    def _bound_like(self, copied: nn.Module) -> nn.Module:
        runner = self.__dict__.get(RUNNER)
        return copied if runner is None else bound_by(copied, runner.of_copy)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The original's reduction, with the runner, which takes its plans along as text."""
        reduced, runner = original(self).__reduce_ex__(protocol), self.__dict__.get(RUNNER)
        if not isinstance(reduced, tuple) or any(part is not None for part in reduced[3:]):
            raise AdapterError(
                f"a planned {type(self).__name__} cannot be pickled: its class has a way of its own",
                remedy="save its state_dict(), and bind again after loading",
            )
        make, given, *state = reduced
        if runner is None:
            return _called, (make, given), *state
        return _unpickled, (make, given), (state[0] if state else None, runner)

    def __setstate__(self, state: tuple[Any, Runner]) -> None:
        own, runner = state
        if hasattr(super(), "__setstate__"):
            super().__setstate__(own or {})  # type: ignore[misc]
        self.__dict__[RUNNER] = runner


def _called(make: Callable[..., nn.Module], given: tuple[Any, ...]) -> nn.Module:
    """A plain module. (Pickle protocol 2 lets only an object's own class make it.)"""
    return make(*given)


def _unpickled(make: Callable[..., nn.Module], given: tuple[Any, ...]) -> nn.Module:
    """An empty bound module; `__setstate__` fills it."""
    plain = make(*given)
    module: nn.Module = object.__new__(_class_of(type(plain)))
    module.__dict__.update(plain.__dict__)
    return module


def bound(module: nn.Module, executor: Executor) -> nn.Module:
    """`bound_by` one plan, whatever the arguments are."""
    return bound_by(module, lambda made: OnePlan(executor.plan, executor, made))


def bound_by(module: nn.Module, runner_of: Callable[[nn.Module], Runner]) -> nn.Module:
    """A module of the same class that shares parameters, buffers, submodules and hooks with ``module``.

    ``runner_of`` makes the runner of its training steps. Raises AdapterError if its class cannot be derived from.
    """
    check_forward(module)
    made: nn.Module = object.__new__(_class_of(type(module)))
    made.__dict__.update(module.__dict__)
    if "forward" in module.__dict__:
        made.__dict__[FORWARD] = method_of(made, made.__dict__.pop("forward"))
    torch_private.share_distributed_state(module, made)
    made.__dict__[RUNNER] = runner_of(made)
    return made


def _class_of(cls: type[nn.Module]) -> type[nn.Module]:
    if is_parametrized(cls):  # outermost, where torch looks for it to remove it
        return remade(cls, _class_of(cls.__bases__[0]), {})
    namespace = {"__module__": cls.__module__, "forward": _forward_like(cls)}
    # Past the metaclass's own making of classes, which may register or change them, but for what `ABCMeta` needs.
    make = ABCMeta if isinstance(cls, ABCMeta) else type
    try:
        return make.__new__(type(cls), cls.__name__, (_Planned, cls), namespace)
    except TypeError as error:
        raise AdapterError(
            f"no class can be derived from {cls.__name__}: {error}", remedy="wrap the module in a plain one"
        ) from error


def _forward_like(cls: type[nn.Module]) -> Callable[..., Any]:
    """The bound forward with the signature of ``cls``, from which trainers learn what to pass and which are labels.

    It has no ``__wrapped__``: code that unwraps a forward would bypass the plan.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _Planned.forward(self, *args, **kwargs)

    with suppress(ValueError):  # a built-in shows no signature
        forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]
    return forward


def runner_of(module: nn.Module) -> Runner:
    """The runner of a bound module. Raises AdapterError for any other."""
    runner = module.__dict__.get(RUNNER)
    if runner is None:
        raise AdapterError(f"{type(module).__name__} is not bound to a plan", remedy="call bind or within_budget on it")
    made: Runner = runner
    return made
