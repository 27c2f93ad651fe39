"""Plan which tensors of a training step to keep and which to recompute, within a byte budget.

`ogc_plan.adapters.pytorch` trains PyTorch modules by plans, `ogc_plan.planner` plans ONNX files. The command line is
``ogc-plan`` or ``python -m ogc_plan``.

Example:
    >>> import ogc_plan
    >>> ogc_plan.__version__.count(".")
    2
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("ogc-plan")
