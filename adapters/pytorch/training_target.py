"""What `ogc-plan verify --run` trains: a module that a function of the user builds, or that of a bare ONNX file."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ...planner.autodiff.derive import trainable_parameters
from ...planner.errors import UsageError, missing
from ...planner.onnx_import.reader import read_onnx
from ...planner.plan_file.record import Plan
from .beside_plain import Loss
from .onnx_module.module import from_onnx

Target = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Loss | None]
_RETURNS = (
    "return (module, args), and after them kwargs as a dict and a loss as a function of the output if it needs them"
)


def from_file(plan: Plan, model: str) -> Target:
    """The module of a bare file, on numbers that are made up."""
    record = plan.model
    if record.annotations is not None:
        raise UsageError(
            f"the plan is of the PyTorch module that {record.file!r} was exported from, which the file does not hold",
            remedy="name the function that builds the module: --run pkg.mod:build",
        )
    module = from_onnx(model, batch=record.batch, dims=dict(record.dims), inputs=dict(record.inputs))
    if plan.budget.frozen:
        graph = read_onnx(model, batch=record.batch, dims=dict(record.dims), inputs=dict(record.inputs))
        trained = {graph.storages[storage].name for storage in trainable_parameters(graph, plan.budget.frozen)}
        for path, parameter in module.named_parameters():
            parameter.requires_grad_(module.onnx_names[path] in trained)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return module.to(device), tuple(argument.to(device) for argument in module.example_arguments()), {}, None


def from_function(target: str) -> Target:
    """What the function ``pkg.mod:build`` returns. Raises UsageError if it fails or returns something else."""
    home, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found: Any = import_module(home)
        for part in name.split("."):
            found = getattr(found, part)
        made = found()
    except ModuleNotFoundError as error:
        if error.name != home and missing(error) is not None and not home.startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"--run {target}: there is no module {error.name!r}",
            remedy="name a file in this folder, or an installed package",
        ) from error
    except (Exception, SystemExit) as error:
        told = str(error).strip().splitlines()
        raise UsageError(
            f"--run {target} raised {type(error).__name__}{': ' + told[0] if told else ''}",
            remedy="see where with --debug",
        ) from error
    parts = made if isinstance(made, tuple) else (made,)
    module, args, *rest = (*parts, None, None)[: max(2, len(parts))]
    kwargs = [part for part in rest if isinstance(part, dict)]
    losses = [part for part in rest if callable(part)]
    known = len(kwargs) < 2 and len(losses) < 2 and len(kwargs) + len(losses) + rest.count(None) == len(rest)
    args = (args,) if isinstance(args, Tensor) else args
    if not isinstance(module, nn.Module) or not isinstance(args, tuple) or not known:
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise UsageError(f"--run {target} returned ({kinds})", remedy=_RETURNS)
    return module, args, kwargs[0] if kwargs else {}, losses[0] if losses else None
