"""Random generators whose draws no trace sees: Python's, NumPy's, and torch generators besides the default one."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedModuleError
from ..torch_private import outside_of_modes


def is_generator(value: Any) -> bool:
    """Whether ``value`` is a random generator of Python, NumPy or torch."""
    numpy = sys.modules.get("numpy")
    return isinstance(value, (random.Random, torch.Generator)) or (
        numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))
    )


def state_of(generator: Any) -> Any:
    """The state of a random generator, for `rewind`. Two states are equal if their ``repr`` is."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        with outside_of_modes():
            return generator.get_state().numpy().tobytes()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def rewind(generator: Any, state: Any) -> None:
    """Set a random generator to a state that `state_of` returned."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, torch.Generator):
        with outside_of_modes():
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


@contextmanager
def refuse_host_draws(module: nn.Module) -> Iterator[None]:
    """Trace ``module`` inside; the generators of ``random`` and ``numpy.random`` are rewound at the end.

    Raises UnsupportedModuleError if ``module`` drew from one of them.
    """
    shared = {"random": random.getstate.__self__}  # type: ignore[attr-defined]
    if "numpy" in sys.modules:
        shared["numpy.random"] = sys.modules["numpy"].random.get_state.__self__
    before = {name: state_of(generator) for name, generator in shared.items()}
    drawn = []
    try:
        yield
    finally:
        for name, generator in shared.items():
            if repr(state_of(generator)) != repr(before[name]):
                rewind(generator, before[name])
                drawn.append(name)
    if drawn:
        raise UnsupportedModuleError(
            f"{type(module).__name__} draws from {drawn[0]} in its forward; a plan would repeat that draw for ever",
            remedy="draw with torch, switch it off (augmentation: apply_spec_augment=False), or draw outside",
        )
