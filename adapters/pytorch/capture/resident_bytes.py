"""The bytes that are allocated before a step: whole storages, of which a parameter may be a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .. import torch_private
from ..joint import Joint, Primal

KINDS = ("parameter", "buffer", "attribute", "input")


def stationary_nbytes(joint: Joint, module: nn.Module, leaves: Sequence[Any]) -> dict[str, int]:
    """Bytes of the distinct storages of a step's primals by kind; a shared storage counts under its first kind.

    A storage counts whole: none of it is free while a slice of it is alive.
    """
    seen: set[int] = set()
    total = dict.fromkeys(KINDS, 0)
    for kind in KINDS:
        for primal in joint.primals:
            tensor = _tensor(module, primal, leaves) if primal.kind == kind else None
            if not isinstance(tensor, torch.Tensor):
                continue  # of another kind, or a number among the arguments
            if tensor.layout is torch.strided and torch_private.storage_key(tensor) not in seen:
                seen.add(torch_private.storage_key(tensor))
                total[kind] += tensor.untyped_storage().nbytes()
    return total


def _tensor(module: nn.Module, primal: Primal, leaves: Sequence[Any]) -> object:
    if primal.kind == "input":
        return leaves[primal.index]
    path, _, key = primal.name.rpartition(".")
    return getattr(module.get_submodule(path), key)
