"""The card, torch, and the packages that the product and its tests need; kernels of the planner are compiled."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels

from models.cuda.card import described
from models.cuda.day_one.cases import Save

PACKAGES = (
    "torch", "triton", "numpy", "scipy", "networkx", "numba", "ortools", "protobuf", "onnx", "onnxscript", "click",
    "rich", "pytest",
)  # fmt: skip


def run(small: bool, save: Save) -> None:
    """Find what is there. Importing the adapter checks the private names of torch."""
    found: dict[str, Any] = {**described(), "python": platform.python_version()}
    found["packages"] = {name: _version(name) for name in PACKAGES}
    save(found)
    import ogc_plan.adapters.pytorch.api  # noqa: F401

    started = time.perf_counter()
    prepare_kernels()
    save(found | {"kernels_s": round(time.perf_counter() - started, 1)})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
