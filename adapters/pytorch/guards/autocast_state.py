"""The autocast state that a step is traced and run under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

DEVICE_TYPES = ("cpu", "cuda")


class Mode(NamedTuple):
    """Autocast of one device type: whether it is on, and the dtype it casts to."""

    device_type: str
    enabled: bool
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.device_type} to {str(self.dtype).removeprefix('torch.')}"


class AutocastState(NamedTuple):
    """The autocast state of the calling thread.

    ``cache``: casts of parameters are cached. ``within``: an autocast context is open; the cache is cleared when the
    outermost one ends.
    """

    modes: tuple[Mode, ...]
    cache: bool
    within: bool

    @classmethod
    def now(cls) -> AutocastState:
        """The current state."""
        modes = [Mode(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICE_TYPES]
        torch.autocast_increment_nesting()
        within = torch.autocast_decrement_nesting() > 0
        return cls(tuple(modes), torch.is_autocast_cache_enabled(), within)

    @classmethod
    def now_seen_by(cls, enters_autocast: bool) -> AutocastState:
        """`seen_by` of the current state, quick where there is no autocast."""
        if enters_autocast or any(map(torch.is_autocast_enabled, DEVICE_TYPES)):
            return cls.now().seen_by(enters_autocast)
        return NO_AUTOCAST

    @property
    def enabled(self) -> bool:
        """Whether autocast is on for some device type."""
        return any(mode.enabled for mode in self.modes)

    def seen_by(self, enters_autocast: bool) -> AutocastState:
        """The part of the state that a module's step depends on: all of it only if its forward enters autocast."""
        if enters_autocast:
            return self
        return AutocastState(tuple(m for m in self.modes if m.enabled), self.cache or not self.enabled, False)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter contexts that restore this state as far as contexts can."""
        with ExitStack() as stack:
            for mode in self.modes:
                if self.within or self.enabled or mode not in AutocastState.now().modes:
                    kind, enabled, dtype = mode
                    stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=self.cache))
            yield

    def __str__(self) -> str:
        enabled = [str(mode) for mode in self.modes if mode.enabled]
        defaults = [str(mode) for mode in self.modes if not mode.enabled]
        text = f"autocast on {' and '.join(enabled)}" if enabled else "no autocast"
        text += "" if self.cache else " without its cache"
        text += ", a disabled autocast context is open" if self.within and not self.enabled else ""
        return text + (f" (by default {', '.join(defaults)})" if defaults else "")


NO_AUTOCAST = AutocastState((), True, False)
"""What a step sees of any state in which autocast is off, unless its forward enters autocast."""
