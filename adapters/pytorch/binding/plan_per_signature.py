"""One plan for each signature of a module's arguments, and each branch on their values, made when it first occurs."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from ....planner.errors import AdapterError
from ....planner.plan_file.record import Plan
from ..execution.attachment import Attachment, OtherValuesError
from ..execution.executor import Executor
from ..guards.autocast_state import AutocastState
from ..joint import meta
from ..torch_private import pytree
from .make_executor import Request, planned
from .pickled_plan import plan_from, text_of

LIMIT = 8
"""The number of plans that are kept; the least recently used one makes room for a new one."""


class Signature(NamedTuple):
    """What a plan depends on of a call: the structure of its arguments, the `Meta` of each leaf, and autocast."""

    spec: str
    leaves: tuple[Any, ...]
    autocast: AutocastState

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], autocast: AutocastState) -> Signature:
        """The signature of one call under the part of the autocast state that its module sees."""
        leaves, spec = pytree.tree_flatten((args, dict(sorted(kwargs.items()))))
        return cls(repr(spec), tuple(meta(leaf) for leaf in leaves), autocast)

    def __str__(self) -> str:
        leaves = ", ".join(" ".join(leaf) if type(leaf) is tuple else str(leaf) for leaf in self.leaves)
        return f"{leaves}, {self.autocast}" if self.autocast.enabled else leaves


class Signatures:
    """The executors of one module by signature; a missing one is planned as ``asked``."""

    def __init__(self, asked: Request) -> None:
        self._asked = asked
        self._known: OrderedDict[tuple[Signature, int], tuple[Executor, Attachment]] = OrderedDict()
        self._first: Executor | None = None
        self._made_so_far = 0

    def add(self, signature: Signature, executor: Executor, module: nn.Module) -> None:
        """Keep ``executor`` for ``signature``; beyond the limit it replaces the least recently used one."""
        while len(self._known) >= LIMIT:
            self._known.popitem(last=False)
        self._known[signature, self._made_so_far] = (executor, executor.attach(module))
        self._first = self._first or executor
        self._made_so_far += 1

    def of_copy(self, module: nn.Module) -> Signatures:
        """The same plans for a copy of the module."""
        made = Signatures(self._asked)
        made._first = self._first
        for (signature, _), (executor, _) in self._known.items():
            made.add(signature, executor, module)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        texts = [text_of(plan) for plan in sorted(self.plans, key=lambda plan: plan is not self.plan)]
        return _loaded, (replace(self._asked, made=()), texts)

    @property
    def plan(self) -> Plan:
        """The plan that was made first."""
        return self._asked.made[0] if self._first is None else self._first.plan

    @property
    def executor(self) -> Executor:
        """The executor made first. Raises AdapterError if the module was loaded from a pickle and not called since."""
        if self._first is None:
            raise AdapterError(
                "the module was loaded from a pickle and has not been called since, so no plan of it is bound yet",
                remedy="call it once in training mode",
            )
        return self._first

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that are kept: those of a pickle not used yet first, the one used last at the end."""
        known = tuple(executor.plan for executor, _ in self._known.values())
        return tuple(plan for plan in self._asked.made if plan not in known) + known

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward by the plan for these arguments."""
        entered = any(executor.enters_autocast for executor, _ in self._known.values())
        signature = Signature.of(args, kwargs, AutocastState.now().seen_by(entered))
        for key in [key for key in self._known if key[0] == signature]:
            executor, attachment = self._known[key]
            try:
                result = executor(attachment, args, kwargs)
            except OtherValuesError:  # nothing ran yet; another plan of this signature may fit
                continue
            self._known.move_to_end(key)
            return result
        executor = self._made(module, signature, args, kwargs)
        self.add(signature._replace(autocast=executor.autocast), executor, module)
        _, attachment = next(reversed(self._known.values()))
        return executor(attachment, args, kwargs)

    def _made(self, module: nn.Module, signature: Signature, args: tuple[Any, ...], kwargs: Any) -> Executor:
        executor = planned(self._asked, module, args, kwargs)
        if any(executor.plan is plan for plan in self._asked.made):
            return executor
        crowded = len(self._known) >= LIMIT
        warnings.warn(
            f"planned {type(module).__name__} for another signature, ({signature}): activation peak "
            f"{executor.plan.peak.activation_nbytes:,} B"
            + (f"; the longest unused of {LIMIT} plans made room, pad to fewer shapes" if crowded else ""),
            stacklevel=2,
        )
        return executor


def _loaded(asked: Request, plans: list[bytes]) -> Signatures:
    return Signatures(replace(asked, made=tuple(plan_from(text) for text in plans)))
