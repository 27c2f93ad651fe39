"""Lets a forward read tensors that ``functools.lru_cache`` keeps: they are constants of the step, read where they are.

What is memoised follows from the arguments of its function, so a tensor that is made again is equal to the one kept. A
memoised function that has not run for these arguments runs on real tensors while its caller is traced, as it would in
the first forward; nothing of a trace may stay in its memory.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from .. import torch_private
from ..errors import UnsupportedModuleError
from ..torch_private import TorchDispatchMode, pytree, schema_of
from .frozen_objects import FROZEN, MEMOISED
from .sources import is_skipped

_NESTING = 5
"""How deep the containers inside a memoised result are followed."""


def memoising(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The memoised functions that keep one of ``tensors``, or a container of one, as a result."""
    wanted = set(map(id, tensors))
    return [function for function in _memoised_functions() if _keeps(function, wanted)] if wanted else []


def _keeps(function: Any, wanted: set[int]) -> bool:
    """Whether one of the objects of these numbers is memoised, at most `_NESTING` - 1 containers deep."""
    holders: list[Any] = [function]
    for _ in range(_NESTING):
        inner = gc.get_referents(*holders)
        if not wanted.isdisjoint(map(id, inner)):
            return True
        holders = [found for found in inner if type(found) in (tuple, list, dict) and found]
    return False


def _memoised_functions() -> list[Any]:
    found = gc.get_referrers(MEMOISED)  # faster than to look at all objects
    return [each for each in found if type(each) is MEMOISED] + FROZEN.memoised()


def _memoised_code() -> set[CodeType]:
    """The code of the memoised functions that exist outside of torch and the standard library."""
    inner = [function.__wrapped__ for function in _memoised_functions() if not is_skipped(function.__module__ or "")]
    return {function.__code__ for function in inner if isinstance(function, FunctionType)}


class _Lifting(TorchDispatchMode):  # type: ignore[misc]
    """Makes memoised tensors among the arguments of calls constants of the trace."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._lifted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call on constants; one that writes keeps real tensors, and is refused."""
        kwargs = kwargs or {}
        if isinstance(func, torch_private.OpOverload) and not schema_of(func).is_mutable:
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._constant, (args, kwargs))
        return func(*args, **kwargs)

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        if not torch_private.is_plain(tensor):
            return tensor
        if id(tensor) not in self._lifted:
            kept = bool(memoising([tensor])) and not tensor.requires_grad
            self._lifted[id(tensor)] = tensor, torch.ops.aten.lift_fresh.default(tensor) if kept else tensor
        return self._lifted[id(tensor)][1]


def with_memoised_tensors(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` with the memoised tensors that it reads as constants; what makes them runs outside of the trace.

    It raises UnsupportedModuleError for a memoised function that draws random numbers, as only a first step would.
    """
    codes = _memoised_code()
    open_calls: list[tuple[FrameType, AbstractContextManager[None]]] = []
    draws: list[str] = []
    states: list[list[bytes]] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes and not _takes_tensors(frame):
            open_calls.append((frame, torch_private.outside_of_modes()))
            open_calls[-1][1].__enter__()
            states.append(_generator_states())
        elif event == "return" and open_calls and open_calls[-1][0] is frame:
            before = states.pop()
            if before != _generator_states()[: len(before)]:
                draws.append(frame.f_code.co_name)
            open_calls.pop()[1].__exit__(None, None, None)

    def lifted(*args: Any, **kwargs: Any) -> Any:
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            with _Lifting():
                result = forward(*args, **kwargs)
        finally:
            sys.setprofile(before)
        for name in draws:
            raise UnsupportedModuleError(
                f"the memoised function {name!r} draws random numbers in the first forward alone",
                remedy="call it once before the module is planned",
            )
        return result

    return lifted


def backward_with_memoised_tensors() -> AbstractContextManager[None]:
    """Trace the backward inside with memoised tensors as constants: autograd saves those that a forward uses."""
    differentiate = torch.autograd.grad

    def lifted(*args: Any, **kwargs: Any) -> Any:
        with _Lifting():
            return differentiate(*args, **kwargs)

    return torch_private.patched(torch.autograd, "grad", lifted)


def _generator_states() -> list[bytes]:
    """The states of the default generators: that of the CPU, and those of cards once CUDA is in use.

    Those of cards stand behind others while a forward is traced, which pass `get_state` on.
    """
    cards = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    with torch_private.outside_of_modes():
        return [generator.get_state().numpy().tobytes() for generator in (torch.default_generator, *cards)]


def _takes_tensors(frame: FrameType) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(list(frame.f_locals.values())))
