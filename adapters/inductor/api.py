"""The public functions: the options of torch.compile that keep a byte budget, and what was planned under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ...planner.errors import AdapterError, BudgetSyntaxError
from ...planner.units import parse_budget
from . import scheduling, torch_private
from .partitioner import BudgetPartitioner, Planned

_KEY = "custom_partitioner_fn"
_ROUNDS = "emulate_precision_casts"
_OPTIONS = {
    "fx_graph_cache": False, "fx_graph_remote_cache": False, "allow_buffer_reuse": False,
    "reorder_for_peak_memory": False, "_pre_fusion_custom_pass": scheduling.before_fusion,
    "_post_fusion_custom_pass": scheduling.after_fusion, _ROUNDS: True,
}  # fmt: skip
"""A cached graph would not be planned, nor told of; compiled kernels are cached all the same. A buffer that waits for
its next use holds memory that the step needs in between, by an estimate of Inductor's that is not the peak. In bfloat16
and float16 each call rounds its result, as in eager training: what a kernel makes again would else not be rounded."""


def budget(size: str | int, *, grad_accumulation: bool = False) -> dict[str, Any]:
    """Options for torch.compile that keep a compiled training step within a budget.

    Args:
        size: ``"8GB"``, ``"60%"``, ``"min"`` or a number of bytes. Bytes bound parameters, buffers, arguments,
            gradients, activations and workspace; a share is of what the same step takes beyond parameters, buffers and
            arguments without a budget.
        grad_accumulation: the step finds gradients: a full set more is counted.

    Returns:
        The options of one compilation; call this again for another module.

    Raises:
        BudgetSyntaxError: the budget is no size.
        AdapterError: there is no C++ compiler.
        TorchVersionError: PyTorch lacks a name that is needed.

    Example:
        >>> compiled = torch.compile(torch.nn.Linear(4, 4), options=budget("8GB"), dynamic=False)
    """
    return _options(size, grad_accumulation=grad_accumulation, module=None)


def _options(size: str | int, *, grad_accumulation: bool, module: nn.Module | None) -> dict[str, Any]:
    """Options of a budget that bounds all tensors of ``module`` too, whether the step reads them or not."""
    text = f"{size}B" if type(size) is int else size
    if not isinstance(text, str):
        raise BudgetSyntaxError(f"budget {size!r} is no size", remedy="write a size such as 8GB or 60%, or min")
    torch_private.check_compiler()
    asked = parse_budget(text)
    return _OPTIONS | {_KEY: BudgetPartitioner(text, asked, grad_accumulation=grad_accumulation, module=module)}


def compiled(model: nn.Module, size: str | int, *, grad_accumulation: bool = False) -> nn.Module:
    """The module compiled within a budget, as one graph, for one shape of its arguments at a time."""
    options = _options(size, grad_accumulation=grad_accumulation, module=model)
    made: nn.Module = torch.compile(model, options=options, dynamic=False, fullgraph=True)
    return made


def planned_graphs(options: Mapping[str, Any]) -> tuple[Planned, ...]:
    """What has been planned under options that `budget` returned.

    Args:
        options: the options of a compilation.

    Returns:
        A record for each graph, in the order in which they were compiled: its peak, the budget, the peak without one,
        and the operations that run again.

    Raises:
        AdapterError: the options are not those of `budget`.

    Example:
        >>> planned_graphs(budget("8GB"))
        ()
    """
    partitioner = options.get(_KEY)
    if not isinstance(partitioner, BudgetPartitioner):
        raise AdapterError("the options were not made by budget", remedy="pass what budget returned")
    return tuple(partitioner.planned)
