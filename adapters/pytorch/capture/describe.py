"""What the inputs and outputs of a traced graph mean: a `TracedGraph` becomes a `Joint`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import fx, nn

from .. import torch_private
from ..errors import NoGradientError, UnsupportedModuleError
from ..guards.autocast_state import AutocastState
from ..joint import Joint, Primal
from ..torch_private import TracedGraph, pytree
from .tensor_attributes import attributes_of
from .tracing import Trace


def described(
    trace: Trace, traced: TracedGraph, arguments: tuple[Any, ...], in_spec: pytree.TreeSpec, autocast: AutocastState
) -> Joint:
    """The Joint of a trace, its graph as it was traced; the bytes of storages are left out.

    Raises UnsupportedModuleError if no output needs a gradient, if a tensor is changed in place that may not be, or if
    outputs share memory in a way that a planned step cannot reproduce.
    """
    module, graph, outputs = trace.module, traced.graph, trace.outputs
    if any(traced.shares_memory):
        raise _shared_outputs(module)
    primals, tangents = _inputs(module, graph)
    for assignment in outputs.assigned.values():
        if assignment.first:  # what was read is what the step sets
            trace.reads.reads.pop(assignment.target, None)
    index = {primal.node.meta["desc"]: i for i, primal in enumerate(primals)}
    results: dict[int, Any] = {}
    gradients: list[tuple[int, fx.Node]] = []
    updates: list[tuple[int, fx.Node]] = []
    (output,) = graph.find_nodes(op="output")
    for value, meaning in zip(output.args[0], output.meta["desc"], strict=True):
        if isinstance(meaning, torch_private.PlainAOTOutput):
            results[meaning.idx] = value
        elif isinstance(meaning, torch_private.GradAOTOutput):
            if value is not None:
                gradients.append((index[meaning.grad_of], value))
        elif isinstance(meaning, torch_private.InputMutationAOTOutput):
            primal = primals[index[meaning.mutated_input]]
            if primal.kind != "buffer":
                raise _changed_in_place(module, primal.kind, primal.name)
            updates.append((index[meaning.mutated_input], value))
        elif meaning is not None:
            raise _shared_outputs(module)
    if not tangents:
        raise NoGradientError(
            f"no output of {type(module).__name__} needs a gradient", remedy="leave some parameter unfrozen"
        )
    if not gradients:
        raise UnsupportedModuleError(
            f"the outputs of {type(module).__name__} need a gradient, and no parameter or argument gets one from them",
            remedy="call it under torch.no_grad(), or leave some parameter unfrozen",
        )
    count = max(results, default=-1) + 1
    results |= _returned_inputs(trace, primals, {i for i, _ in updates})
    return Joint(
        graph,
        tuple(primals),
        tuple(results.get(i) for i in range(count)),
        tuple(tangents.get(i) for i in range(count)),
        tuple(sorted(gradients)),
        tuple(updates),
        arguments,
        in_spec,
        outputs.spec,
        outputs.leaf_outputs,
        autocast.seen_by(trace.enters_autocast),
        trace.enters_autocast,
        tied=_tied(module, primals),
        detached=outputs.detached,
        same=trace.same,
        guards=tuple(trace.values.guards),
        reads=trace.reads,
        assignments=tuple(outputs.assigned.values()),
        sources=trace.sources,
        takes_several_gradients=outputs.take_several_gradients,
    )


def _inputs(module: nn.Module, graph: fx.Graph) -> tuple[list[Primal], dict[int, fx.Node]]:
    """The primals of a graph, and its tangents by output."""
    attributes = attributes_of(module)
    primals: list[Primal] = []
    tangents: dict[int, fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        meaning = node.meta["desc"]
        if isinstance(meaning, torch_private.TangentAOTInput):
            if isinstance(meaning.output, torch_private.InputMutationAOTOutput):
                raise _changed_with_gradient(module, meaning.output.mutated_input)
            if not isinstance(meaning.output, torch_private.PlainAOTOutput):
                raise _shared_outputs(module)
            tangents[meaning.output.idx] = node
        elif isinstance(meaning, torch_private.ParamAOTInput):
            primals.append(Primal(node, "parameter", meaning.target))
        elif isinstance(meaning, torch_private.BufferAOTInput):
            primals.append(Primal(node, "attribute" if meaning.target in attributes else "buffer", meaning.target))
        elif isinstance(meaning, torch_private.PlainAOTInput):
            primals.append(Primal(node, "input", f"argument {meaning.idx}", meaning.idx))
        else:
            raise UnsupportedModuleError(
                f"{type(module).__name__} needs an input of another kind: {type(meaning).__name__}",
                remedy="leave out calls with side effects, such as checks inside torch.linalg",
            )
    return primals, tangents


def _tied(module: nn.Module, primals: list[Primal]) -> tuple[tuple[int, ...], ...]:
    """The groups of primals that are one parameter."""
    groups: dict[int, list[int]] = {}
    for i, primal in enumerate(primals):
        if primal.kind == "parameter":
            path, _, key = primal.name.rpartition(".")
            groups.setdefault(id(module.get_submodule(path)._parameters[key]), []).append(i)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _returned_inputs(trace: Trace, primals: list[Primal], updated: Collection[int]) -> dict[int, Primal]:
    """The outputs that are inputs of the step. Raises if one is a view of a buffer that the step updates."""
    index = {primal.index if primal.kind == "input" else primal.name: i for i, primal in enumerate(primals)}
    found = {}
    for output, (name, is_itself) in trace.outputs.returned_inputs.items():
        if is_itself and name in index:
            found[output] = primals[index[name]]
        elif index.get(name) in updated:
            raise UnsupportedModuleError(
                f"{type(trace.module).__name__} returns a view of buffer {name!r}, which it changes in place",
                remedy="return the buffer, or a clone of the view",
            )
    return found


def _changed_in_place(module: nn.Module, kind: str, name: str) -> UnsupportedModuleError:
    remedy = "change it between steps, outside of the forward" if kind == "parameter" else "register it as a buffer"
    return UnsupportedModuleError(
        f"{type(module).__name__} changes {kind} {name!r} in place", remedy=f"copy it first, or {remedy}"
    )


def _changed_with_gradient(module: nn.Module, given: Any) -> UnsupportedModuleError:
    """For a tensor that is changed in place and needs a gradient: a parameter, or a buffer given a value with one."""
    if isinstance(given, torch_private.PlainAOTInput):
        return _changed_in_place(module, "input", f"argument {given.idx}")
    name = type(module).__name__
    if isinstance(given, torch_private.ParamAOTInput):
        return UnsupportedModuleError(
            f"{name} changes parameter {given.target!r}, which takes a gradient, in place",
            remedy="change it outside the forward (an embedding: max_norm=None), or work on a copy",
        )
    return UnsupportedModuleError(
        f"{name} changes buffer {given.target!r} in place by a value that takes a gradient",
        remedy="detach what is written into it, or write under torch.no_grad()",
    )


def _shared_outputs(module: nn.Module) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"{type(module).__name__} returns tensors that share memory with each other or with an argument",
        remedy="return a clone of all but one of them",
    )
