"""What a module is planned for: the arguments of `api.within_budget`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....planner.costs.devices import Device
from ....planner.plan_file.record import Plan
from ....planner.problem import Scope
from ....planner.solver import Solver
from .optimizer_memory import OptimizerMemory


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `api.within_budget`, with which each step is planned that no plan holds for.

    A graph that one of the plans ``made`` before has is not planned again. ``optimizer`` is the text of
    ``optimizer_memory`` where the optimizer itself was given. ``bucket`` has a multiple for each dimension in buckets.
    """

    budget: str
    scope: Scope | str | None
    headroom: str
    keep: tuple[str, ...]
    recompute: tuple[str, ...]
    optimizer: str | None
    grad_accumulation: bool
    device: str | Device | None
    solver: Solver
    made: tuple[Plan, ...] = ()
    optimizer_memory: OptimizerMemory | None = None
    bucket: Mapping[int, int] = field(default_factory=dict)
