"""Refuses, by name and with what to do, what cannot be planned through: wrappers of a module, reentrant checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from ....planner.errors import AdapterError
from ..errors import UnsupportedModuleError


def refuse_wrapper(module: nn.Module) -> None:
    """Raise AdapterError for a module that runs another one in data parallel."""
    within = "model.module = within_budget(model.module, ...)"
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise AdapterError(
            "DistributedDataParallel reduces gradients among processes, which is no part of a plan",
            remedy=f"bind what it wraps: {within}, or before it is wrapped",
        )
    if isinstance(module, nn.DataParallel):
        raise AdapterError(
            "DataParallel copies what it wraps for each step, which is no part of a plan",
            remedy="bind what it wraps and train that: model = within_budget(model.module, ...)",
        )


@contextmanager
def refuse_reentrant_checkpoints(module: nn.Module) -> Iterator[None]:
    """Raise UnsupportedModuleError where ``module`` calls a reentrant checkpoint inside."""

    def refused(*_: Any) -> Any:
        raise UnsupportedModuleError(
            f"the forward of {type(module).__name__} calls a checkpoint with use_reentrant=True, which runs a backward "
            "inside the backward",
            remedy="pass use_reentrant=False to it, or call what it calls directly: the plan recomputes",
        )

    CheckpointFunction.apply = refused
    try:
        yield
    finally:
        del CheckpointFunction.apply  # its own is inherited
