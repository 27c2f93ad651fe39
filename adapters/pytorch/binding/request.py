"""What a module is planned for: the arguments of `api.within_budget`, and what a plan takes of its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ....planner.costs.devices import Device
from ....planner.device_overhead import Overhead
from ....planner.errors import AdapterError
from ....planner.plan_file.record import Plan
from ....planner.problem import Scope
from ....planner.solver import Solver
from ....planner.training_graph import TrainingGraph
from ..capture.tensor_attributes import attributes_of
from ..execution.card_memory import Present, card_memory, placed, unknown_setting
from ..step.annotate import Annotated, device_of
from ..torch_private import pytree
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


def overhead_of(
    request: Request,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    annotated: Annotated,
    graph: TrainingGraph,
) -> Overhead | None:
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

    def beyond(plan: Plan) -> int:
        if (setting := unknown_setting()) is not None:
            raise AdapterError(
                f"a budget in bytes bounds what the CUDA allocator reserves, which is not known with {setting}",
                remedy='leave it out of PYTORCH_CUDA_ALLOC_CONF, or pass a share such as budget="60%"',
            )
        found = card_memory(annotated, *placed(annotated, plan), present)
        return found.step_nbytes - plan.peak.total_nbytes

    return beyond
