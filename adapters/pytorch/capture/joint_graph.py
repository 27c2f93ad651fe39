"""A module and example arguments become one joint forward-and-backward graph with every input named."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from ....planner.errors import AdapterError, OgcPlanError
from .. import torch_private
from ..errors import UnsupportedModuleError
from ..guards.argument_values import Guard, ValueGuards
from ..guards.globals_and_closures import OuterNames
from ..guards.host_rng import undrawn
from ..guards.module_attributes import Read, recorded_reads, refuse_drawn
from ..guards.side_effects import watched
from ..guards.snapshots import slots_of
from ..torch_private import pytree
from ..unbind import RUNNER
from .autocast import AutocastState, hides_autocast, traced_as_eager
from .diagnostics import refuse_calls, refuse_counts, refuse_lazy, refuse_trace_error
from .inplace_strides import laid_out_as_written
from .kernel_strides import laid_out_as_run
from .module_scopes import recorded_scopes
from .output_identity import DistinctOutputs
from .resident_bytes import stationary_nbytes
from .tensor_attributes import as_buffers, attributes_of
from .tied_parameters import merge_tied, under_one_name


@dataclass(frozen=True, slots=True)
class Primal:
    """One input of the graph: a parameter, buffer or attribute (by dotted name), or the ``index``-th argument leaf."""

    node: fx.Node
    kind: str  # "parameter", "buffer", "attribute" or "input"
    name: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class Joint:
    """The captured graph and what its inputs and outputs mean.

    ``outputs[i]`` is the node of the i-th distinct output leaf, its value where it is no tensor, or the `Primal` that
    it is itself; ``places[i]`` the place among them of the i-th leaf of the result. ``tangents[i]`` is the gradient
    that comes in for an output (None where it takes none), ``gradients`` the gradient of each primal that gets one,
    ``updates`` the new value of each buffer that the step overwrites. ``inputs`` describes the leaves of the arguments,
    ``autocast`` what of the autocast state the graph holds for, ``guards`` what the graph takes for granted of
    their values, ``stationary`` the bytes of the storages of parameters, buffers and inputs, by kind, ``reads`` what
    the forward read of the module and its submodules, ``outer`` what its code names outside of them.
    """

    graph: fx.Graph
    primals: tuple[Primal, ...]
    outputs: tuple[Any, ...]
    tangents: tuple[fx.Node | None, ...]
    gradients: tuple[tuple[int, fx.Node], ...]
    updates: tuple[tuple[int, fx.Node], ...]
    inputs: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    places: tuple[int, ...]
    autocast: AutocastState
    enters_autocast: bool
    guards: tuple[Guard, ...] = ()
    stationary: Mapping[str, int] = field(default_factory=dict)
    reads: tuple[Read, ...] = ()
    outer: OuterNames = field(default_factory=OuterNames)


class Meta(NamedTuple):
    """What a plan depends on of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    strides: tuple[int, ...]
    requires_grad: bool

    def __str__(self) -> str:
        gradient = ", takes a gradient" if self.requires_grad else ""
        kind = str(self.dtype).removeprefix("torch.")
        return f"{kind}{list(self.shape)} with strides {list(self.strides)} on {self.device}{gradient}"


def meta(value: Any) -> Any:
    """The `Meta` of a tensor; type and value of anything else."""
    if isinstance(value, torch.Tensor):
        return Meta(tuple(value.shape), value.dtype, value.device, value.stride(), value.requires_grad)
    return type(value).__name__, repr(value)


_ONE_AT_A_TIME = RLock()
"""Tracing exchanges what all threads share: tensors' modes, how modules are read."""


def capture(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    detached: Collection[int] = (),
) -> Joint:
    """Trace one training step of ``module`` on ``args``; nothing is computed and the module is not changed.

    Distinct outputs at the places ``detached`` take no gradient.

    Raises UnsupportedModuleError where the module cannot be traced, takes no gradient, changes its
    arguments in place, or returns a view of a buffer that the step moves.
    """
    with _ONE_AT_A_TIME:
        return _captured(module, args, kwargs, detached)


