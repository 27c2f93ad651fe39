"""The plans of one module: made when a training step needs one, and kept for the steps that they hold for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ....planner.costs.profile import StepProfile
from ....planner.errors import AdapterError, InfeasibleBudgetError
from ....planner.plan_file.record import Plan
from .. import torch_private
from ..errors import NoGradientError, warn
from ..execution.attachment import ChangedDataError, InputMismatchError, VaryingStepError
from ..execution.executor import Executor
from ..torch_private import pytree
from .buckets import Buckets
from .kept_plans import MOST_OUTGROWN, KeptPlans
from .make_executor import planned
from .pickled_plan import plan_from, text_of
from .request import Request

LIMIT = 8
"""How many plans of one module are kept, not counting other sizes, unless the caller says otherwise."""


NOT_PLANNED = object()
"""Returned for a step without gradients, for which there is nothing to plan."""


class Plans:
    """Runs the training steps of one module by plans made as ``asked``.

    A step for which no kept plan holds makes another, unless ``replans`` is false: only a first one then. At most
    ``limit`` are kept that differ in more than sizes. The ``profile`` is that of the first plan.
    """

    def __init__(
        self, asked: Request, *, replans: bool = True, limit: int = LIMIT, profile: StepProfile | None = None
    ) -> None:
        self._asked, self._replans, self._profile = asked, replans, profile
        self._kept, self._buckets = KeptPlans(limit), Buckets(asked)
        self._first: Executor | None = None
        self._may_outgrow = replans and not asked.bucket  # a plan of a bucket is for steps of several sizes
        self._changes = self._varied = 0  # of data, and from step to step, that were planned for

    def _add(self, executor: Executor, module: nn.Module, *, varies: bool = False) -> None:
        """Keep a plan that was made as asked, for ``module`` as it is now."""
        self._kept.add(executor, module, varies=varies)
        self._first = self._first or executor

    def planned(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Executor:
        """A new plan for a step, which is not kept."""
        profile = None if self._first else self._profile
        kept = self._kept.executors
        if self._asked.bucket:
            return self._buckets.planned(module, args, kwargs, profile, kept)
        return planned(self._asked, module, args, kwargs, profile, kept)

    def with_first(self, executor: Executor, module: nn.Module) -> Plans:
        """These plans, with a first one for ``module`` as it is now."""
        self._add(executor, module)
        return self

    def of_copy(self, module: nn.Module) -> Plans:
        """The same plans for a copy of the module."""
        made = Plans(self._asked, replans=self._replans, limit=self._kept.limit, profile=self._profile)
        for kept in self._kept:
            if kept.changed() is None:  # holds for the original, and so for a copy of it
                made._add(kept.executor, module, varies=kept.varies)
        made._first, made._buckets = self._first, self._buckets
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        latest = self.plans[-self._kept.room :]  # those of older pickles that were not used since make room
        texts = [text_of(plan) for plan in sorted(latest, key=lambda plan: plan is not self._first_plan)]
        return _loaded, (replace(self._asked, made=()), self._replans, self._kept.limit, texts)

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

        Returns NOT_PLANNED, and runs nothing, if nothing takes a gradient: no parameter or argument, or no output.
        """
        found = self._kept.step(args, kwargs)
        if isinstance(found, tuple):
            executor, checked = found
            if self._may_outgrow and self._kept.last.outgrown < MOST_OUTGROWN and executor.is_outgrown(checked):
                self._plan_smaller(module, args, kwargs)
                return self._run_last(args, kwargs)
            return executor.run(checked)
        fault = found
        if not any(tensor.requires_grad for tensor in (*module.parameters(), *_tensors((args, kwargs)))):
            return NOT_PLANNED
        if fault is not None and not self._replans:
            try:
                raise fault
            finally:
                del fault, found  # they would keep this frame, and the arguments, alive
        try:
            self._plan(module, args, kwargs, fault)
        except NoGradientError as error:
            warn(
                f"{error.message} in this step, which runs as the original after it was traced in vain: call it under "
                "torch.no_grad()"
            )
            return NOT_PLANNED
        return self._run_last(args, kwargs)

    def _plan(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], fault: InputMismatchError | None
    ) -> None:
        """Make a plan for a step, and keep it. ``fault`` says why those that are kept do not hold for it."""
        varies = isinstance(fault, VaryingStepError)
        if fault is not None:
            self._kept.make_room(module, fault)
        began = time.perf_counter()
        with torch_private.outside_of_modes():
            executor = self.planned(module, args, kwargs)
        took_s = time.perf_counter() - began
        self._add(executor, module, varies=varies)
        if fault is None or any(executor.plan is plan for plan in self._asked.made):
            return
        self._varied += varies
        if varies and self._varied > 1:
            return  # said once; `planned` tells each
        count = (
            "others like it are planned as they come"
            if varies
            else f"it is plan {self._kept.count} of at most {self._kept.limit}"
        )
        warn(
            f"planned {type(module).__name__} again in {took_s:.1f} s, as {fault.message}. Its activation peak is "
            f"{executor.plan.peak.activation_nbytes:,} B; {count}{self._hint(fault)}"
        )

    def _plan_smaller(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Put another plan in the place of the one used last, which exceeds the budget beside outputs that are held.

        Where there is none, that one stays.
        """
        before, began, executor = self._kept.last.executor, time.perf_counter(), None
        try:
            with torch_private.outside_of_modes():
                executor = planned(replace(self._asked, made=()), module, args, kwargs, None, self._kept.executors)
        except InfeasibleBudgetError:
            outcome = "no smaller plan was found, and the step exceeds the budget by these"
        else:
            outcome = f"planned it again in {time.perf_counter() - began:.1f} s, with more recomputation"
            self._first = executor if self._first is before else self._first
        self._kept.replace_last(executor, module)
        warn(
            f"a step of {type(module).__name__} exceeds its budget beside the outputs of the last one, of other sizes, "
            f"that are still held: {outcome}. Drop outputs before the next forward (del)"
        )

    def _run_last(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        last = self._kept.last
        return last.executor.run(last.executor.checked(last.attachment, args, kwargs))

    def _hint(self, fault: InputMismatchError) -> str:
        self._changes += isinstance(fault, ChangedDataError)
        often = isinstance(fault, ChangedDataError) and self._changes > 2
        return ". A number that changes often belongs in a tensor: an argument or a buffer" if often else ""


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _loaded(asked: Request, replans: bool, limit: int, plans: list[bytes]) -> Plans:
    return Plans(replace(asked, made=tuple(plan_from(text) for text in plans)), replans=replans, limit=limit)
