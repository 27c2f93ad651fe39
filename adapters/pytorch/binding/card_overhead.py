"""What the steps of plans take of a CUDA device beyond their peaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ....planner.errors import AdapterError
from ....planner.pipeline import headroom_nbytes
from ....planner.plan_file.record import Plan
from ....planner.problem import Scope
from ....planner.schedule import Schedule
from ....planner.training_graph import TrainingGraph
from ....planner.units import parse_budget
from ..capture.tensor_attributes import attributes_of
from ..execution.card_memory import CardMemory, Placed, Present, card_memory, placed, unknown_setting
from ..step.annotate import Annotated, device_of
from ..torch_private import pytree
from .request import Request


class CardOverhead:
    """What a plan's step takes of a CUDA device beyond its peak (`Overhead`), for plans of one step."""

    def __init__(self, annotated: Annotated, present: Present, headroom: str) -> None:
        self._annotated, self._present, self._headroom = annotated, present, headroom
        self._found: dict[int, tuple[Schedule, Placed, CardMemory]] = {}  # by the identity of the schedule

    def __call__(self, plan: Plan) -> int:
        """The bytes beyond the peak. Raises AdapterError where the allocator has settings that are not modelled."""
        if (setting := unknown_setting()) is not None:
            raise AdapterError(
                f"a budget in bytes bounds what the CUDA allocator reserves, which is not known with {setting}",
                remedy='leave it out of PYTORCH_CUDA_ALLOC_CONF, or pass a share such as budget="60%"',
            )
        return self._need(plan)[1].step_nbytes - plan.peak.total_nbytes

    def placement(self, plan: Plan) -> Placed | None:
        """The program of a plan whose budget bounds all of the device, in a pool that stays within it.

        None under other budgets.
        """
        budget = plan.budget
        if budget.scope != Scope.TOTAL.value or parse_budget(budget.text).minimum or unknown_setting() is not None:
            return None
        found, need = self._need(plan)
        if found.space is not None:
            left_nbytes = max(0, self._limit_nbytes(plan) - need.step_nbytes)
            found.space.most_nbytes = found.space.reserved_nbytes + left_nbytes
            found.space.most_beyond_nbytes = need.beyond_nbytes + left_nbytes
        return found

    def _limit_nbytes(self, plan: Plan) -> int:
        """The bytes of the device that the budget of a plan allows."""
        # That of the smallest plan is its own peak. The headroom has what was kept free for the device, too.
        stated = parse_budget(plan.budget.text).nbytes or plan.budget.nbytes + plan.budget.headroom_nbytes
        return stated - headroom_nbytes(self._headroom, stated)

    def _need(self, plan: Plan) -> tuple[Placed, CardMemory]:
        """The program of a plan, and what its step needs of the device.

        Fillers are searched for only where it does not fit without.
        """
        key = id(plan.schedule)
        if key not in self._found:
            made, need = self._tried(plan, filled=False)
            if need.step_nbytes > self._limit_nbytes(plan):
                made, need = self._tried(plan, filled=True)
            self._found[key] = plan.schedule, made, need
        _, made, need = self._found[key]
        return made, need

    def _tried(self, plan: Plan, *, filled: bool) -> tuple[Placed, CardMemory]:
        made = placed(self._annotated, plan, filled=filled)
        return made, card_memory(self._annotated, *made, self._present)


def card_overhead(
    request: Request,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    annotated: Annotated,
    graph: TrainingGraph,
) -> CardOverhead | None:
    """What a plan's step takes of a CUDA device beyond its peak; None on a CPU."""
    if device_of(annotated.step).type != "cuda":
        return None
    leaves = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    present = Present.of(
        module.parameters(),
        (*module.buffers(), *attributes_of(module).values(), *leaves),
        states_nbytes=graph.stationary.optimizer_nbytes,
        accumulates=request.grad_accumulation,
    )
    return CardOverhead(annotated, present, request.headroom)