def _captured(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, detached: Collection[int]
) -> Joint:
    named = dict(kwargs or {})
    check_module(module, args)
    leaves, in_spec = pytree.tree_flatten((args, named))
    described = tuple(meta(leaf) for leaf in leaves)
    leaves = _apart(leaves, module)
    args, named = pytree.tree_unflatten(leaves, in_spec)
    state = AutocastState.now()
    half = state.enabled or any(t.dtype in (torch.float16, torch.bfloat16) for t in _tensors(leaves, module))
    values = ValueGuards(leaves, _names_of(args, named))
    distinct = DistinctOutputs(detached)
    reads: dict[Read, None] = {}
    outer = OuterNames()
    try:
        with undrawn(module), outer.recorded(module):
            traced, enters_autocast = _traced(module, args, named, values, distinct, reads, outer, eager_dropout=half)
            if (enters_autocast and not half) or drops_everything(traced.graph):
                traced, _ = _traced(module, args, named, values, distinct, reads, outer, eager_dropout=True)
    except OgcPlanError:
        raise
    except torch_private.DataDependentOutputException as error:
        raise UnsupportedModuleError(
            f"{type(module).__name__} cannot be traced: it goes by a value that is not its arguments' ({error.func})",
            remedy="let no branch depend on parameters or random numbers (a layer drop: set it to 0), or move it out",
        ) from error
    except Exception as error:
        refuse_trace_error(module, args, named, values.names, error)
        raise UnsupportedModuleError(
            f"{type(module).__name__} cannot be traced: {first_line(error)}",
            remedy="keep shapes static and control flow independent of values, or move what fails out of the module",
        ) from error
    if any(traced.shares_memory):
        raise _shared_outputs(module)
    refuse_counts(module, values.guards)
    refuse_calls(module, traced.graph)
    refuse_drawn(module, reads)
    seen = state.seen_by(enters_autocast)
    joint = _describe(module, traced, distinct, described, in_spec, seen, enters_autocast)
    named_primals = [(primal.kind, primal.name, primal.index) for primal in joint.primals]
    held = stationary_nbytes(module, named_primals, leaves)
    return replace(joint, guards=tuple(values.guards), stationary=held, reads=tuple(reads), outer=outer)


def _traced(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: ValueGuards,
    outputs: DistinctOutputs,
    reads: dict[Read, None],
    outer: OuterNames,
    *,
    eager_dropout: bool,
) -> tuple[torch_private.Traced, bool]:
    """The joint graph, and whether the forward enters autocast itself; ``values`` are followed where it asks."""
    bare = _without_own_hooks(module)
    bare.__dict__["forward"] = outputs.around(bare, outer.around(bare.forward))

    def trace() -> tuple[torch_private.Traced, bool]:
        with warnings.catch_warnings(), torch.enable_grad(), _restored(module), recorded_scopes(bare):
            warnings.simplefilter("ignore")
            with (
                under_one_name(bare),
                watched(bare),
                laid_out_as_run() as unknown,
                laid_out_as_written(),
                traced_as_eager(bare) as autocast,
                recorded_reads(bare, reads),
            ):
                traced = torch_private.joint_graph(bare, args, kwargs, eager_dropout=eager_dropout)
        for call, why in unknown.items():
            warnings.warn(
                f"how {call} lays out its results is not known ({why}): where torch describes it otherwise, "
                "a planned step fails or differs from eager training in a last bit",
                stacklevel=2,
            )
        return traced, autocast.entered

    with as_buffers(bare), torch_private.without_trace_logs():
        try:
            return trace()
        except torch_private.DataDependentOutputException:  # the module asks for a value
            bare.__dict__["forward"] = values.around(bare, bare.forward)
        return trace()


def _names_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """What the argument leaves are called: ``args[0]``, ``labels``."""
    found = pytree.tree_flatten_with_path((args, kwargs))[0]
    return [("args" if path[0].idx == 0 else "kwargs") + pytree.keystr(path[1:]) for path, _ in found]


def drops_everything(graph: fx.Graph) -> bool:
    """Whether a fused dropout of rate 1 was traced: it draws random numbers, and eager training none."""
    dropouts = graph.find_nodes(op="call_function", target=torch.ops.aten.native_dropout.default)
    return any(node.args[1] == 1 for node in dropouts)


