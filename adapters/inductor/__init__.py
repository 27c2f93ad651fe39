"""A byte budget under torch.compile: a partitioner that plans on the kernels that Inductor will run (README.md).

The public names are loaded on first use, so importing the package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...planner.errors import packages_needed

if TYPE_CHECKING:
    from .api import budget, planned_graphs

__all__ = ["budget", "planned_graphs"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with packages_needed():
        return getattr(import_module(".api", __name__), name)
