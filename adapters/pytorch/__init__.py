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
    from .api import Prediction as Prediction
    from .api import bind as bind
    from .api import export as export
    from .api import plan_of as plan_of
    from .api import plans_of as plans_of
    from .api import predict as predict
    from .api import profile as profile
    from .api import within_budget as within_budget
    from .errors import UnsupportedModuleError as UnsupportedModuleError
    from .execution.attachment import InputMismatchError as InputMismatchError
    from .unbind import original as original

_HOMES = {
    "InputMismatchError": "execution.attachment",
    "original": "unbind",
    "UnsupportedModuleError": "errors",
    "Prediction": "api",
    "bind": "api",
    "export": "api",
    "plan_of": "api",
    "plans_of": "api",
    "predict": "api",
    "profile": "api",
    "within_budget": "api",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
