"""Refuses a forward that reads what a program has set on a tensor: the tensors of a trace do not have it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import TORCH, UnsupportedModuleError
from ..torch_private import FunctionalTensor


@contextmanager
def refuse_attributes_of_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Raise UnsupportedModuleError inside where an attribute is read that one of ``tensors`` has of its own."""
    known = {key for tensor in tensors for key in tensor.__dict__}

    def missing(_: torch.Tensor, name: str) -> Any:
        if name in known and not sys._getframe(1).f_code.co_filename.startswith(TORCH):  # which asks for its own marks
            raise UnsupportedModuleError(
                f"the forward reads {name!r} of a tensor, an attribute that a program has set on it",
                remedy="keep it in the module",
            )
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    FunctionalTensor.__getattr__ = missing
    try:
        yield
    finally:
        del FunctionalTensor.__getattr__
