"""A module and example arguments become one joint forward-and-backward graph with every input named."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from ogc_plan.planner.errors import AdapterError
from torch import fx, nn
from torch.utils import _pytree as pytree

from . import torch_api


class UnsupportedModuleError(AdapterError):
    """The module cannot be captured as one static graph, or does something a plan cannot replay exactly."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Primal:
    """One input of the graph: a parameter, a buffer (by dotted name), or the ``index``-th argument leaf."""

    node: fx.Node
    kind: str  # "parameter", "buffer" or "input"
    name: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class Joint:
    """The captured graph and what its inputs and outputs mean.

    ``outputs[i]`` is the node (or None) of the i-th output leaf, ``tangents[i]`` the gradient that comes
    in for it (None where it takes none), ``gradients`` the gradient of each primal that gets one,
    ``updates`` the new value of each buffer that the step overwrites. ``constants`` holds tensors that
    export lifted out of the code, by name.
    """

    graph: fx.Graph
    program: torch.export.ExportedProgram
    primals: tuple[Primal, ...]
    outputs: tuple[fx.Node | None, ...]
    tangents: tuple[fx.Node | None, ...]
    gradients: tuple[tuple[int, fx.Node], ...]
    updates: tuple[tuple[int, fx.Node], ...]
    constants: Mapping[str, torch.Tensor]
    arguments: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec


def capture(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Joint:
    """Trace one training step of ``module`` on ``args``; nothing is computed and the module is not changed.

    Raises UnsupportedModuleError where the module cannot be traced, takes no gradient, changes its
    arguments in place or returns tensors that share memory.
    """
    named = dict(kwargs or {})
    if not module.training:
        raise AdapterError(
            f"{type(module).__name__} is in evaluation mode", remedy="call .train() on it before planning its training"
        )
    for device in {tensor.device.type for tensor in module.parameters()} | {"cpu"}:
        if torch.is_autocast_enabled(device):
            raise AdapterError(
                f"autocast is on for {device}", remedy="capture and train outside autocast; autocast is not supported"
            )
    _refuse_inner_hooks(module)
    leaves, in_spec = pytree.tree_flatten((args, named))
    program = _export(_without_own_hooks(module), args, named)
    exported = program.module(check_guards=False)
    try:
        with torch.enable_grad():
            graph = torch_api.joint_graph(exported, args, named)
    except AdapterError:
        raise
    except Exception as error:
        raise UnsupportedModuleError(
            f"{type(module).__name__} has no backward graph: {_first_line(error)}",
            remedy="move what fails out of the module, or detach it",
        ) from error
    return _describe(module, program, exported, graph, leaves, in_spec)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _without_own_hooks(module: nn.Module) -> nn.Module:
    """The module without its own hooks, which run around the planned step and must not run inside it too."""
    bare: nn.Module = object.__new__(type(module))
    bare.__dict__.update(module.__dict__)
    bare.__dict__.update({name: type(module.__dict__[name])() for name in _HOOKS})
    return bare


def _refuse_inner_hooks(module: nn.Module) -> None:
    """A hook on a submodule would run once, while tracing, and never again; weight norms are traced as ops."""
    for path, child in module.named_modules():
        for hook in (hook for name in _HOOKS for hook in child.__dict__[name].values()) if path else ():
            home = getattr(hook, "__module__", None) or type(hook).__module__
            if not home.startswith("torch.nn.utils"):
                raise UnsupportedModuleError(
                    f"submodule {path!r} has a hook, which a planned step would not run",
                    remedy="remove it, or bind the submodules that have none",
                )


def _export(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        raise UnsupportedModuleError(
            f"torch.export cannot capture {type(module).__name__}: {_first_line(error)}",
            remedy="see what fails with: torch.export.export(module, args, strict=False)",
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}".rstrip(": ")


def _describe(
    module: nn.Module,
    program: torch.export.ExportedProgram,
    exported: nn.Module,
    graph: fx.Graph,
    leaves: list[Any],
    in_spec: pytree.TreeSpec,
) -> Joint:
    primals: list[Primal] = []
    tangent_of: dict[int, fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        meaning = node.meta["desc"]
        if isinstance(meaning, torch_api.TangentAOTInput):
            if not isinstance(meaning.output, torch_api.PlainAOTOutput):
                raise _shared_outputs(module)
            tangent_of[meaning.output.idx] = node
        elif isinstance(meaning, torch_api.ParamAOTInput):
            primals.append(Primal(node, "parameter", meaning.target))
        elif isinstance(meaning, torch_api.BufferAOTInput):
            primals.append(Primal(node, "buffer", meaning.target))
        elif isinstance(meaning, torch_api.PlainAOTInput):
            primals.append(Primal(node, "input", f"argument {meaning.idx}", meaning.idx))
        else:
            raise UnsupportedModuleError(f"the graph has an input of an unknown kind: {meaning}")
    position = {primal.node: i for i, primal in enumerate(primals)}
    by_meaning = {node.meta["desc"]: i for node, i in position.items()}

    (output,) = graph.find_nodes(op="output")
    outputs: dict[int, fx.Node | None] = {}
    gradients: list[tuple[int, fx.Node]] = []
    updates: list[tuple[int, fx.Node]] = []
    for value, meaning in zip(output.args[0], output.meta["desc"], strict=True):
        if isinstance(meaning, torch_api.PlainAOTOutput):
            outputs[meaning.idx] = value
        elif isinstance(meaning, torch_api.GradAOTOutput):
            if value is not None:
                gradients.append((by_meaning[meaning.grad_of], value))
        elif isinstance(meaning, torch_api.InputMutationAOTOutput):
            primal = primals[by_meaning[meaning.mutated_input]]
            if primal.kind != "buffer":
                raise UnsupportedModuleError(
                    f"{type(module).__name__} changes {primal.kind} {primal.name!r} in place",
                    remedy="copy it first, or register it as a buffer",
                )
            updates.append((by_meaning[meaning.mutated_input], value))
        elif meaning is not None:
            raise _shared_outputs(module)
    if not tangent_of:
        raise UnsupportedModuleError(
            f"no output of {type(module).__name__} needs a gradient", remedy="leave some parameter unfrozen"
        )
    count = max(outputs, default=-1) + 1
    own = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    constants = {
        primal.name: exported.get_buffer(primal.name)
        for primal in primals
        if primal.kind == "buffer" and primal.name not in own
    }
    return Joint(
        graph,
        program,
        tuple(primals),
        tuple(outputs.get(i) for i in range(count)),
        tuple(tangent_of.get(i) for i in range(count)),
        tuple(gradients),
        tuple(updates),
        constants,
        tuple(leaves),
        in_spec,
        program.call_spec.out_spec,
    )


def _shared_outputs(module: nn.Module) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"{type(module).__name__} returns tensors that share memory with each other or with an argument",
        remedy="return a clone of all but one of them",
    )
