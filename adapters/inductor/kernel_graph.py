"""The kernels that Inductor will run as the planner's training graph: calls that fuse are one op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import fx

from ...planner.graph import Storage
from ...planner.training_graph import BackwardOp, Gradient, GradientEdge, GradientSum, OpCost, TrainingGraph, TrainingOp
from .joint_graph import JointGraph
from .lowering import Kernel, Lowered
from .torch_private import pytree
from .work import kernel_ns
from .workspace import WorkspaceMeter

_HELD = "held "
"""Begins the name of a gradient that stands for a storage which is read late."""

_SEED_NBYTES = 4_096
"""A kernel that reads nothing and makes less runs first and once: seeds, and constants that many kernels read."""


@dataclass(slots=True)
class KernelGraph:
    """A training graph whose ops are kernels of the forward, and the joint graph's nodes that they stand for.

    Attributes:
        origins: for each op the nodes fused into it.
        held: for each storage the nodes whose value it holds.
        backward: for each op with a backward the names of the calls that its backward runs.
        late: for each storage that backwards of earlier ops than its own read, these ops.
    """

    graph: TrainingGraph
    costs: tuple[OpCost, ...]
    origins: tuple[frozenset[fx.Node], ...]
    held: tuple[tuple[fx.Node, ...], ...]
    backward: dict[int, frozenset[str]]
    late: dict[int, frozenset[int]]


@dataclass(slots=True)
class _Backward:
    """A kernel of the backward: storages and gradients that it reads, gradients that it makes.

    ``holds`` are storages that it leaves to kernels of earlier ops, as if they were gradients.
    """

    kernel: Kernel
    reads: set[str]
    takes: set[str]
    gives: list[str]
    owner: int = 0
    holds: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Segment:
    """The kernels of the backward that belong to one op of the forward."""

    kernels: list[_Backward] = field(default_factory=list)


def kernel_graph(
    joint: JointGraph, forward: fx.GraphModule, ahead: Lowered, back: Lowered, workspace: WorkspaceMeter
) -> KernelGraph:
    """The training graph of a step that recomputes nothing costly, from the code of its forward and backward."""
    output = next(node for node in forward.graph.nodes if node.op == "output")
    results = [leaf.name if isinstance(leaf, fx.Node) else None for leaf in pytree.arg_tree_leaves(*output.args)]
    buffers = [None if name is None else ahead.real(name) for name in ahead.outputs]
    buffer_of = {name: buffer for name, buffer in zip(results, buffers, strict=True) if name and buffer}
    inside = _workspaces(ahead, workspace), _workspaces(back, workspace)

    kernels = [(kernel, _made(ahead, kernel)) for kernel in ahead.kernels]
    kernels = [(kernel, made) for kernel, made in kernels if made]
    first = [_makes_constants(ahead, kernel, made) for kernel, made in kernels]
    kernels = [kernels[i] for i in sorted(range(len(kernels)), key=lambda i: not first[i])]
    storages: list[Storage] = []
    index: dict[str, int] = {}
    producer: dict[str, int] = {}
    for position, (_, made) in enumerate(kernels):
        for name in made:
            index[name], producer[name] = len(storages), position
            storages.append(Storage(name, ahead.nbytes[name]))

    backward = _backward(back, buffer_of, index)
    late = _give_owners(backward, back, producer, ahead.nbytes)
    segments: dict[int, _Segment] = defaultdict(_Segment)
    for part in backward:
        segments[part.owner].kernels.append(part)
    gradients, backward_ops, backward_costs = _segments(segments, back, index, inside[1], ahead.nbytes)

    ops, costs, origins = [], [], []
    for position, (kernel, made) in enumerate(kernels):
        reads = sorted({index[real] for name in kernel.reads if (real := ahead.real(name)) in index})
        once = position < sum(first) or any("seed" in name for name in kernel.origins)
        ops.append(
            TrainingOp(
                kernel.name, kernel.kind, tuple(i for i in reads if producer[storages[i].name] < position),
                tuple(index[name] for name in made), backward_ops.get(position), once=once,
            )
        )  # fmt: skip
        nodes = frozenset(joint.node_named[name] for name in kernel.origins if name in joint.node_named)
        origins.append(nodes)
        after_ns, after_nbytes = backward_costs.get(position, (0, 0))
        costs.append(OpCost(kernel_ns(kernel.nbytes, nodes), after_ns, inside[0].get(kernel.name, 0), after_nbytes))
    held = defaultdict(list)
    for name, buffer in buffer_of.items():
        held[buffer].append(joint.node_named[name])
    for buffer, name in ahead.made_by.items():
        if buffer in index and not held[buffer] and name in joint.node_named:
            held[buffer].append(joint.node_named[name])
    outputs = sorted({index[buffer] for buffer in buffers[: joint.outputs] if buffer in index})
    graph = TrainingGraph(
        tuple(ops), tuple(storages), gradients, tuple(outputs), aliases=tuple((entry.name,) for entry in storages)
    )
    after = {
        owner: frozenset(name for part in segment.kernels for name in part.kernel.origins)
        for owner, segment in segments.items()
    }
    return KernelGraph(
        graph, tuple(costs), tuple(origins), tuple(tuple(held[entry.name]) for entry in storages), after,
        {index[name]: frozenset(owners) for name, owners in late.items()},
    )  # fmt: skip


def _made(code: Lowered, kernel: Kernel) -> list[str]:
    """The buffers with memory that a kernel makes."""
    return [name for name in kernel.writes if code.nbytes.get(name, 0) > 0 and name not in code.same]


def _makes_constants(code: Lowered, kernel: Kernel, made: list[str]) -> bool:
    reads = [name for name in kernel.reads if name not in code.inputs]
    return not reads and sum(code.nbytes[name] for name in made) <= _SEED_NBYTES


def _workspaces(code: Lowered, workspace: WorkspaceMeter) -> dict[str, int]:
    """Bytes that the library calls take, by the buffer that names their kernel."""
    return {event.name: workspace(event.call) for event in code.events if event.call is not None}


def _backward(back: Lowered, buffer_of: dict[str, str], index: dict[str, int]) -> list[_Backward]:
    found = []
    for kernel in back.kernels:
        reads, takes = set[str](), set[str]()
        for name in map(back.real, kernel.reads):
            if name not in back.inputs:
                takes.add(name)
            elif buffer_of.get(name) in index:
                reads.add(buffer_of[name])
        found.append(_Backward(kernel, reads, takes, _made(back, kernel)))
    return found


def _give_owners(
    backward: list[_Backward], back: Lowered, producer: dict[str, int], nbytes: dict[str, int]
) -> dict[str, set[int]]:
    """Let each kernel belong to the first op whose backward can run it, and shrink what is alive early.

    A storage that an earlier kernel of the backward has read forces no kernel into the backward of its op: it is held,
    as Inductor's code holds it. Returns the ops whose backwards read such a storage late.
    """
    maker = {name: position for position, part in enumerate(backward) for name in part.gives}
    users: dict[int, list[int]] = defaultdict(list)
    for position, part in enumerate(backward):
        for name in part.takes:
            if name in maker:
                users[maker[name]].append(position)
    known: list[set[str]] = []  # storages that were read before a kernel, by those that it follows from
    for own, part in enumerate(backward):
        before = [maker[name] for name in part.takes if maker.get(name, own) < own]
        known.append(set().union(*(known[position] | backward[position].reads for position in before)))
    for position in range(len(backward) - 1, -1, -1):
        part = backward[position]
        read = part.reads - known[position]
        part.owner = max(
            [producer[name] for name in read] + [backward[user].owner for user in users[position]], default=0
        )
    for part in backward:
        taken = [maker[name] for name in part.takes if name in maker]
        needs = sum(back.nbytes[name] for name in part.gives) + sum(nbytes[name] for name in part.reads)
        shrinks = needs <= sum(back.nbytes.get(name, 0) for name in part.takes)
        if taken and shrinks:
            part.owner = max(part.owner, min(backward[position].owner for position in taken))
    late: dict[str, set[int]] = defaultdict(set)
    for part in backward:
        for name in sorted(name for name in part.reads if producer[name] > part.owner):
            late[name].add(part.owner)
            part.reads.discard(name)
            part.takes.add(_HELD + name)
    for name in late:
        next(part for part in backward if name in part.reads).holds.append(name)
    return late


def _segments(
    segments: dict[int, _Segment], back: Lowered, index: dict[str, int], inside: dict[str, int], nbytes: dict[str, int]
) -> tuple[tuple[Gradient, ...], dict[int, BackwardOp], dict[int, tuple[int, int]]]:
    """Gradients between segments, the backward of each op, and its time and workspace."""
    order = sorted(segments, reverse=True)
    at = {name: owner for owner in order for part in segments[owner].kernels for name in part.gives}
    last: dict[str, int] = {}
    for owner in order:
        for part in segments[owner].kernels:
            last.update(dict.fromkeys(part.takes, owner))
    final = {back.real(name) for name in back.outputs if name is not None}
    reused = {event.other: event.name for event in back.events if event.what == "reuse"}
    gradients: list[Gradient] = []
    number: dict[str, int] = {}
    ops: dict[int, BackwardOp] = {}
    costs: dict[int, tuple[int, int]] = {}
    for owner in order:
        parts = segments[owner].kernels
        reads = {index[name] for part in parts for name in part.reads}
        takes = {name for part in parts for name in part.takes if name in number}
        edges = []
        for name in (name for part in parts for name in part.gives):
            if name in final or last.get(name, owner) < owner:
                old = reused.get(name)
                ends = old in takes and last.get(str(old), owner) == owner and name not in final
                same = ends and back.nbytes[str(old)] == back.nbytes[name]
                number[name] = len(gradients)
                gradients.append(Gradient(name, back.nbytes[name], name in final))
                edges.append(GradientEdge(number[name], number[str(old)] if same else None))
        holds = []
        for name in (name for part in parts for name in part.holds):
            number[_HELD + name] = len(gradients)
            gradients.append(Gradient(_HELD + name, nbytes[name]))
            holds.append(GradientSum(number[_HELD + name], ()))
        fresh = sum(gradients[edge.gradient].nbytes for edge in edges if edge.alias_of is None)
        peak = _peak_inside(parts, back, inside, reused, {name for name in at if at[name] == owner}, last, final, owner)
        ops[owner] = BackwardOp(
            tuple(sorted(reads)), tuple(sorted(number[name] for name in takes)), tuple(edges), tuple(holds)
        )  # fmt: skip
        costs[owner] = sum(kernel_ns(part.kernel.nbytes, ()) for part in parts), max(0, peak - fresh)
    return tuple(gradients), ops, costs


def _peak_inside(
    parts: Iterable[_Backward],
    back: Lowered,
    inside: dict[str, int],
    reused: dict[str, str],
    own: set[str],
    last: dict[str, int],
    final: set[str],
    owner: int,
) -> int:
    """The most bytes that the kernels of a segment hold beyond the gradients that they find."""
    parts = list(parts)
    ends = {name: position for position, part in enumerate(parts) for name in part.takes}
    live = peak = 0
    for position, part in enumerate(parts):
        over = 0
        for name in part.gives:
            live += back.nbytes[name]
            old = reused.get(name, "")
            over += min(back.nbytes[name], back.nbytes.get(old, 0)) if ends.get(old) == position else 0
        peak = max(peak, live + inside.get(part.kernel.name, 0) - over)
        for name in part.takes:
            if name in own and ends[name] == position and last[name] == owner and name not in final:
                live -= back.nbytes.get(name, 0)
        live -= sum(back.nbytes[name] for name in part.gives if name not in last and name not in final)
    return peak
