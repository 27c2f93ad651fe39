"""The plan of a file as a step of PyTorch: its bits and its peak beside those of a step without a plan."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from ogc_plan.adapters.pytorch import OnnxModule, bind, plan_of
from ogc_plan.planner.errors import PlanMismatchError
from ogc_plan.planner.plan_file.record import Plan
from torch import Tensor

from models.published_files.trained_outcome import peak_nbytes, state


def in_torch(made: Plan, module: OnnxModule, given: Sequence[Tensor]) -> dict[str, Any]:
    """Bytes of activations and parameters' gradients at the peak, planned and measured, and whether the bits are equal.

    A plan that is refused, since its peak lies above its budget in PyTorch, gives the message alone.
    """
    arguments = tuple(given)
    plain = copy.deepcopy(module)
    try:
        bound = bind(module, made, arguments)
    except PlanMismatchError as error:
        return {"refused": error.message}
    again = plan_of(bound)
    assert again is not None
    equal = all(torch.equal(a, b) for a, b in zip(state(bound, arguments), state(plain, arguments), strict=True))
    return {
        "planned_nbytes": again.peak.activation_nbytes,
        "held_nbytes": peak_nbytes(bound, arguments),
        "equal": equal,
    }
