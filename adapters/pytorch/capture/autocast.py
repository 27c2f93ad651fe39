"""Traces autocast as eager training runs it.

Eager training casts a parameter once for each autocast region and caches the result, so that the gradients of its uses
are summed in the lower precision. Tracing would switch that cache off, and would run the backward under autocast too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import fx, nn

from .. import torch_private
from ..guards.autocast_state import AutocastState


@contextmanager
def eager_autocast(module: nn.Module, on_enter: Callable[[], None]) -> Iterator[None]:
    """Trace ``module`` with the caller's cache of casts, and its backward outside of autocast.

    ``on_enter`` is called whenever the forward enters autocast itself.
    """
    cache = torch.is_autocast_cache_enabled()
    settings: list[bool] = []  # the tracer's cache setting, while the forward runs

    def enter(*_: object) -> None:
        settings.append(torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(cache)
        for parameter in module.parameters():
            if not parameter.is_leaf:  # the cache keeps casts of leaves only; tracing hands out results of calls
                parameter.detach_().requires_grad_()

    def leave(*_: object) -> None:
        if settings:  # empty if an earlier hook raised
            torch.set_autocast_cache_enabled(settings.pop())

    try:
        with (
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),
            torch_private.backward_without_autocast(),
            torch_private.called_on_entering_autocast(lambda: on_enter() if settings else None),
        ):
            yield
    finally:
        torch.clear_autocast_cache()  # drops casts of traced tensors; an open region makes its own casts again


def hides_autocast(module: nn.Module) -> bool:
    """Whether ``module`` is a graph module under autocast: its calls run without its forward, which sets the cache."""
    if not isinstance(module, fx.GraphModule):
        return False
    return AutocastState.now().enabled or any("autocast" in str(node.target) for node in module.graph.nodes)
