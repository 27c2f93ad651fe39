"""The peak of a compiled step, replayed from the lines of the code that Inductor generates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import fx

from .forms import Call
from .joint_graph import JointGraph
from .lowering import Event, Lowered
from .torch_private import pytree


@dataclass(frozen=True, slots=True)
class StepPeak:
    """Bytes above what the caller holds: in the forward, in the backward, and between them; ``saved`` of those between.

    ``gradients`` are the bytes of the gradients that the backward returns.
    """

    forward_nbytes: int
    backward_nbytes: int
    between_nbytes: int
    saved_nbytes: int
    gradients_nbytes: int

    @property
    def nbytes(self) -> int:
        """The peak of the step."""
        return max(self.forward_nbytes, self.backward_nbytes, self.between_nbytes)


Workspace = Callable[[Call], int]


@dataclass(frozen=True, slots=True)
class _Replay:
    peak_nbytes: int
    end_nbytes: int


def replay(
    events: Iterable[Event], held: Mapping[str, int], workspace: Workspace, storage: Mapping[str, str]
) -> _Replay:
    """Peak and last sum of the bytes of buffers, from those ``held`` at first.

    ``storage`` names the storage of inputs that share one: its bytes go with the last of them.
    """
    of_storage: dict[str, set[str]] = {}
    sharing: dict[str, set[str]] = {}  # held name -> the names that share its storage
    live: dict[str, int] = {}
    for name, nbytes in held.items():
        names = of_storage.setdefault(storage.get(name, name), set())
        live[name] = 0 if names else nbytes
        sharing[name] = names
        names.add(name)
    current = peak = sum(live.values())
    inside = 0  # workspace of a library call, until its results are there
    for event in events:
        if event.what == "call":
            assert event.call is not None
            inside = workspace(event.call)
            peak = max(peak, current + inside)
            continue
        if event.what == "take":
            if event.name not in live:
                live[event.name] = event.nbytes
                current += event.nbytes
            peak = max(peak, current + inside)
            continue
        inside = 0
        if event.what == "reuse" and event.name in live:
            live[event.other] = live.pop(event.name)
        elif event.what == "free" and event.name in live:
            nbytes = live.pop(event.name)
            others = sharing.pop(event.name, set())
            others.discard(event.name)
            left = next(iter(others), None)
            if left is not None:
                live[left] = nbytes
            else:
                current -= nbytes
    return _Replay(peak, current)


def step_peak(
    joint: JointGraph,
    forward: fx.GraphModule,
    ahead: Lowered,
    back: Lowered,
    workspace: Workspace,
) -> StepPeak:
    """The peak of a step above parameters, buffers and arguments.

    The caller holds the results of the forward, and their gradients, until the backward ends.
    """
    output = next(node for node in forward.graph.nodes if node.op == "output")
    leaves = pytree.arg_tree_leaves(*output.args)
    buffers = [None if name is None else ahead.real(name) for name in ahead.outputs]
    storage = {
        leaf.name: buffer
        for leaf, buffer in zip(leaves, buffers, strict=True)
        if isinstance(leaf, fx.Node) and buffer is not None
    }
    own = {name: ahead.nbytes.get(name, 0) for name in {*storage.values()} if name not in ahead.inputs}
    shown = {name for name in buffers[: joint.outputs] if name in own}
    shown_nbytes = sum(own[name] for name in shown if name is not None)
    tangents = sum(nbytes for name, nbytes in back.inputs.items() if name.startswith("tangents"))
    saved = {
        name: own[storage[name]]
        for name in back.inputs
        if storage.get(name) in own and storage[name] not in shown
    }  # fmt: skip
    first = replay(ahead.events, {}, workspace, {})
    second = replay(back.events, saved, workspace, storage)
    between = sum(own.values())
    returned = {back.real(name) for name in back.outputs[:] if name is not None}
    gradients = sum(back.nbytes.get(name, 0) for name in returned)
    beside = shown_nbytes + tangents
    copies = _copied_nbytes(joint, back)
    end = second.end_nbytes + copies
    return StepPeak(
        first.peak_nbytes, max(second.peak_nbytes, end) + beside, between + tangents,
        between - shown_nbytes, gradients,
    )  # fmt: skip


def _copied_nbytes(joint: JointGraph, back: Lowered) -> int:
    """Bytes of the gradients that autograd copies into the strides of their parameter, when the backward has ended."""
    strides = {id(node): strides for node, strides in zip(joint.results[joint.outputs :], back.strides, strict=True)}
    copied = 0
    for primal, gradient in joint.gradients():
        value, made = primal.meta["val"], strides[id(gradient)]
        if made is not None and made != tuple(value.stride()):
            copied += value.numel() * value.element_size()
    return copied
