"""Runners with one plan; pickled, they take the plan along as text and bind it where they are loaded."""

from __future__ import annotations

from typing import Any

from torch import nn

from ....planner.errors import AdapterError, PlanMismatchError
from ....planner.plan_file.reader import loads
from ....planner.plan_file.record import Plan
from ....planner.plan_file.writer import dumps
from ..execution.executor import Executor
from .make_executor import by_plan


def text_of(plan: Plan) -> bytes:
    """A plan as the content of a plan file, as it goes into a pickle: it is checked like a file when it is loaded."""
    return dumps(plan).encode("utf-8", "surrogatepass")


def plan_from(text: bytes) -> Plan:
    """The plan of `text_of`. Raises PlanFormatError or PlanVersionError."""
    return loads(text, "in the pickled module")


class OnePlan:
    """Runs the steps of ``module`` by one plan. Loaded from a pickle, it has no ``executor`` until the first step."""

    def __init__(self, plan: Plan, executor: Executor | None = None, module: nn.Module | None = None) -> None:
        self.plan = plan
        self._executor = executor
        self._attachment = None if executor is None or module is None else executor.attach(module)

    @property
    def executor(self) -> Executor:
        """The plan's executor. Raises AdapterError before the first step after loading."""
        if self._executor is None:
            raise AdapterError(
                "the module was loaded from a pickle and has not been called since, so its plan is not bound yet",
                remedy="call it once in training mode, or bind its plan: bind(module, plan_of(module), args)",
            )
        return self._executor

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The one plan."""
        return (self.plan,)

    @property
    def outcome(self) -> str:
        """The plan in one line."""
        return self.plan.outcome

    def of_copy(self, module: nn.Module) -> OnePlan:
        """The same for a copy of the module. Raises ChangedModuleError if the plan does not hold for the module now."""
        if self._executor is not None and self._attachment is not None:
            self._executor.check_module(self._attachment)
        return OnePlan(self.plan, self._executor, module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward. Raises InputMismatchError, and in the first step PlanMismatchError if the plan does not fit."""
        if self._attachment is None:
            self._executor = self._bound(module, args, kwargs)
            self._attachment = self._executor.attach(module)
        return self.executor(self._attachment, args, kwargs)

    def _bound(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Executor:
        try:
            return by_plan(self.plan, module, args, kwargs)
        except PlanMismatchError as error:
            raise PlanMismatchError(
                f"the plan that was pickled with the module does not fit its first call: {error.message}",
                remedy="call it as it was planned, with the same torch on the same kind of device, or plan it again",
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (text_of(self.plan),)


def _loaded(text: bytes) -> OnePlan:
    return OnePlan(plan_from(text))
