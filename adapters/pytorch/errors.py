"""The refusal of modules that cannot be planned, and warnings at the user's line."""

from __future__ import annotations

import os
import sys
import warnings

import torch

from ...planner.errors import AdapterError


class UnsupportedModuleError(AdapterError):
    """The module cannot be captured as one static graph, or does something a plan cannot replay exactly."""

    exit_code = 4


class NoGradientError(UnsupportedModuleError):
    """No output of the module takes a gradient: there is no step to plan."""


HERE, TORCH = os.path.dirname(__file__), os.path.dirname(torch.__file__)
"""The folders of this adapter and of torch, as their code names its files: a path may have dots in it."""
NOT_THE_USERS = (f"{TORCH}/", f"{os.path.dirname(os.path.dirname(HERE))}/")
"""Where code is that no user wrote: torch's and this package's."""


def warn(message: str) -> None:
    """Warn at the line of the user's code that is running."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_THE_USERS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
