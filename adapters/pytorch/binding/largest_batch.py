"""The largest batch of a module within a memory; arguments of other sizes are made of those given."""

from __future__ import annotations

from typing import Any

from torch import nn

from ....planner.display.interrupt import stoppable
from ....planner.display.terminal import activity
from ....planner.errors import AdapterError
from ....planner.model import Model, from_annotation
from ....planner.plan_file.record import Plan
from ....planner.trade_offs.largest_input import Fit, fit
from ..step.annotate import annotate
from .argument_sizes import resized, size_along
from .make_executor import planned_quietly, traced
from .request import Request

_PATIENCE_S = 1.0
"""A search that takes no longer shows no progress."""


def largest_batch(
    request: Request, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], axis: int, multiple_of: int
) -> Fit:
    """The largest batches within the request's budget. Raises what `api.fit` raises."""
    if not module.training:
        raise AdapterError(
            f"{type(module).__name__} is in evaluation mode, in which no step is planned", remedy="call train() first"
        )
    batch = _batch(args, kwargs, axis)

    def at(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return resized(axis, size, args, kwargs)

    def load(size: int) -> Model:
        return from_annotation(
            annotate(traced(module, *at(size)), measure=False).annotation,
            name=type(module).__name__,
            device=request.device,
            optimizer=request.optimizer,
            grad_accumulation=request.grad_accumulation,
        )

    def plan_at(size: int) -> Plan:
        return planned_quietly(request, module, *at(size)).plan

    smallest = 1 if batch <= multiple_of or _runs(module, *at(multiple_of)) else batch  # some need more than one sample
    with activity(quiet=False, after_s=_PATIENCE_S) as line, stoppable() as stop:
        return fit(
            load,
            request.budget,
            multiple_of=multiple_of,
            smallest=smallest,
            plan_at=plan_at,
            limits=line.limits(None, stop=stop, keeps="what is found"),
        )


def _runs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step on these arguments can be traced."""
    try:
        traced(module, args, kwargs)
    except Exception:  # whatever the forward raises for them
        return False
    return True


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any], axis: int) -> int:
    """The size of the first tensor that has the axis. Raises AdapterError."""
    size = None if axis < 0 else size_along(axis, args, kwargs)
    if not size:
        raise AdapterError(
            f"no argument has a batch along dimension {axis}", remedy="pass example arguments, or another batch_axis"
        )
    return size
