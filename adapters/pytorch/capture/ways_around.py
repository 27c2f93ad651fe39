"""Where a forward does what no plan can hold, and which of its submodules can be planned around it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from torch import nn

_SHOWN = 3


def place_in(module: nn.Module, error: BaseException) -> tuple[str, nn.Module]:
    """The submodule whose code ran when torch raised, and its path."""
    paths = {id(child): (path, child) for path, child in module.named_modules()}
    found = ("", module)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = paths.get(id(frame.f_locals.get("self")), found)
    return found


def way_around(module: nn.Module, culprit: nn.Module) -> str:
    """How to bind the largest submodules that contain no module of the culprit's class; empty if there are none."""
    kind = type(culprit) if culprit is not module else None
    parts = dict.fromkeys(_parts(module, "model", kind))
    named = sorted(parts, key=lambda part: -sum(parameter.numel() for parameter in part[1].parameters()))
    if not named:
        return ""
    lines = [f"{name} = within_budget({name}, budget=...)" for name, _ in named[:_SHOWN]]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return f"; or plan what is around it, each part within a budget of its own: {'; '.join(lines)}{more}"


def _parts(module: nn.Module, name: str, kind: type[nn.Module] | None) -> Iterator[tuple[str, nn.Module]]:
    """The largest submodules that have submodules, parameters and a forward, and no module of class ``kind`` inside."""
    for key, child in module.named_children():
        inner = f"{name}.{key}" if key.isidentifier() else f"{name}[{key if key.isdecimal() else repr(key)}]"
        trains = any(parameter.requires_grad for parameter in child.parameters())
        composed = type(child).forward is not nn.Module.forward and len(child._modules) > 0
        if trains and composed and not any(type(part) is kind for part in child.modules()):
            yield inner, child
        else:
            yield from _parts(child, inner, kind)
