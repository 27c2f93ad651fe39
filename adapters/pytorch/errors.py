"""The refusal of modules that cannot be planned."""

from __future__ import annotations

from ...planner.errors import AdapterError


class UnsupportedModuleError(AdapterError):
    """The module cannot be captured as one static graph, or does something a plan cannot replay exactly."""

    exit_code = 4
