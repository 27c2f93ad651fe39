"""Runners with one plan; pickled, they take the plan along as text and bind it where they are loaded."""

from __future__ import annotations

from typing import Any

from torch import nn

from ....planner.errors import AdapterError, PlanMismatchError
from ....planner.plan_file.reader import loads
from ....planner.plan_file.record import Plan
from ....planner.plan_file.writer import dumps
from ..execution.executor import Executor
from ..unbind import RUNNER
from .make_executor import by_plan


def text_of(plan: Plan) -> bytes:
    """A plan as the content of a plan file, as it goes into a pickle: it is checked like a file when it is loaded."""
    return dumps(plan).encode("utf-8", "surrogatepass")


def plan_from(text: bytes) -> Plan:
    """The plan of `text_of`. Raises PlanFormatError or PlanVersionError."""
    return loads(text, "in the pickled module")


class OnePlan:
    """Runs the steps of ``module`` by the plan of ``executor``."""

    def __init__(self, executor: Executor, module: nn.Module) -> None:
        self.executor = executor
        self.plan = executor.plan
        self._attachment = executor.attach(module)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The one plan."""
        return (self.plan,)

    def of_copy(self, module: nn.Module) -> OnePlan:
        """The same for a copy of the module."""
        return OnePlan(self.executor, module)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward. Raises InputMismatchError."""
        return self.executor(self._attachment, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (text_of(self.plan),)


class Loaded:
    """A plan that is bound in the first training step after its module was loaded."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def executor(self) -> Executor:
        """Not made yet. Raises AdapterError."""
        raise AdapterError(
            "the module was loaded from a pickle and has not been called since, so its plan is not bound yet",
            remedy="call it once in training mode, or bind its plan: bind(module, plan_of(module), args)",
        )

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The one plan."""
        return (self.plan,)

    def of_copy(self, module: nn.Module) -> Loaded:
        """The same for a copy of the module."""
        return self

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Bind the plan and run one forward. Raises PlanMismatchError if module or arguments do not fit."""
        try:
            runner = OnePlan(by_plan(self.plan, module, args, kwargs), module)
        except PlanMismatchError as error:
            raise PlanMismatchError(
                f"the plan that was pickled with the module does not fit its first call: {error.message}",
                remedy="call it as it was planned, with the same torch on the same kind of device, or plan it again",
            ) from error
        module.__dict__[RUNNER] = runner
        return runner(module, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (text_of(self.plan),)


def _loaded(text: bytes) -> Loaded:
    return Loaded(plan_from(text))
