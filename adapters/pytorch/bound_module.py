"""The module that trains by a plan: the original in every respect but how its training step runs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from ogc_plan.planner.errors import AdapterError
from ogc_plan.planner.plan_record import Plan
from torch import nn
from torch.utils import _pytree as pytree

from .annotate import visible_costs
from .program import Program, generate
from .step_workspace import Workspace
from .traced_step import TracedStep
from .training_function import Executable


class InputMismatchError(AdapterError):
    """The arguments, parameters or modes differ from those the plan was bound for."""


class Executor:
    """Runs the planned step of one architecture on whatever module holds the parameters.

    ``visible`` are the workspaces that a storage meter sees (annotate.py).
    """

    def __init__(self, module: nn.Module, step: TracedStep, plan: Plan, visible: tuple[Workspace, ...]) -> None:
        joint = step.joint
        self.plan = plan
        self.visible_costs = visible_costs(plan.costs, visible)
        self.program: Program = generate(step, plan.schedule)
        self._executable = Executable(step, self.program)
        self._joint = joint
        self._modes = tuple(child.training for child in module.modules())[1:]
        self._metas = {
            primal.name: _meta(_lookup(module, primal.name, joint.constants))
            for primal in joint.primals
            if primal.kind != "input"
        }
        self._inputs = [_meta(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in joint.arguments]

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """Tensors written in the module's code, which live as long as the executor does."""
        graph = self._joint.graph
        lifted = [getattr(graph.owning_module, str(node.target)) for node in graph.find_nodes(op="get_attr")]
        return (*self._joint.constants.values(), *lifted)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One forward, with the plan's backward as its history. Raises InputMismatchError."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._joint.in_spec:
            raise InputMismatchError(
                f"{type(module).__name__} was bound for other arguments: {len(leaves)} leaves in another structure",
                remedy="bind it again with arguments of this structure",
            )
        for place, (leaf, wanted) in enumerate(zip(leaves, self._inputs, strict=True)):
            given = _meta(leaf) if isinstance(leaf, torch.Tensor) else leaf
            if given != wanted:
                raise InputMismatchError(
                    f"argument {place} is {given}, the plan was bound for {wanted}",
                    remedy="bind again for this input, or pad it to the planned shape",
                )
        modules = tuple(module.modules())[1:]
        if modules != module.__dict__["_ogc_plan_submodules"]:
            raise InputMismatchError(
                "a submodule was added, removed or replaced since the plan was bound", remedy="bind again"
            )
        if tuple(child.training for child in modules) != self._modes:
            raise InputMismatchError(
                "a submodule has changed between train() and eval() since the plan was bound",
                remedy="bind again in the new mode",
            )
        for device in {meta[2].type for meta in self._metas.values()}:
            if torch.is_autocast_enabled(device):
                raise InputMismatchError(
                    f"autocast is on for {device}, the plan was bound without", remedy="leave autocast off"
                )
        outputs = iter(self._executable(self._primals(module, leaves)))
        results = [next(outputs) if isinstance(value, torch.fx.Node) else value for value in self._joint.outputs]
        return pytree.tree_unflatten(results, self._joint.out_spec)

    def _primals(self, module: nn.Module, leaves: list[Any]) -> list[torch.Tensor]:
        primals = []
        for primal in self._joint.primals:
            if primal.kind == "input":
                primals.append(leaves[primal.index])
                continue
            tensor = _lookup(module, primal.name, self._joint.constants)
            if _meta(tensor) != self._metas[primal.name]:
                raise InputMismatchError(
                    f"{primal.kind} {primal.name!r} is {_meta(tensor)}, the plan was bound for "
                    f"{self._metas[primal.name]}",
                    remedy="bind again",
                )
            primals.append(tensor)
        return primals


Meta = tuple[tuple[int, ...], torch.dtype, torch.device, tuple[int, ...], bool]


def _meta(tensor: torch.Tensor) -> Meta:
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.stride(), tensor.requires_grad


def _lookup(module: nn.Module, name: str, constants: Any) -> torch.Tensor:
    if name in constants:
        constant: torch.Tensor = constants[name]
        return constant
    *path, last = name.split(".")
    for part in path:
        module = module._modules[part]
    tensor: torch.Tensor | None = module._parameters.get(last)
    return tensor if tensor is not None else module._buffers[last]


class _Bound:
    """Mixed into the class of a bound module; training calls run the plan, all others the original."""

    _ogc_plan_executor: Executor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The planned step in training mode with gradients on, otherwise the original forward."""
        if self.training and torch.is_grad_enabled():  # type: ignore[attr-defined]
            return self._ogc_plan_executor(self, args, kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return bound(copy.deepcopy(original(self), memo), self._ogc_plan_executor)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AdapterError(
            f"a planned {type(self).__name__} cannot be pickled",
            remedy="save its state_dict(), or pickle the original module, and bind again after loading",
        )


def bound(module: nn.Module, executor: Executor) -> nn.Module:
    """A module of the same class that shares parameters, buffers, submodules and hooks with ``module``."""
    cls = type(module)
    made: nn.Module = object.__new__(type(cls.__name__, (_Bound, cls), {"__module__": cls.__module__}))
    made.__dict__.update(module.__dict__)
    made.__dict__["_ogc_plan_executor"] = executor
    made.__dict__["_ogc_plan_submodules"] = tuple(made.modules())[1:]
    return made


def original(module: nn.Module) -> nn.Module:
    """The unplanned module behind a bound one; the same parameters."""
    cls = next(base for base in type(module).__mro__ if not issubclass(base, _Bound))
    made: nn.Module = object.__new__(cls)
    made.__dict__.update({k: v for k, v in module.__dict__.items() if not k.startswith("_ogc_plan_")})
    return made


def executor_of(module: nn.Module) -> Executor:
    """The executor of a bound module. Raises AdapterError for any other."""
    executor = module.__dict__.get("_ogc_plan_executor")
    if not isinstance(executor, Executor):
        raise AdapterError(f"{type(module).__name__} is not bound to a plan", remedy="call bind or within_budget on it")
    return executor
