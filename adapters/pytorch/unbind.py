"""From a bound module back to the unplanned one."""

from __future__ import annotations

from torch import nn

RUNNER = "_ogc_plan_runner"
"""The attribute of a bound module that runs its planned steps."""


class Bound:
    """The common base of the classes of bound modules (bound_module.py)."""


def original(module: nn.Module) -> nn.Module:
    """The unplanned module behind a bound one, with the same parameters; any other module unchanged."""
    if not isinstance(module, Bound):
        return module
    cls = next(base for base in type(module).__mro__ if not issubclass(base, Bound))
    made: nn.Module = object.__new__(cls)
    made.__dict__.update({key: value for key, value in module.__dict__.items() if key != RUNNER})
    return made
