"""PyTorch: plans made from a module's real training graph, and modules that train by them.

    export(model, args, path)                an ONNX file that `ogc-plan` plans exactly
    bind(model, plan, args)                  the module, training by a plan
    within_budget(model, args, budget=...)   both in one call, in memory
    profile(model, args)                     times of its ops, measured in real steps

The public names are loaded on first use, so importing the package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attachment import InputMismatchError as InputMismatchError
    from .capture import UnsupportedModuleError as UnsupportedModuleError
    from .planning import Prediction as Prediction
    from .planning import bind as bind
    from .planning import export as export
    from .planning import plan_of as plan_of
    from .planning import plans_of as plans_of
    from .planning import predict as predict
    from .planning import profile as profile
    from .planning import within_budget as within_budget
    from .unbound import original as original

_HOMES = {
    "InputMismatchError": "attachment",
    "original": "unbound",
    "UnsupportedModuleError": "capture",
    "Prediction": "planning",
    "bind": "planning",
    "export": "planning",
    "plan_of": "planning",
    "plans_of": "planning",
    "predict": "planning",
    "profile": "planning",
    "within_budget": "planning",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
