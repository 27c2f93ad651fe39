"""Sizes in buckets: one plan is searched for the largest sizes of each, whose budget and decisions the others take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ....planner.costs.profile import StepProfile
from ....planner.plan_file.record import Plan
from ....planner.units import parse_budget
from ..capture.diagnostics import first_line
from ..errors import warn
from ..execution.attachment import InputMismatchError
from ..execution.executor import Executor
from .argument_sizes import resized, shapes_of, size_along
from .kept_plans import SIZES
from .make_executor import planned
from .request import Request


class Buckets:
    """The plans of the largest sizes of the buckets that steps as ``asked`` have come from."""

    def __init__(self, asked: Request) -> None:
        self._asked = asked
        self._largest: list[Executor] = []
        self._refused: list[list[tuple[int, ...]]] = []  # shapes of arguments

    def planned(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        profile: StepProfile | None,
        kept: Sequence[Executor],
    ) -> Executor:
        """A plan for a step, by the plan of its bucket, which is made if there is none.

        Where that fails, which a warning says once, the step is planned on its own.
        """
        multiples = self._asked.bucket
        sizes = {axis: size_along(axis, args, kwargs) or 0 for axis in multiples}
        largest = {axis: -(-size // multiples[axis]) * multiples[axis] for axis, size in sizes.items()}
        if largest == sizes:
            made = planned(self._asked, module, args, kwargs, profile, [*self._largest, *kept])
            self._keep(made)
            return made
        whole = args, kwargs
        for axis, size in largest.items():
            whole = resized(axis, size, *whole)
        shapes = shapes_of(*whole)
        if shapes in self._refused:
            return planned(self._asked, module, args, kwargs, profile, kept)
        try:
            found = self._of_largest(module, *whole, kept)
        except Exception as error:  # it does not fit, or the forward does not take these sizes
            self._refused = [*self._refused, shapes][-SIZES:]
            why = first_line(error)
            warn(f"steps up to {_named(largest)} are each planned on their own, as these cannot be planned: {why}")
            return planned(self._asked, module, args, kwargs, profile, kept)
        return planned(_within(self._asked, found.plan), module, args, kwargs, profile, [found, *kept])

    def _of_largest(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        kept: Sequence[Executor],
    ) -> Executor:
        for executor in self._largest:
            if _holds(executor, module, args, kwargs):
                return executor
        made = planned(self._asked, module, args, kwargs, kept=[*self._largest, *kept])
        self._keep(made)
        return made

    def _keep(self, made: Executor) -> None:
        self._largest = [*self._largest, made][-SIZES:]


def _named(sizes: Mapping[int, int]) -> str:
    return " and ".join(f"size {size} of dimension {axis}" for axis, size in sizes.items())


def _holds(executor: Executor, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        executor.checked(executor.attach(module), args, dict(kwargs))
    except InputMismatchError:
        return False
    return True


def _within(asked: Request, largest: Plan) -> Request:
    """The same within the budget of the bucket's plan: a share is one of its largest sizes."""
    if parse_budget(asked.budget).nbytes is not None:
        return asked
    return replace(asked, budget=f"{largest.budget.nbytes}B", scope=largest.budget.scope, headroom="0%")
