"""The bytes that lie there before a step: whole storages, of which a parameter may be a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .. import torch_private

KINDS = ("parameter", "buffer", "attribute", "input")


def stationary_nbytes(
    module: nn.Module, named: Sequence[tuple[str, str, int]], leaves: Sequence[Any]
) -> dict[str, int]:
    """Bytes of the distinct storages of parameters, buffers, attributes and argument leaves, each under its first kind.

    ``named`` are (kind, name, index of the leaf). A storage counts whole however little of it is looked at:
    none of it is free while a slice of it is alive.
    """
    seen: set[int] = set()
    total = dict.fromkeys(KINDS, 0)
    for kind in KINDS:
        for name, index in ((name, index) for of, name, index in named if of == kind):
            tensor = _tensor(module, kind, name, leaves, index)
            if not isinstance(tensor, torch.Tensor):
                continue  # a number among the arguments
            if tensor.layout is torch.strided and torch_private.storage_key(tensor) not in seen:
                seen.add(torch_private.storage_key(tensor))
                total[kind] += tensor.untyped_storage().nbytes()
    return total


def _tensor(module: nn.Module, kind: str, name: str, leaves: Sequence[Any], index: int) -> object:
    if kind == "input":
        return leaves[index]
    if kind == "attribute":
        path, _, key = name.rpartition(".")
        return getattr(module.get_submodule(path), key)
    return module.get_parameter(name) if kind == "parameter" else module.get_buffer(name)
