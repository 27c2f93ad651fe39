"""Autocast as a step is traced under it: what a plan depends on of it, and how tracing does as eager does.

The casts are calls of the traced graph, and values of the plan like any others. Eager casts a parameter
once per autocast region and keeps the result in a cache, so that the gradients of its uses are summed in
the lower precision; tracing would switch that cache off, and run the backward under autocast too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import fx, nn

from .. import torch_private

DEVICE_TYPES = ("cpu", "cuda")


class Mode(NamedTuple):
    """Autocast of one device type: whether it is on, and the type it casts to."""

    device_type: str
    enabled: bool
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.device_type} to {str(self.dtype).removeprefix('torch.')}"


class AutocastState(NamedTuple):
    """The autocast state of the calling thread.

    ``cache``: casts of parameters are kept; ``within``: an autocast context is open, at whose end (and not
    at the end of contexts inside it) that cache is cleared.
    """

    modes: tuple[Mode, ...]
    cache: bool
    within: bool

    @classmethod
    def now(cls) -> AutocastState:
        """The present state."""
        modes = [Mode(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICE_TYPES]
        torch.autocast_increment_nesting()
        within = torch.autocast_decrement_nesting() > 0
        return cls(tuple(modes), torch.is_autocast_cache_enabled(), within)

    @property
    def enabled(self) -> bool:
        """Whether some device type is cast."""
        return any(mode.enabled for mode in self.modes)

    def seen_by(self, enters_autocast: bool) -> AutocastState:
        """What a module's step depends on of the state: all of it only where its forward enters autocast itself."""
        if enters_autocast:
            return self
        return AutocastState(tuple(m for m in self.modes if m.enabled), self.cache or not self.enabled, False)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What runs inside runs in this state again, as far as contexts can bring it about."""
        with ExitStack() as stack:
            for mode in self.modes:
                if self.within or self.enabled or mode not in AutocastState.now().modes:
                    kind, enabled, dtype = mode
                    stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=self.cache))
            yield

    def __str__(self) -> str:
        words = [str(mode) for mode in self.modes if mode.enabled]
        text = f"autocast on {' and '.join(words)}" if words else "no autocast"
        return text + ("" if self.cache else " without its cache") + self._context

    @property
    def _context(self) -> str:
        within = ", a disabled autocast context is open" if self.within and not self.enabled else ""
        defaults = [str(mode) for mode in self.modes if not mode.enabled]
        return within + (f" (by default {', '.join(defaults)})" if defaults else "")


class Regions:
    """Whether a forward entered autocast itself."""

    entered = False


@contextmanager
def traced_as_eager(module: nn.Module) -> Iterator[Regions]:
    """Trace ``module`` with the cache of casts as the caller has it, and its backward outside autocast."""
    cache, regions = torch.is_autocast_cache_enabled(), Regions()
    inside: list[bool] = []  # the cache settings of tracing, while the forward runs

    def enter(*_: object) -> None:
        inside.append(torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(cache)
        for parameter in module.parameters():
            if not parameter.is_leaf:  # tracing hands out results of its own, of which no casts are kept
                parameter.detach_().requires_grad_()

    def leave(*_: object) -> None:
        if inside:  # a hook before ours may have raised
            torch.set_autocast_cache_enabled(inside.pop())

    def entered() -> None:
        regions.entered = regions.entered or bool(inside)

    before = module.register_forward_pre_hook(enter)
    after = module.register_forward_hook(leave, always_call=True)
    try:
        with torch_private.backward_without_autocast(), torch_private.called_on_entering_autocast(entered):
            yield regions
    finally:
        before.remove()
        after.remove()
        torch.clear_autocast_cache()  # of traced tensors; a region that is open makes its other casts again


def hides_autocast(module: nn.Module) -> bool:
    """Whether ``module`` is a graph whose calls run without its forward, and with autocast somewhere."""
    if not isinstance(module, fx.GraphModule):
        return False
    return AutocastState.now().enabled or any("autocast" in str(node.target) for node in module.graph.nodes)
