"""PyTorch: plans made from a module's real training graph, and modules that train by them (README.md).

The public names are loaded on first use, so importing the package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...planner.errors import packages_needed

if TYPE_CHECKING:
    from .api import Prediction, bind, binding_peak, export, fit, plan_of, plans_of, predict, profile, within_budget
    from .errors import UnsupportedModuleError
    from .execution.attachment import InputMismatchError
    from .onnx_module.module import OnnxModule, from_onnx
    from .onnx_module.write_back import to_onnx
    from .unbind import original

__all__ = [
    "InputMismatchError", "OnnxModule", "Prediction", "UnsupportedModuleError", "bind", "binding_peak", "export",
    "fit", "from_onnx", "original", "plan_of", "plans_of", "predict", "profile", "to_onnx", "within_budget",
]  # fmt: skip

_HOMES = {
    "InputMismatchError": "execution.attachment", "UnsupportedModuleError": "errors", "original": "unbind",
    "OnnxModule": "onnx_module.module", "from_onnx": "onnx_module.module", "to_onnx": "onnx_module.write_back",
}  # fmt: skip
"""The modules of public names that are not in api.py."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with packages_needed():
        return getattr(import_module(f".{_HOMES.get(name, 'api')}", __name__), name)
