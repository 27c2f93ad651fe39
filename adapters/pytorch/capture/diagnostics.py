"""What no plan can do exactly, told in the words of who wrote the module: of its state, of a trace that failed, of a
graph that was traced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy

from ....planner.errors import AdapterError
from ..errors import UnsupportedModuleError
from ..guards.argument_values import Guard
from ..torch_private import OpOverload, pytree, schema_of
from .call_signature import PASS_THEM, is_foreign, misfit, told
from .module_scopes import scope_of


def refuse_lazy(module: nn.Module) -> None:
    """Refuse parameters and buffers without a shape."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise AdapterError(
                f"{name!r} of {type(module).__name__} has no shape yet: the module that holds it is lazy",
                remedy="run one forward before planning",
            )


def refuse_trace_error(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    error: Exception,
) -> None:
    """Say what to do about an error of a trace whose cause is known; ``names`` are those of the argument leaves."""
    fault = misfit(module, args, kwargs) if isinstance(error, TypeError) else None
    if fault is not None:
        raise AdapterError(fault, remedy=PASS_THEM) from error
    for name, leaf in zip(names, pytree.tree_leaves((args, kwargs)), strict=True):
        if "KNOWN_TYPES" in str(error) and is_foreign(leaf):
            text, remedy = told(name, leaf)
            raise AdapterError(text, remedy=remedy) from error
    _refuse_unknown_outputs(module, error)
    _refuse_unknown_tensors(module, error)


def _refuse_unknown_outputs(module: nn.Module, error: Exception) -> None:
    """Say what to do about an output of a class that torch cannot take apart, such as a cache of keys and values."""
    found = re.search(r"Found <class '(?:\w+\.)*(\w+)'> in output, which is not a known type", str(error))
    if found:
        cached = "pass use_cache=False" if "Cache" in found[1] else "return tensors in tuples, lists and dicts"
        raise UnsupportedModuleError(
            f"{type(module).__name__} returns a {found[1]}, whose tensors a plan cannot hand back", remedy=cached
        ) from error


def _refuse_unknown_tensors(module: nn.Module, error: Exception) -> None:
    """Say what to do about a tensor that the forward takes from elsewhere: a list, a cache, a global."""
    found = re.search(
        r"convert all Tensors to FakeTensors first .* Found in (\S+?)\(.*?tensor\(.*?, size=(\(.*?\))",
        str(error),
        re.DOTALL,
    )
    if found:
        sparse = "tensor(indices=" in str(error)
        raise UnsupportedModuleError(
            f"{type(module).__name__} reads a {'sparse ' if sparse else ''}tensor of shape {found[2]} in {found[1]} "
            "that is no argument, parameter, buffer or attribute without gradient",
            remedy="use a dense one" if sparse else "register it as a buffer of the module, or pass it as an argument",
        ) from error


def refuse_counts(module: nn.Module, guards: Iterable[Guard]) -> None:
    """Refuse a norm whose factor is the number of its step, which no plan repeats."""
    for name in dict.fromkeys(name for guard in guards for name in guard.names):
        path, _, key = name.rpartition(".")
        if key == "num_batches_tracked" and getattr(module.get_submodule(path), "momentum", 0.1) is None:
            where = f"submodule {path!r}" if path else "the module"
            raise UnsupportedModuleError(
                f"{where} is a {type(module.get_submodule(path)).__name__} with momentum=None, "
                "whose average goes by the number of the step, a number that a plan would repeat",
                remedy="give it a momentum, as 0.1, or make it with track_running_stats=False",
            )


def refuse_calls(module: nn.Module, graph: fx.Graph) -> None:
    """Refuse calls that draw from a generator of the module's own, and those that make sparse gradients."""
    calls = [node for node in graph.nodes if node.op == "call_function" and isinstance(node.target, OpOverload)]
    for node in calls:
        if node.kwargs.get("generator") is not None:
            own = [
                f"{path}.{key}".lstrip(".")
                for path, child in module.named_modules()
                for key, value in child.__dict__.items()
                if isinstance(value, torch.Generator)
            ]
            named = f"{', '.join(map(repr, own))}" if own else "made outside the module"
            raise UnsupportedModuleError(
                f"{_place(module, node)} draws from a torch.Generator ({named}) in {node.target}; "
                "a plan draws from the default generator alone",
                remedy="draw without generator=, or draw outside and pass what is drawn as an argument",
            )
    sparse = [node for node in calls if _argument(node, "sparse") is True]
    if sparse and any(_makes_sparse(node) for node in calls):
        raise UnsupportedModuleError(
            f"{_place(module, sparse[0])} makes a sparse gradient ({sparse[0].target}); a plan hands back dense ones",
            remedy="make it with sparse=False",
        )


def _place(module: nn.Module, node: fx.Node) -> str:
    path = scope_of(node)
    return f"submodule {path!r}" if path else type(module).__name__


def _argument(node: fx.Node, name: str) -> Any:
    """What a call is given for an argument of this name; None where it has none, or the default."""
    for place, argument in enumerate(schema_of(node.target).arguments):
        if argument.name == name:
            return node.args[place] if place < len(node.args) else node.kwargs.get(name)
    return None


def _makes_sparse(node: fx.Node) -> bool:
    made = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    backward = "backward" in schema_of(node.target).name and _argument(node, "sparse") is True
    return backward or any(leaf.layout is not torch.strided for leaf in made)
