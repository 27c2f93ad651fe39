"""Guards hooks of leaves that get no gradient in a backward: eager training does not call them, autograd here would.

A node of a planned step has edges to all leaves that may get a gradient in its part, and autograd follows each of them
even with nothing to accumulate. So each hook of such a leaf is wrapped in a guard, which calls it only when a gradient
arrives, also one from other calls. Guards stay; they change nothing when every leaf gets its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_private


@dataclass(eq=False, slots=True)
class _Came:
    """A hook that notes whether the accumulation that is going on has a gradient."""

    now: bool = False

    def __call__(self, gradient: torch.Tensor | None) -> None:
        self.now = gradient is not None


@dataclass(eq=False, slots=True)
class _Guard:
    """A user's hook, called only when a gradient arrives. ``came`` tells it for hooks that are given the leaf."""

    hook: Callable[[Any], Any]
    came: _Came | None = None

    def __call__(self, value: Any) -> Any:
        there = value is not None if self.came is None else self.came.now
        return self.hook(value) if there else None


def guard_hooks(leaf: torch.Tensor) -> None:
    """Wrap the hooks that a leaf has now in guards."""
    before, after = torch_private.hooks_of(leaf)
    if after and not all(isinstance(hook, _Guard) for hook in after.values()):
        came = next((hook for hook in before.values() if isinstance(hook, _Came)), None)
        if came is None:
            came = _Came()
            leaf.register_hook(came)
        _guard(after, came)
    _guard(before, None)


def _guard(hooks: dict[int, Any], came: _Came | None) -> None:
    for key, hook in hooks.items():
        if not isinstance(hook, _Guard | _Came):
            hooks[key] = _Guard(hook, came)
