"""The joint graph of a training step, and what its inputs and outputs mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import fx

from .guards.assignments import Assignment
from .guards.attribute_reads import AttributeReads
from .guards.autocast_state import AutocastState
from .guards.globals_and_closures import SourceGuards
from .guards.values.value_tape import Guard
from .torch_private import pytree


@dataclass(frozen=True, slots=True)
class Primal:
    """One input of the graph: a parameter, buffer or attribute (by dotted name), or the ``index``-th argument leaf."""

    node: fx.Node
    kind: str  # "parameter", "buffer", "attribute" or "input"
    name: str
    index: int = -1


@dataclass(frozen=True, slots=True)
class Joint:
    """The forward and backward of one training step as one aten graph.

    Attributes:
        graph: the aten calls. Passes own it: they edit it in place and return the Joint that describes the result.
        primals: the inputs of the forward.
        outputs: for each distinct output its node, its value (not a tensor), or the `Primal` that it is.
        tangents: the incoming gradient of each distinct output; None for an output without gradient.
        gradients: (index of a primal, its gradient).
        updates: (index of a buffer's primal, the value that the step copies into the buffer).
        writes: (index of a buffer's primal, the call of the forward that writes the buffer itself, when it first runs).
        arguments: the `meta` of each argument leaf.
        in_spec, out_spec: the structures of the arguments and of the result.
        leaf_outputs: for each leaf of the result the index of its distinct output.
        autocast: the part of the autocast state that the graph was traced under and depends on.
        enters_autocast: whether the forward enters autocast itself.
        tied: groups of primals that are one parameter under several names.
        detached: distinct outputs that were detached on request.
        same: for each argument leaf the earlier leaf, or the module's tensor, that is the same tensor; or None.
        guards: conditions on the values of arguments and buffers under which the graph is the module's.
        stationary: bytes of the storages of parameters, buffers, attributes and inputs, by kind.
        reads: attributes that the forward reads of its modules and their plain objects.
        assignments: attributes and buffers that the step sets.
        sources: guards on globals, closures and objects that the forward's code names.
        takes_several_gradients: whether the backward of some `torch.autograd.Function` takes several gradients: it runs
            for one of them alone, and takes the others for zeros.
    """

    graph: fx.Graph
    primals: tuple[Primal, ...]
    outputs: tuple[Any, ...]
    tangents: tuple[fx.Node | None, ...]
    gradients: tuple[tuple[int, fx.Node], ...]
    updates: tuple[tuple[int, fx.Node], ...]
    arguments: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    leaf_outputs: tuple[int, ...]
    autocast: AutocastState
    enters_autocast: bool
    tied: tuple[tuple[int, ...], ...] = ()
    detached: frozenset[int] = frozenset()
    same: tuple[int | str | None, ...] = ()
    guards: tuple[Guard, ...] = ()
    stationary: Mapping[str, int] = field(default_factory=dict)
    reads: AttributeReads = field(default_factory=AttributeReads)
    assignments: tuple[Assignment, ...] = ()
    sources: SourceGuards = field(default_factory=SourceGuards)
    takes_several_gradients: bool = False
    writes: tuple[tuple[int, fx.Node], ...] = ()

    @property
    def overwritten(self) -> frozenset[int]:
        """The primals of the buffers whose values the step changes."""
        return frozenset(primal for primal, _ in (*self.updates, *self.writes))


class Meta(NamedTuple):
    """The properties of a tensor that a plan depends on."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    strides: tuple[int, ...]
    requires_grad: bool

    def __str__(self) -> str:
        gradient = ", takes a gradient" if self.requires_grad else ""
        kind = str(self.dtype).removeprefix("torch.")
        return f"{kind}{list(self.shape)} with strides {list(self.strides)} on {self.device}{gradient}"

    def describes(self, value: Any) -> bool:
        """Whether this is the `meta` of ``value``; quicker than making it."""
        return (
            isinstance(value, torch.Tensor)
            and value.dtype is self.dtype
            and value.shape == self.shape
            and value.stride() == self.strides
            and value.requires_grad is self.requires_grad
            and value.device == self.device
        )


def meta(value: Any) -> Any:
    """The `Meta` of a tensor; type and value of anything else."""
    if isinstance(value, torch.Tensor):
        return Meta(tuple(value.shape), value.dtype, value.device, value.stride(), value.requires_grad)
    return type(value).__name__, _member(value) if isinstance(value, Enum) else repr(value)


def _member(value: Enum) -> str:
    """A member of an enumeration, with the attributes that its class gives it; the class may define ``__repr__``."""
    cls = type(value)
    own = {key: held for key, held in vars(value).items() if not key.startswith("_")}
    return f"{cls.__module__}.{cls.__qualname__}.{value.name} {value.value!r}" + (f" {own!r}" if own else "")


def is_backward(node: fx.Node) -> bool:
    """Whether tracing made the node while it ran the backward."""
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def forward_reads(node: fx.Node) -> bool:
    """Whether a call of the forward reads a node, or a ``detach`` view of it that is not there for the backward."""
    calls = [user for user in node.users if user.op == "call_function" and not is_backward(user)]
    return any(user.target is not torch.ops.aten.detach.default or forward_reads(user) for user in calls)
