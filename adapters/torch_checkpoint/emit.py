"""From a plan and its model file to the modules to wrap, and to a policy of what to save inside them."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from ...planner.errors import InfeasibleBudgetError, PlanMismatchError
from ...planner.onnx_import.document.exporter_records import scopes_of
from ...planner.onnx_import.document.model_file import open_model
from ...planner.plan_file.record import Plan
from ...planner.problem import Scope
from ...planner.units import counted, format_both
from .choose_modules import choose
from .eager_step import EagerStep, batch_norms, eager_step
from .region_recompute import Wrapped
from .regions import candidate_regions
from .wrapped_schedule import WrappedStep, replayed

PEAKS = {"total": "total peak", "activations": "activation peak"}
_EXPORT = "write the file with ogc_plan.adapters.pytorch.export and plan again"


@dataclass(frozen=True, slots=True)
class Runtime:
    """How messages name what wraps and what is wrapped, how to get a file that names modules, and what does more."""

    name: str = "torch's checkpoint"
    kind: str = "module"
    export: str = _EXPORT
    instead: str = "bind from ogc_plan.adapters.pytorch runs the plan as it is"


TORCH = Runtime()


@dataclass(frozen=True, slots=True)
class Emission:
    """A choice for torch's checkpoint, with its predicted peak.

    Attributes:
        made: the step with the chosen modules wrapped.
        unwrapped: the same step without any checkpoint.
        batch_norms: for each recomputed batch norm, by path, how often it runs in a step.
        candidates: the number of modules that could be wrapped.
    """

    plan: Plan
    step: EagerStep
    made: WrappedStep
    unwrapped: WrappedStep
    batch_norms: dict[str, int]
    candidates: int

    @property
    def paths(self) -> tuple[str, ...]:
        """The modules to wrap, in the order they are called; one may lie inside another."""
        return tuple(call.region.path for entry in self.made.wrapped for call in entry.all())

    @property
    def overhead(self) -> float:
        """Recomputation as a share of a step without any."""
        return self.made.recompute_ns / max(1, self.plan.time.store_all_ns)

    def saved_calls(self, wrapped: Wrapped) -> dict[str, tuple[int, ...]]:
        """Aten name -> which calls of it inside a region, counted from 0, are saved."""
        seen: dict[str, int] = {}
        found: dict[str, list[int]] = {}
        for index in wrapped.region.ops:
            op = self.step.graph.ops[index]
            if op.writes:
                call = seen[op.op_type] = seen.get(op.op_type, -1) + 1
                if index in wrapped.saved:
                    found.setdefault(op.op_type, []).append(call)
        return {name: tuple(calls) for name, calls in sorted(found.items())}


def called_modules(path: str | os.PathLike[str]) -> frozenset[str]:
    """The paths of the modules that a file's model calls, without the model itself and lists of modules."""
    model = open_model(path)
    nodes = (*model.graph.node, *(node for function in model.functions for node in function.node))
    return frozenset(scope for node in nodes for scope in scopes_of(node)) - {""}


def wrap_modules(plan: Plan, called: Collection[str], *, runtime: Runtime = TORCH) -> Emission:
    """The modules to wrap so that the step stays within the plan's budget at the least cost.

    ``called`` are the paths of the modules that the model calls (`called_modules`), ``runtime`` the words for
    messages. Raises PlanMismatchError if the
    plan's ops belong to no module, InfeasibleBudgetError, with the smallest peak reached, if no set of modules fits.
    """
    return _emission(plan, called, runtime, selective=False)


def select_ops(plan: Plan, called: Collection[str]) -> Emission:
    """Like `wrap_modules`, and inside the modules the ops whose outputs are saved instead of recomputed.

    Raises PlanMismatchError also for a plan made from a bare ONNX file, which does not show the aten calls.
    """
    if plan.model.annotations is None:
        raise PlanMismatchError(
            f"the plan was made from the bare file {plan.model.file!r}, which does not show the calls PyTorch makes",
            remedy=_EXPORT,
        )
    return _emission(plan, called, TORCH, selective=True)


def _emission(plan: Plan, called: Collection[str], runtime: Runtime, *, selective: bool) -> Emission:
    step = eager_step(plan)
    regions = candidate_regions(step, called)
    if not regions:
        raise PlanMismatchError(
            f"{plan.model.file!r} names no {runtime.kind} that could be wrapped: its nodes carry no {runtime.kind} "
            "paths",
            remedy=runtime.export,
        )
    best, smallest = choose(step, regions, plan.budget.nbytes, selective=selective)
    if best is None:
        raise _refusal(plan, smallest, len(regions), runtime)
    calls = (call for entry in best.wrapped for call in entry.all())
    again = (index for call in calls for index in call.region.recomputed if index not in call.saved)
    return Emission(plan, step, best, replayed(step, ()), batch_norms(step, again), len(regions))


def _refusal(plan: Plan, smallest: WrappedStep, candidates: int, runtime: Runtime) -> InfeasibleBudgetError:
    scope = Scope(plan.budget.scope)
    what = "peak" if scope is Scope.TOTAL else "activation peak"
    suffix = " --scope activations" if scope is Scope.ACTIVATIONS else ""
    return InfeasibleBudgetError(
        f"no set of {runtime.kind}s ({candidates} to choose from) keeps the {what} within the budget of "
        f"{format_both(plan.budget.nbytes)}: "
        f"the smallest that {runtime.name} reached is {format_both(smallest.peak_nbytes)}, with "
        f"{counted(sum(1 for entry in smallest.wrapped for _ in entry.all()), runtime.kind)} wrapped",
        remedy=f"plan again with --budget {smallest.peak_nbytes}B{suffix} or more; {runtime.instead}",
        smallest_known_nbytes=smallest.peak_nbytes,
    )
