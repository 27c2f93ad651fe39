"""A joint graph as a training graph: what the planner plans, and the executor then runs op by op."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from functools import cached_property

from torch import fx

from ....planner.annotations import IN_PLACE_SUM
from ....planner.graph import Storage
from ....planner.training_graph import (
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    Stationary,
    TrainingGraph,
    TrainingOp,
)
from ..joint import Joint
from ..memory.allocations import Allocation, Allocations, tensors
from ..memory.rng_state import generator_of, state_nbytes
from .backward_segments import backward_segments
from .buffer_reuse import Reuse, find_reuse
from .step_ops import GradientCopy, StepOp, make_ops


class TracedStep:
    """The ops of a joint graph, and how storages and gradients of the training graph map to its allocations.

    With ``like`` the forward reuses the same memory as that of another step, as far as it has the same nodes.

    Attributes:
        joint: the joint graph, which is only read.
        reuse: the nodes that write over an argument.
        allocations: the memory of each node, reuse included.
        ops: in forward order.
        storage_of: storages of the training graph by the allocation that a forward op makes.
        graph: the training graph; its fingerprint is left to the annotation.
        gradient_of: gradients of the training graph by backward allocation that outlives its op, tangents included.
    """

    def __init__(self, joint: Joint, like: TracedStep | None = None) -> None:
        self.joint = joint
        traced = Allocations(joint.graph)
        segments = backward_segments(joint, traced)
        among = None if like is None else frozenset(node.name for node in like.reuse.fused_nodes)
        reuse, allocations = find_reuse(joint, traced, segments, among)
        self.reuse: Reuse = reuse
        self.allocations: Allocations = allocations
        self.ops = make_ops(joint, allocations, reuse, segments)
        self._own = {node: made[0] for node, made in traced.made.items() if made}  # also of nodes that reuse memory
        self._add_marks()
        written = (allocation for op in self.ops for allocation in self.written(op))
        self.storage_of = {allocation: storage for storage, allocation in enumerate(written)}
        self._make_graph()

    def _add_marks(self) -> None:
        """Let calls that only write a buffer make a storage of no bytes, by which a plan knows their module."""
        for _, node in self.joint.writes:
            if not self.allocations.allocates(node) and node not in self._own:
                self._own[node] = len(self.allocations.entries)
                self.allocations.entries.append(Allocation(node.name, 0, node))

    def _make_graph(self) -> None:
        builder = _GraphBuilder(self)
        self.graph, self.gradient_of, self._copies = builder.graph(), builder.gradient_of, builder.copies

    def resized(self, storage_nbytes: Mapping[fx.Node, list[int]]) -> TracedStep:
        """The same step with measured sizes (`Allocations.resized`)."""
        made = copy.copy(self)
        made.allocations = self.allocations.resized(storage_nbytes)
        made._make_graph()
        return made

    def made(self, node: fx.Node | GradientCopy) -> tuple[int, ...]:
        """The allocations that a node of a backward makes; none for a copy, which has no node."""
        return () if isinstance(node, GradientCopy) else self.allocations.made[node]

    def reads(self, node: fx.Node | GradientCopy) -> set[int]:
        """The allocations that a node or copy reads."""
        return set(self.allocations.of[node.source]) if isinstance(node, GradientCopy) else self.allocations.reads(node)

    def written(self, op: StepOp) -> tuple[int, ...]:
        """The allocations that the forward of an op makes; one of no bytes if it writes over another, or a buffer."""
        made = tuple(made for node in op.runs for made in self.allocations.made[node])
        return made or ((self._own[op.node],) if op.node is not None else ())

    @cached_property
    def copied(self) -> dict[int, GradientCopy]:
        """The copies of gradients, by primal."""
        return {node.primal: node for op in self.ops for node in op.sums if isinstance(node, GradientCopy)}

    @cached_property
    def returned(self) -> dict[int, bool]:
        """Allocations that autograd is given as gradients -> whether all of these are parameters'."""
        found: dict[int, bool] = {}
        for primal, node in self.joint.gradients:
            if primal not in self.copied:
                (allocation,) = self.allocations.of[node]
                parameter = self.joint.primals[primal].kind != "input"
                found[allocation] = found.get(allocation, True) and parameter
        return found

    def gradient_at(self, index: int) -> int:
        """The gradient of ``graph`` for the ``index``-th gradient of the joint graph."""
        primal, node = self.joint.gradients[index]
        return self._copies[primal] if primal in self.copied else self.gradient_of[self.allocations.of[node][0]]

    def names(self) -> tuple[tuple[str, ...], ...]:
        """For each storage the names of the nodes that live in it."""
        found: dict[int, list[str]] = {allocation: [] for allocation in self.storage_of}
        for node, allocations in self.allocations.of.items():
            for allocation in allocations:
                if allocation in found and node.name not in found[allocation]:
                    found[allocation].append(node.name)
        for node, allocation in self._own.items():
            if allocation in found and node.name not in found[allocation]:
                found[allocation].append(node.name)
        return tuple(tuple(found[allocation]) for allocation in self.storage_of)

    @property
    def calls(self) -> list[fx.Node]:
        """Every node that the step runs and that allocates."""
        forward = [node for op in self.ops for node in op.runs]
        return forward + [node for op in self.ops for node in op.backward if isinstance(node, fx.Node)]


