"""Refuses tensors that a forward takes from a list, a global, a closure: a plan would keep the ones of its example.

Torch itself objects to most of them where they meet a tensor of the trace. A call on nothing else, such as twice a
number of a global, it takes for a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import torch_private
from ..torch_private import TorchDispatchMode
from .memoised_tensors import memoising

_LIFT = torch.ops.aten.lift_fresh.default


class TakenFromElsewhereError(Exception):
    """A call takes a tensor that is none of the step's."""

    def __init__(self, call: str, shape: str) -> None:
        super().__init__(f"{call} takes a tensor of shape {shape} that is none of the step's")
        self.call, self.shape = call, shape


class _Seeing(TorchDispatchMode):  # type: ignore[misc]
    """Looks at the arguments of every call."""

    supports_higher_order_operators = True

    def __init__(self, is_old: Callable[[Any], bool]) -> None:
        super().__init__()
        self._is_old = is_old

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call. Raises TakenFromElsewhereError."""
        if func is not _LIFT:  # of a tensor that the forward has just made
            for argument in args:
                for value in argument if type(argument) in (list, tuple) else (argument,):
                    if torch_private.is_plain(value) and self._is_foreign(value):
                        raise TakenFromElsewhereError(str(func), str(tuple(value.shape)))
        return func(*args, **(kwargs or {}))

    def _is_foreign(self, tensor: torch.Tensor) -> bool:
        return self._is_old(tensor) and not memoising([tensor])


def without_tensors_from_elsewhere(forward: Callable[..., Any], is_old: Callable[[Any], bool]) -> Callable[..., Any]:
    """``forward`` raising TakenFromElsewhereError for a tensor older than the trace, unless it is memoised."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        with _Seeing(is_old):
            return forward(*args, **kwargs)

    return watched
