"""Captures a module's training step on example arguments as a joint forward-and-backward graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any

import torch
from torch import fx, nn

from ....planner.errors import OgcPlanError
from .. import torch_private
from ..errors import UnsupportedModuleError, warn
from ..guards.autocast_state import AutocastState
from ..guards.module_attributes import refuse_iterators
from ..joint import Joint, Primal, meta
from ..passes.pipeline import run_passes
from ..torch_private import TracedGraph, pytree
from .argument_identity import Same, own_tensors, same_tensors, without_constants
from .calling import Prints
from .describe import described
from .diagnostics import (
    explain_trace_error,
    first_line,
    is_of_the_forward,
    line_of,
    place_of,
    refuse_calls,
    refuse_generators,
    refuse_several_cards,
    refuse_step_counts,
    taken_from_elsewhere,
)
from .module_checks import check_module, tensors_of
from .tracing import TangentStrides, Trace, names_of

_ONE_AT_A_TIME = RLock()
"""Tracing patches what all threads share: classes of torch, and the module's tensors."""


def capture(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    detached: Collection[int] = (),
    tangent_strides: TangentStrides = (),
) -> Joint:
    """Trace one training step of ``module`` on ``args`` and run the passes over its graph.

    Nothing is computed, and the module is not changed. The distinct outputs ``detached`` take no gradient. The
    gradients of the others have ``tangent_strides``, in their order; None stands for the layout that torch expects.

    Raises AdapterError for arguments that do not fit, and UnsupportedModuleError if the module cannot be traced, takes
    no gradient, changes its arguments in place, or does something else that a plan cannot repeat exactly.
    """
    with _ONE_AT_A_TIME:
        named = dict(kwargs or {})
        check_module(module, args)
        leaves, in_spec = pytree.tree_flatten((args, named))
        arguments = tuple(meta(leaf) for leaf in leaves)
        same = same_tensors(leaves, own_tensors(module))
        leaves = _unaliased(leaves, module)
        autocast = AutocastState.now()
        again = bool(detached or tangent_strides)
        prints = Prints(silent=again)  # a step that is traced again, for another backward, has printed
        trace, traced = _traced(module, leaves, in_spec, detached, tangent_strides, autocast, same, prints)
        refuse_step_counts(module, trace.values.guards)
        refuse_calls(module, traced.graph)
        refuse_several_cards(module, traced.graph)
        refuse_iterators(module, trace.reads)
        joint = run_passes(described(trace, traced, arguments, in_spec, autocast))
        return replace(joint, stationary=_stationary_nbytes(joint, module, leaves))


def _traced(
    module: nn.Module,
    leaves: list[Any],
    in_spec: pytree.TreeSpec,
    detached: Collection[int],
    tangent_strides: TangentStrides,
    autocast: AutocastState,
    same: Same,
    prints: Prints,
) -> tuple[Trace, TracedGraph]:
    """Trace the step, and trace it again where the first trace shows that it needs other settings."""
    args, kwargs = pytree.tree_unflatten(without_constants(leaves), in_spec)
    names = names_of(args, kwargs)
    refuse_generators(names, leaves)
    eager_dropout = autocast.enabled or any(
        tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors_of(module, leaves)
    )
    follow_values = memoised = False
    try:
        while True:
            trace = Trace(
                module,
                leaves,
                names,
                detached,
                same=same,
                prints=prints,
                eager_dropout=eager_dropout,
                follow_values=follow_values,
                memoised=memoised,
                tangent_strides=tangent_strides,
            )
            try:
                traced = trace.run(args, kwargs)
            except torch_private.VALUES_NEEDED:
                if follow_values:
                    raise
                follow_values = True
                continue
            except Exception as error:
                if memoised or not (trace.memoises or taken_from_elsewhere(error)):
                    raise
                memoised = True
                continue
            if trace.memoises and not memoised:
                memoised = True
                continue
            if eager_dropout or not (trace.enters_autocast or _drops_everything(traced.graph)):
                break
            eager_dropout = True
    except OgcPlanError:
        raise
    except Exception as error:
        if is_of_the_forward(error):
            raise
        explain_trace_error(module, args, kwargs, names, error)
        raise UnsupportedModuleError(
            f"{place_of(module, error)} cannot be traced{line_of(error)}: {first_line(error)}",
            remedy="see whether ogc_plan.adapters.pytorch.original(module) takes these arguments; if it does, keep "
            "shapes static and control flow independent of values, or move what fails out of the module",
        ) from error
    for call, why in trace.unknown_strides.items():
        warn(
            f"how {call} lays out its results is not known ({why}): where torch describes it otherwise, "
            "a planned step fails or differs from eager training in a last bit",
        )
    if trace.checkpoints and not (detached or tangent_strides):  # said once, by the first trace of a step
        warn(
            f"{type(module).__name__} checkpoints parts of itself (torch.utils.checkpoint): the plan takes these "
            "checkpoints out, and decides itself what is recomputed"
        )
    return trace, traced


def _drops_everything(graph: fx.Graph) -> bool:
    """Whether a fused dropout of rate 1 was traced: it draws random numbers, and eager training draws none."""
    dropouts = graph.find_nodes(op="call_function", target=torch.ops.aten.native_dropout.default)
    return any(node.args[1] == 1 for node in dropouts)


def _unaliased(leaves: list[Any], module: nn.Module) -> list[Any]:
    """The leaves, with copies of those that share memory with another leaf or with the module.

    Tracing would take two arguments for one if the examples are the same tensor.
    """
    seen = {
        torch_private.storage_key(t) for t in (*module.parameters(), *module.buffers()) if t.layout is torch.strided
    }
    found = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            key = torch_private.storage_key(leaf)
            if key in seen:
                copied = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
                leaf = copied.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)
            seen.add(key)
        found.append(leaf)
    return found


def _stationary_nbytes(joint: Joint, module: nn.Module, leaves: Sequence[Any]) -> dict[str, int]:
    """Bytes of the distinct storages of a step's primals by kind; a shared storage counts under its first kind.

    A storage counts whole: none of it is free while a slice of it is alive.
    """
    seen: set[int] = set()
    total = dict.fromkeys(("parameter", "buffer", "attribute", "input"), 0)
    for kind in total:
        for primal in joint.primals:
            tensor = _tensor(module, primal, leaves) if primal.kind == kind else None
            if not isinstance(tensor, torch.Tensor):
                continue  # of another kind, or a number among the arguments
            if tensor.layout is torch.strided and torch_private.storage_key(tensor) not in seen:
                seen.add(torch_private.storage_key(tensor))
                total[kind] += tensor.untyped_storage().nbytes()
    return total


def _tensor(module: nn.Module, primal: Primal, leaves: Sequence[Any]) -> object:
    if primal.kind == "input":
        return leaves[primal.index]
    path, _, key = primal.name.rpartition(".")
    return getattr(module.get_submodule(path), key)