class _GraphBuilder:
    """Builds the training graph of a step: ops with the storages and gradients that they read and make."""

    def __init__(self, step: TracedStep) -> None:
        self.step, self.joint, self.allocations = step, step.joint, step.allocations
        self.overwrites = step.reuse.overwrites
        self.gradient_of: dict[int, int] = {}
        self.copies: dict[int, int] = {}  # primal whose gradient is a copy -> that gradient
        self._gradients: list[Gradient] = []
        self._order: dict[int, int] = {}  # allocation given to autograd -> gradient of no bytes that its readers take
        tangents = [node for node in self.joint.tangents if node is not None]
        self._tangents = [self.allocations.of[node][0] for node in tangents]
        scalars = (node for node in tangents if tensors(node)[0].dim() == 0)
        self._scalar_tangents = frozenset(self.allocations.of[node][0] for node in scalars)
        sums = (node for op in step.ops for node in op.sums if node in step.reuse.calls)
        self._sum_of = {self.overwrites[made]: made for node in sums for made in step.made(node)}
        self._readers: dict[int, set[tuple[int, bool]]] = {}  # allocation -> (op, whether its sums read it)
        for index, op in enumerate(step.ops):
            for nodes, in_sums in ((op.main, False), (op.sums, True)):
                for node in nodes:
                    for allocation in step.reads(node):
                        self._readers.setdefault(allocation, set()).add((index, in_sums))

    def graph(self) -> TrainingGraph:
        """The training graph."""
        step, entries = self.step, self.allocations.entries
        for tangent in self._tangents:
            self._gradient(tangent)
        seeds = tuple(range(len(self._gradients)))
        backwards = {i: self._backward(i) for i in range(len(step.ops) - 1, -1, -1) if step.ops[i].backward}
        ops = [
            TrainingOp(
                op.name,
                op.op_type,
                self._forward_reads(op),
                tuple(step.storage_of[allocation] for allocation in step.written(op)),
                backwards.get(index),
                state_nbytes(generator_of(op.node)) if op.node is not None and op.random else 0,
                once=op.once,
            )
            for index, op in enumerate(step.ops)
        ]
        nodes = (node for node in self.joint.outputs if isinstance(node, fx.Node))
        outputs = {allocation for node in nodes for allocation in self.allocations.of[node]}
        constants = sum(entry.nbytes for entry in entries if entry.node.op == "get_attr")
        fixed = self.joint.stationary
        return TrainingGraph(
            tuple(ops),
            tuple(Storage(entries[allocation].name, entries[allocation].nbytes) for allocation in step.storage_of),
            tuple(self._gradients),
            self._storages(outputs),
            seeds,
            Stationary(fixed["parameter"], fixed["buffer"] + fixed["attribute"] + constants, fixed["input"]),
            step.names(),
        )

    def _forward_reads(self, op: StepOp) -> tuple[int, ...]:
        """The storages that must be alive for the forward of an op.

        For a fused op: first those that the nodes before it in the group read too, then the one that they all write,
        then those that the group reads for this op alone.
        """
        if op.node is None:
            return self._storages({a for _, value in op.updates for a in self.allocations.of[value]})
        if not op.is_fused:
            reads = {allocation for node in op.runs for allocation in self.allocations.reads(node)}
            return self._storages(reads - set(self.step.written(op)))
        into = self.allocations.of[op.node][0]
        maker = self.allocations.entries[into].node
        group = [maker, *self.step.reuse.fused[maker]]
        before = {a for node in group[: group.index(op.node)] for a in self.allocations.reads(node)}
        reads = self.allocations.reads(op.node) - {into}
        return (*self._storages(reads & before), self.step.storage_of[into], *self._storages(reads - before))

    def _storages(self, allocations: set[int]) -> tuple[int, ...]:
        storage_of = self.step.storage_of
        return tuple(sorted(storage_of[allocation] for allocation in allocations if allocation in storage_of))

    def _gradient(self, allocation: int) -> int:
        """The gradient that lives in an allocation: the last one, if others are summed into its memory."""
        if allocation not in self.gradient_of:
            chain = [allocation]
            while chain[-1] in self._sum_of:
                chain.append(self._sum_of[chain[-1]])
            entry = self.allocations.entries[chain[-1]]
            gradient = self._new(entry.name, entry.nbytes, self.step.returned.get(chain[-1], False))
            self.gradient_of.update(dict.fromkeys(chain, gradient))
        return self.gradient_of[allocation]

    def _new(self, name: str, nbytes: int, parameter: bool = False) -> int:
        self._gradients.append(Gradient(name, nbytes, parameter))
        return len(self._gradients) - 1

    def _alias_of(self, allocation: int, made: Collection[int]) -> int | None:
        """The gradient, not made by the op itself, whose memory an allocation takes over."""
        while allocation in made and allocation in self.overwrites:
            allocation = self.overwrites[allocation]
        return None if allocation in made else self.gradient_of[allocation]

    def _backward(self, index: int) -> BackwardOp:
        op, step = self.step.ops[index], self.step
        made = [allocation for node in op.main for allocation in step.made(node)]
        given = [a for a in made if a in step.returned or self._readers.get(a, set()) - {(index, False)}]
        read = {allocation for node in op.main for allocation in step.reads(node)}
        takes = sorted(self.gradient_of[allocation] for allocation in read - set(made) if self._ends(allocation))
        gives = [GradientEdge(self._gradient(allocation), self._alias_of(allocation, made)) for allocation in given]
        sums = []
        every = set(read)
        for node in op.sums:
            reads = step.reads(node)
            every |= reads
            into = {self.overwrites[total] for total in step.made(node) if total in self.overwrites}
            operands = sorted(self.gradient_of[allocation] for allocation in reads - into if self._ends(allocation))
            sums.append(GradientSum(self._sum_result(node), tuple(operands)))
        takes += sorted(self._order[allocation] for allocation in every if allocation in self._order)
        own = {allocation for node in op.backward for allocation in step.made(node)}
        for allocation in sorted(own):
            # Autograd is given it, so no op takes it; a gradient of no bytes makes other readers wait for this op.
            readers = self._readers.get(allocation, ()) if allocation in step.returned else ()
            if any(reader != index for reader, _ in readers):
                self._order[allocation] = self._new(f"{self.allocations.entries[allocation].name}_order", 0)
                gives.append(GradientEdge(self._order[allocation]))
        return BackwardOp(self._storages(every), tuple(takes), tuple(gives), tuple(sums))

    def _ends(self, allocation: int) -> bool:
        """Whether a gradient dies with its last use; ``loss.backward()`` itself keeps that of a scalar loss alive."""
        known = allocation in self.gradient_of and allocation not in self.step.returned
        return known and allocation not in self._scalar_tangents

    def _sum_result(self, node: fx.Node | GradientCopy) -> int:
        if isinstance(node, GradientCopy):
            parameter = self.joint.primals[node.primal].kind != "input"
            name = f"{node.source.name}_copy"
            if any(gradient.name == name for gradient in self._gradients):  # two primals have the same gradient
                name += f"_{node.primal}"
            self.copies[node.primal] = self._new(name, node.nbytes, parameter)
            return self.copies[node.primal]
        (allocation,) = self.allocations.made[node]
        if allocation in self.overwrites:  # the sum lives on; a gradient of no bytes says when its operands end
            into = self._gradients[self.gradient_of[allocation]]
            return self._new(f"{into.name}{IN_PLACE_SUM}{self.allocations.entries[allocation].name}", 0)
        return self._gradient(allocation)
