"""The plans that a module keeps: which one holds for a step, and which one makes room for another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ....planner.errors import AdapterError
from ....planner.units import counted
from ..execution.attachment import (
    Attachment,
    ChangedModuleError,
    InputMismatchError,
    ReplacedModuleError,
    VaryingStepError,
)
from ..execution.executor import Checked, Executor
from ..guards.values.value_tape import Drawn
from .argument_sizes import shapes_of

SIZES = 32
"""How many plans are kept for each that counts, for other sizes alone or another way that random numbers decide."""

MOST_OUTGROWN = 4
"""How many times a plan is replaced by one that leaves more room for outputs that the caller holds."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan's executor, attached to the module that it was made for.

    ``varies`` if for a `VaryingStepError`. ``outgrown`` is how many plans it has replaced one after the other.
    """

    executor: Executor
    attachment: Attachment
    varies: bool = False
    outgrown: int = 0

    def changed(self) -> ChangedModuleError | None:
        """Why the plan does not hold for its module as it is now, whatever the arguments are."""
        try:
            self.executor.check_module(self.attachment)
        except ChangedModuleError as error:
            return error.with_traceback(None)
        return None


class KeptPlans:
    """At most ``limit`` plans that differ in more than sizes, and `SIZES` times as many for other sizes of theirs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: list[Kept] = []  # the one used last is at the end

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def last(self) -> Kept:
        """The one used last."""
        return self._kept[-1]

    @property
    def executors(self) -> list[Executor]:
        """Those of all plans, the one used last at the end."""
        return [kept.executor for kept in self._kept]

    @property
    def room(self) -> int:
        """How many plans are kept at most."""
        return (1 + SIZES) * self.limit

    @property
    def count(self) -> int:
        """How many of them count: those for other sizes do not."""
        return sum(not kept.varies for kept in self._kept)

    def add(self, executor: Executor, module: nn.Module, *, varies: bool = False) -> None:
        """Keep a plan for ``module`` as it is now."""
        self._kept.append(Kept(executor, executor.attach(module), varies))

    def replace_last(self, executor: Executor | None, module: nn.Module) -> None:
        """Keep another plan for the steps of the one used last, which they have outgrown; that one if there is none."""
        last = self.last
        made = last.executor if executor is None else executor
        outgrown = MOST_OUTGROWN if executor is None else last.outgrown + 1
        self._kept = [*self._kept[:-1], Kept(made, made.attach(module), last.varies, outgrown)]

    def step(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Executor, Checked] | InputMismatchError | None:
        """The plan used last that holds for a step; if there is none, why the likest one does not."""
        fault: InputMismatchError | None = None
        likest: Kept | None = None
        drawn = Drawn()
        for kept in self._in_question(args, kwargs):
            try:
                checked = kept.executor.checked(kept.attachment, args, kwargs, drawn)
            except InputMismatchError as error:
                if fault is None or _tells(error) > _tells(fault):
                    fault = error.with_traceback(None)  # its frames would keep the arguments alive
                    likest = kept
                continue
            if self._kept[-1] is not kept:  # a new list: a thread that looks through the old one misses no plan
                self._kept = [*(each for each in self._kept if each is not kept), kept]
            return kept.executor, checked
        if likest is not None and isinstance(fault, VaryingStepError):
            fault = likest.changed() or fault  # arguments are checked before the module
        return fault

    def _in_question(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Kept]:
        """Those for arguments of these shapes, if there are any; else all. The one used last comes first."""
        found = self._kept[::-1]
        if len(found) > 1:
            shapes = shapes_of(args, kwargs)
            found = [kept for kept in found if kept.executor.shapes == shapes] or found
        return found

    def make_room(self, module: nn.Module, fault: InputMismatchError) -> None:
        """Let go of plans of submodules that were replaced, and of one if another would be too many.

        That is the one of another size that was not used for the longest time, or one that no longer holds. Raises
        AdapterError if all hold: steps that take turns among more plans would be planned over and over.
        """
        if isinstance(fault, ReplacedModuleError):
            self._kept = [kept for kept in self._kept if kept.attachment.has_its_modules()]
        if len(self) - self.count >= SIZES * self.limit:
            self._kept.remove(next(kept for kept in self._kept if kept.varies))
        if isinstance(fault, VaryingStepError) or self.count < self.limit:
            return
        gone = next((kept for kept in self._kept if not kept.varies and kept.changed()), None)
        if gone is None:
            raise AdapterError(
                f"{type(module).__name__} has {counted(self.limit, 'plan')} and this step needs another: "
                f"{fault.message}",
                remedy=f"pass what changes in a tensor, or pass max_plans={2 * self.limit} to within_budget",
            )
        self._kept.remove(gone)


def _tells(fault: InputMismatchError) -> int:
    """How much a fault tells: what changed about the module, or that sizes alone differ, more than other arguments."""
    return 2 * isinstance(fault, ChangedModuleError) + isinstance(fault, VaryingStepError)