def check_module(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Refuse what is no module in training, and modules of which tracing would miss something."""
    if not isinstance(module, nn.Module):
        raise AdapterError(f"{module!r} is no torch.nn.Module", remedy="wrap it in a module")
    if not isinstance(args, tuple):
        raise AdapterError(f"args is a {type(args).__name__}, not a tuple", remedy="write (x,) for one argument")
    if not module.training:
        raise AdapterError(
            f"{type(module).__name__} is in evaluation mode", remedy="call .train() on it before planning its training"
        )
    refuse_lazy(module)
    devices = {tensor.device.type for tensor in _tensors(pytree.tree_leaves(args), module)}
    if "meta" in devices:
        raise AdapterError(f"{type(module).__name__} is on the meta device", remedy="move it to where it will train")
    if hides_autocast(module):
        raise UnsupportedModuleError(
            f"{type(module).__name__} is a traced graph, whose casts under autocast would not be those of eager",
            remedy="plan the module that it was traced from",
        )
    for path, child in module.named_modules():
        _refuse_submodule(path, child)


def _refuse_submodule(path: str, child: nn.Module) -> None:
    where = f"submodule {path!r}" if path else type(child).__name__
    if RUNNER in child.__dict__:
        raise UnsupportedModuleError(
            f"{where} is bound to a plan already", remedy="bind the original, or the whole, but not both"
        )
    if "forward" in child.__dict__:
        raise UnsupportedModuleError(
            f"{where} has a forward of its own instance, which a plan would pass by",
            remedy="define forward in the class, or bind before torch.compile and patches",
        )
    slotted = next((cls for cls in reversed(type(child).__mro__) if slots_of(cls)), None)
    if slotted is not None:
        raise UnsupportedModuleError(
            f"{where} keeps {slots_of(slotted)[0]!r} in a slot, where a change would not be seen",
            remedy=f"leave __slots__ out of {slotted.__name__}",
        )
    hooks = [hook for name in HOOKS for hook in child.__dict__[name].values()]
    # A norm of torch.nn.utils is traced as ops where it sits inside; the module's own hooks run around the step.
    homes = [getattr(hook, "__module__", None) or type(hook).__module__ for hook in hooks]
    norms = [home.startswith("torch.nn.utils") for home in homes]
    if (path and not all(norms)) or (not path and any(norms)):
        raise UnsupportedModuleError(
            f"{where} has a hook, which a planned step would not run as it should",
            remedy="remove it, bind the submodules that have none, or use torch.nn.utils.parametrizations for norms",
        )


@contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """Undo what tracing does to a module: tensors swapped for traced ones, attributes that its forward sets."""
    states = [
        (child, dict(child.__dict__), dict(child._parameters), dict(child._buffers)) for child in module.modules()
    ]
    try:
        yield
    finally:
        for child, own, parameters, buffers in states:
            child.__dict__.clear()
            child.__dict__.update(own)
            for tensors, kept in ((child._parameters, parameters), (child._buffers, buffers)):
                tensors.clear()
                tensors.update(kept)


def _tensors(leaves: list[Any], module: nn.Module) -> list[torch.Tensor]:
    arguments = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [*arguments, *module.parameters(), *module.buffers(), *attributes_of(module).values()]


def _apart(leaves: list[Any], module: nn.Module) -> list[Any]:
    """The leaves, those that share memory with another or with the module replaced by copies.

    Tracing would take two arguments for one where the examples are the same tensor.
    """
    seen = {
        torch_private.storage_key(t) for t in (*module.parameters(), *module.buffers()) if t.layout is torch.strided
    }
    apart = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            key = torch_private.storage_key(leaf)
            if key in seen:
                copied = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
                leaf = copied.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)
            seen.add(key)
        apart.append(leaf)
    return apart


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps its hooks."""


def _without_own_hooks(module: nn.Module) -> nn.Module:
    """The module without its own hooks, which run around the planned step and must not run inside it too."""
    bare: nn.Module = object.__new__(type(module))
    bare.__dict__.update(module.__dict__)
    bare.__dict__.update({name: type(module.__dict__[name])() for name in HOOKS})
    return bare


def first_line(error: BaseException) -> str:
    """An error of torch in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}".rstrip(": ")


def _describe(
    module: nn.Module,
    traced: torch_private.Traced,
    distinct: DistinctOutputs,
    inputs: tuple[Any, ...],
    in_spec: pytree.TreeSpec,
    autocast: AutocastState,
    enters_autocast: bool,
) -> Joint:
    graph = traced.graph
    attributes = attributes_of(module)
    primals: list[Primal] = []
    tangent_of: dict[int, fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        meaning = node.meta["desc"]
        if isinstance(meaning, torch_private.TangentAOTInput):
            if isinstance(meaning.output, torch_private.InputMutationAOTOutput):
                raise _moved_with_gradient(module, meaning.output.mutated_input)
            if not isinstance(meaning.output, torch_private.PlainAOTOutput):
                raise _shared_outputs(module)
            tangent_of[meaning.output.idx] = node
        elif isinstance(meaning, torch_private.ParamAOTInput):
            primals.append(Primal(node, "parameter", meaning.target))
        elif isinstance(meaning, torch_private.BufferAOTInput):
            kind = "attribute" if meaning.target in attributes else "buffer"
            if kind == "buffer" or node.users:  # what is kept in a module for others is none of the step's
                primals.append(Primal(node, kind, meaning.target))
            else:
                graph.erase_node(node)
        elif isinstance(meaning, torch_private.PlainAOTInput):
            primals.append(Primal(node, "input", f"argument {meaning.idx}", meaning.idx))
        else:
            raise UnsupportedModuleError(
                f"{type(module).__name__} needs an input of another kind: {type(meaning).__name__}",
                remedy="leave out calls with side effects, such as checks inside torch.linalg",
            )
    position = {primal.node: i for i, primal in enumerate(primals)}
    by_meaning = {node.meta["desc"]: i for node, i in position.items()}

    (output,) = graph.find_nodes(op="output")
    outputs: dict[int, Any] = {}
    gradients: dict[int, fx.Node] = {}
    updates: list[tuple[int, fx.Node]] = []
    for value, meaning in zip(output.args[0], output.meta["desc"], strict=True):
        if isinstance(meaning, torch_private.PlainAOTOutput):
            outputs[meaning.idx] = value
        elif isinstance(meaning, torch_private.GradAOTOutput):
            if value is not None:
                gradients[by_meaning[meaning.grad_of]] = value
        elif isinstance(meaning, torch_private.InputMutationAOTOutput):
            primal = primals[by_meaning[meaning.mutated_input]]
            if primal.kind != "buffer":
                raise _changed_in_place(module, primal.kind, primal.name)
            updates.append((by_meaning[meaning.mutated_input], value))
        elif meaning is not None:
            raise _shared_outputs(module)
    if not tangent_of:
        raise UnsupportedModuleError(
            f"no output of {type(module).__name__} needs a gradient", remedy="leave some parameter unfrozen"
        )
    named = [(i, p.name, p.node) for i, p in enumerate(primals) if p.kind == "parameter"]
    merge_tied(graph, named, gradients, module)
    count = max(outputs, default=-1) + 1
    outputs |= _given_back(module, distinct, primals, {i for i, _ in updates})
    return Joint(
        graph,
        tuple(primals),
        tuple(outputs.get(i) for i in range(count)),
        tuple(tangent_of.get(i) for i in range(count)),
        tuple(sorted(gradients.items())),
        tuple(updates),
        inputs,
        in_spec,
        distinct.spec,
        distinct.places,
        autocast,
        enters_autocast,
    )


def _given_back(
    module: nn.Module, distinct: DistinctOutputs, primals: list[Primal], updated: Collection[int]
) -> dict[int, Primal]:
    """The outputs that are inputs of the step themselves. Raises where one is a view of a buffer that moves."""
    index = {primal.index if primal.kind == "input" else primal.name: i for i, primal in enumerate(primals)}
    found = {}
    for place, (name, itself) in distinct.of_given.items():
        if itself and name in index:
            found[place] = primals[index[name]]
        elif index.get(name) in updated:
            raise UnsupportedModuleError(
                f"{type(module).__name__} returns a view of buffer {name!r}, which it changes in place",
                remedy="return the buffer, or a clone of the view",
            )
    return found


def _changed_in_place(module: nn.Module, kind: str, name: str) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"{type(module).__name__} changes {kind} {name!r} in place", remedy="copy it first, or register it as a buffer"
    )


def _moved_with_gradient(module: nn.Module, given: Any) -> UnsupportedModuleError:
    """What is written into takes part in the gradient: a parameter, or a buffer by a value that has a history."""
    if isinstance(given, torch_private.PlainAOTInput):
        return _changed_in_place(module, "input", f"argument {given.idx}")
    if isinstance(given, torch_private.ParamAOTInput):
        what, remedy = "parameter", "change it outside the forward (an embedding: max_norm=None), or work on a copy"
    else:
        what, remedy = "buffer", "detach what is written into it, or write under torch.no_grad()"
    return UnsupportedModuleError(
        f"{type(module).__name__} changes {what} {given.target!r} in place by what takes a gradient", remedy=remedy
    )


def _shared_outputs(module: nn.Module) -> UnsupportedModuleError:
    return UnsupportedModuleError(
        f"{type(module).__name__} returns tensors that share memory with each other or with an argument",
        remedy="return a clone of all but one of them",
    )
