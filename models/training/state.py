"""A training run on disk, to go on with later, and as digests, to compare two of them bit by bit."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from ogc_plan.planner.errors import UsageError
from torch import Tensor, nn

from models.training.outcome import random_state

Settings = Mapping[str, Any]
"""What a run's numbers depend on, by the name of its option."""


def save(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, epochs: list[dict[str, Any]], settings: Settings
) -> None:
    """Write the run as it stands after an epoch; a file that is there is replaced only once the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    held = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "random": random_state()}
    torch.save({**held, "epochs": epochs, "settings": dict(settings)}, unfinished)
    os.replace(unfinished, path)


def load(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, settings: Settings, device: str
) -> list[dict[str, Any]]:
    """Put module, optimizer and generators where the run stood; its epochs so far. Raises UsageError."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
        epochs, before = held["epochs"], held["settings"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} is no checkpoint: {said}", remedy="remove it and train without --resume") from error
    for name, value in settings.items():
        if before.get(name) != value:
            raise UsageError(
                f"{path} was made with {name} {before.get(name)}, not {value}",
                remedy=f"give --resume the same {name}, or train without it",
            )
    module.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    torch.set_rng_state(held["random"]["cpu"])
    if device == "cuda" and "cuda" in held["random"]:
        torch.cuda.set_rng_state(held["random"]["cuda"])
    return list(epochs)


def digests(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """A digest of every bit of parameters, buffers, momentum and the generators."""
    momentum = (
        (f"{group}.{at}", optimizer.state[parameter].get("momentum_buffer"))
        for group, held in enumerate(optimizer.param_groups)
        for at, parameter in enumerate(held["params"])
    )
    return {
        "parameters": _digest(module.named_parameters()),
        "buffers": _digest(module.named_buffers()),
        "momentum": _digest(momentum),
        "generators": _digest(random_state().items()),
    }


def _digest(named: Iterable[tuple[str, Tensor | None]]) -> str:
    found = hashlib.sha256()
    for name, tensor in named:
        found.update(name.encode())
        if tensor is not None:
            found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()
