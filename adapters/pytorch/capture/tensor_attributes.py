"""Tensors that a module keeps as plain attributes: inputs of the step, read at each step as in eager training.

For tracing they become buffers under their dotted names; a trace would take them for constants otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from .. import torch_private


@contextmanager
def attributes_as_buffers(module: nn.Module) -> Iterator[None]:
    """Make plain tensor attributes of a module and its submodules buffers while inside.

    Attributes that take a gradient, or that share memory with a parameter, a buffer or another attribute, stay as
    they are; a forward that reads one cannot be traced.
    """
    taken = {_key(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    moved: list[tuple[nn.Module, str, torch.Tensor]] = []
    for child in module.modules():
        for key, value in child.__dict__.items():
            plain = type(value) is torch.Tensor and not value.requires_grad and value.layout is torch.strided
            if plain and taken.setdefault(_key(value), value) is value:
                moved.append((child, key, value))
    for child, key, value in moved:
        del child.__dict__[key]
        child._buffers[key] = value
    try:
        yield
    finally:
        for child, key, value in moved:
            child._buffers.pop(key, None)
            child.__dict__[key] = value


def _key(tensor: torch.Tensor) -> int:
    return torch_private.storage_key(tensor) if tensor.layout is torch.strided else id(tensor)


def attributes_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """The plain tensor attributes of a module and its submodules, by dotted name."""
    return {
        f"{path}.{key}".lstrip("."): value
        for path, child in module.named_modules()
        for key, value in child.__dict__.items()
        if isinstance(value, torch.Tensor)
    }
