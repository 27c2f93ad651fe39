"""Plan which tensors of a training step to keep and which to recompute, within a byte budget.

The public names are loaded on first use, so importing the package costs nothing.
"""

# No `from __future__ import annotations`: it would stand where the module annotations.py is looked up.
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import packages_needed

if TYPE_CHECKING:
    from .annotations import Annotation as Annotation
    from .annotations import OpWork as OpWork
    from .costs.devices import Device as Device
    from .costs.devices import read_device as read_device
    from .costs.profile import StepProfile as StepProfile
    from .costs.profile import read_profile as read_profile
    from .display.html.page import report as report
    from .model import Model as Model
    from .model import from_annotation as from_annotation
    from .model import load_model as load_model
    from .pipeline import check as check
    from .pipeline import plan as plan
    from .pipeline import verify as verify
    from .plan_file.reader import read_plan as read_plan
    from .plan_file.record import Plan as Plan
    from .plan_file.writer import write_plan as write_plan
    from .problem import Scope as Scope
    from .trade_offs.budget_frontier import frontier as frontier

_HOMES = {
    "Annotation": "annotations",
    "Device": "costs.devices",
    "read_device": "costs.devices",
    "OpWork": "annotations",
    "Model": "model",
    "check": "pipeline",
    "from_annotation": "model",
    "frontier": "trade_offs.budget_frontier",
    "load_model": "model",
    "plan": "pipeline",
    "verify": "pipeline",
    "Plan": "plan_file.record",
    "read_plan": "plan_file.reader",
    "write_plan": "plan_file.writer",
    "Scope": "problem",
    "StepProfile": "costs.profile",
    "read_profile": "costs.profile",
    "report": "display.html.page",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with packages_needed():
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
