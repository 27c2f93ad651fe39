"""The plans of one module: made when a training step needs one, and kept for the steps that they hold for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ....planner.costs.profile import StepProfile
from ....planner.errors import AdapterError
from ....planner.plan_file.record import Plan
from .. import torch_private
from ..errors import warn
from ..execution.attachment import Attachment, ChangedModuleError, InputMismatchError, ReplacedModuleError
from ..execution.executor import Executor
from ..torch_private import pytree
from .make_executor import planned
from .pickled_plan import plan_from, text_of
from .request import Request

LIMIT = 8
"""How many plans of one module are kept, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A plan's executor, attached to the module that it was made for."""

    executor: Executor
    attachment: Attachment

    def holds(self) -> bool:
        """Whether the plan holds for its module as it is now, with some arguments."""
        try:
            self.executor.check_module(self.attachment)
        except ChangedModuleError:
            return False
        return True


NOT_PLANNED = object()
"""Returned for a step without gradients, for which there is nothing to plan."""


class Plans:
    """Runs the training steps of one module by plans made as ``asked``.

    A step for which no kept plan holds makes another, unless ``replans`` is false: only a first one then. At most
    ``limit`` are kept. The ``profile`` is that of the first plan.
    """

    def __init__(
        self, asked: Request, *, replans: bool = True, limit: int = LIMIT, profile: StepProfile | None = None
    ) -> None:
        self._asked, self._replans, self._limit, self._profile = asked, replans, limit, profile
        self._kept: list[_Kept] = []  # the one used last is at the end
        self._first: Executor | None = None
        self._changes = 0  # of the module, that were planned for

    def add(self, executor: Executor, module: nn.Module) -> None:
        """Keep a plan that was made as asked, for ``module`` as it is now."""
        self._kept.append(_Kept(executor, executor.attach(module)))
        self._first = self._first or executor

    def with_first(self, executor: Executor, module: nn.Module) -> Plans:
        """These plans, with a first one for ``module`` as it is now."""
        self.add(executor, module)
        return self

    def of_copy(self, module: nn.Module) -> Plans:
        """The same plans for a copy of the module."""
        made = Plans(self._asked, replans=self._replans, limit=self._limit, profile=self._profile)
        for kept in self._kept:
            if kept.holds():  # for the original, and so for a copy of it
                made.add(kept.executor, module)
        made._first = self._first
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        texts = [text_of(plan) for plan in sorted(self.plans, key=lambda plan: plan is not self._first_plan)]
        return _loaded, (replace(self._asked, made=()), self._replans, self._limit, texts)

    @property
    def _first_plan(self) -> Plan | None:
        made = self._asked.made
        return self._first.plan if self._first is not None else made[0] if made else None

    @property
    def plan(self) -> Plan:
        """The plan that was made first. Raises AdapterError before that."""
        found = self._first_plan
        return self.executor.plan if found is None else found

    @property
    def outcome(self) -> str:
        """The first plan in one line."""
        made, others = self._first_plan, len(self.plans) - 1
        if made is None:
            return f"budget {self._asked.budget}: planned in its first training step"
        return made.outcome + (f" (and {others} more plans)" if others > 0 else "")

    @property
    def executor(self) -> Executor:
        """The executor of the plan made first. Raises AdapterError before the first training step."""
        if self._first is None:
            why = "was loaded from a pickle" if self._asked.made else "is planned in its first training step"
            raise AdapterError(
                f"the module {why} and has not been called since, so no plan of it is bound yet",
                remedy="call it once in training mode",
            )
        return self._first

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that are kept: those of a pickle not used yet first, the one used last at the end."""
        known = tuple(kept.executor.plan for kept in self._kept)
        return tuple(plan for plan in self._asked.made if plan not in known) + known

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward, by the plan used last that holds for it, or by a new one.

        Returns NOT_PLANNED, and runs nothing, if neither parameters nor arguments take a gradient.
        """
        fault: InputMismatchError | None = None
        for position in reversed(range(len(self._kept))):
            kept = self._kept[position]
            try:
                checked = kept.executor.checked(kept.attachment, args, kwargs)
            except InputMismatchError as error:
                # What changed about the module tells more than that the arguments are those of another plan.
                if fault is None or isinstance(error, ChangedModuleError) > isinstance(fault, ChangedModuleError):
                    fault = error.with_traceback(None)  # its frames would keep the arguments alive
                continue
            self._kept.append(self._kept.pop(position))
            return kept.executor.run(checked)
        if not any(tensor.requires_grad for tensor in (*module.parameters(), *_tensors((args, kwargs)))):
            return NOT_PLANNED
        if fault is not None and not self._replans:
            try:
                raise fault
            finally:
                del fault  # it would keep this frame, and the arguments, alive
        self._plan(module, args, kwargs, fault)
        made = self._kept[-1]
        return made.executor.run(made.executor.checked(made.attachment, args, kwargs))

    def _plan(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], fault: InputMismatchError | None
    ) -> None:
        """Make a plan for a step, and keep it. ``fault`` says why those that are kept do not hold for it."""
        if fault is not None:
            self._make_room(module, fault)
        began = time.perf_counter()
        with torch_private.outside_of_modes():
            executors = [kept.executor for kept in self._kept]
            executor = planned(self._asked, module, args, kwargs, None if self._first else self._profile, executors)
        took_s = time.perf_counter() - began
        self.add(executor, module)
        if fault is not None and not any(executor.plan is plan for plan in self._asked.made):
            warn(
                f"planned {type(module).__name__} again in {took_s:.1f} s, as {fault.message}. This is plan "
                f"{len(self._kept)} of at most {self._limit}, with an activation peak of "
                f"{executor.plan.peak.activation_nbytes:,} B{self._hint(fault)}"
            )

    def _hint(self, fault: InputMismatchError) -> str:
        self._changes += isinstance(fault, ChangedModuleError)
        often = isinstance(fault, ChangedModuleError) and self._changes > 2
        return ". A number that changes often belongs in a tensor: an argument or a buffer" if often else ""

    def _make_room(self, module: nn.Module, fault: InputMismatchError) -> None:
        """Let go of plans of submodules that were replaced, and of one that no longer holds if the limit is reached.

        Raises AdapterError if all hold: steps that take turns among more plans would be planned over and over.
        """
        if isinstance(fault, ReplacedModuleError):
            self._kept = [kept for kept in self._kept if kept.attachment.has_its_modules()]
        if len(self._kept) < self._limit:
            return
        gone = next((kept for kept in self._kept if not kept.holds()), None)
        if gone is None:
            raise AdapterError(
                f"{type(module).__name__} has {self._limit} plans and this step needs another: {fault.message}",
                remedy=f"pad the arguments to fewer shapes, or pass max_plans={2 * self._limit} to within_budget",
            )
        self._kept.remove(gone)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _loaded(asked: Request, replans: bool, limit: int, plans: list[bytes]) -> Plans:
    return Plans(replace(asked, made=tuple(plan_from(text) for text in plans)), replans=replans, limit=limit)
