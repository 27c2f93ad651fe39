"""A module with any call between layers, and plans that recompute everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ogc_plan.adapters.pytorch.binding.bound_module import bound
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.execution.executor import Executor
from ogc_plan.adapters.pytorch.step.annotate import annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner import pipeline
from ogc_plan.planner.model import from_annotation
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.training_graph import TrainingGraph
from torch import Tensor, nn

Call = Callable[[Tensor], Tensor]


class Between(nn.Module):
    """A call between two layers, tanh before and after it, and a scalar out: [8, 6] -> []."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.call(self.first(x).tanh())
        return self.second(y.tanh().view(-1, 6)).square().mean()


def recompute_all(module: nn.Module, args: tuple[Any, ...]) -> nn.Module:
    """``module`` by a plan that recomputes for every single backward whatever ops may run again."""
    step = TracedStep(capture(module, args))
    annotated = annotate(step, measure=False)
    model = from_annotation(annotated.annotation, name="module", device="cpu")
    schedule = lower(model.training, Decisions(_everything_again(model.training)))
    plan = replace(pipeline.plan(model, "1GB", strategy="keep-all"), schedule=schedule)
    return bound(module, Executor(module, plan, annotated))


def _everything_again(graph: TrainingGraph) -> tuple[int, ...]:
    pinned = set(graph.outputs)
    order = list(range(len(graph.ops)))
    for index in graph.backward_order:
        backward = graph.ops[index].backward
        assert backward is not None
        needed: set[int] = set()
        stack = list(backward.reads)
        while stack:
            op = graph.producer[stack.pop()]
            if op not in needed and not graph.ops[op].once and pinned.isdisjoint(graph.ops[op].writes):
                needed.add(op)
                stack += graph.ops[op].reads
        order += [*sorted(needed), ~index]
    return tuple(order)
