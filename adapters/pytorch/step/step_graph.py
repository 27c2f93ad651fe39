"""A joint graph as a training graph: what the planner plans and what the executor then runs, op by op."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

import torch
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
from ..capture.joint_graph import Joint
from ..capture.module_scopes import scope_of
from ..memory.allocations import Blocks, target_name, tensors
from ..memory.norm_statistics import drop_ignored_statistics, ignores_statistics
from ..memory.rng_state import generator_of, is_random, state_nbytes
from ..memory.slice_writes import fill_with_numbers
from ..memory.strides import is_dense, lies_like
from .backward_segments import Segment, assertions, cut, is_backward
from .buffer_reuse import Reuse, find
from .redundant_copies import drop_kept_copies


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a gradient that autograd could not take over as it is: of ``source``, for primal ``primal``."""

    source: fx.Node
    primal: int
    nbytes: int


@dataclass(slots=True)
class StepOp:
    """One op: the ``node`` its forward runs (None: nothing), buffers to overwrite after it, and its backward.

    The nodes ``then`` run right after ``node``, in the memory of its result; the op of such a node has its
    forward ``elsewhere``. ``checks`` are assertions on what the op makes.
    """

    name: str
    op_type: str
    node: fx.Node | None
    scope: str
    updates: list[tuple[int, fx.Node]] = field(default_factory=list)
    main: list[fx.Node] = field(default_factory=list)
    sums: list[fx.Node | Copy] = field(default_factory=list)
    once: bool = False
    then: tuple[fx.Node, ...] = ()
    elsewhere: bool = False
    checks: list[fx.Node] = field(default_factory=list)

    @property
    def runs(self) -> tuple[fx.Node, ...]:
        """The nodes that the forward runs."""
        return (self.node, *self.then) if self.node is not None and not self.elsewhere else ()

    @property
    def has_backward(self) -> bool:
        """Whether the op has a backward step."""
        return bool(self.main or self.sums)

    @property
    def random(self) -> bool:
        """Whether the forward draws from the global generator."""
        return any(is_random(node) for node in self.runs)


_CHOICES = ("argmax", "argmin", "argsort", "kthvalue", "mode", "multinomial", "sort", "topk")
_CHOICES_BESIDE_VALUES = ("max", "median", "min", "nanmedian")
"""Calls that choose. One last bit of what they read, and a re-run would route its rows elsewhere."""


def chooses(node: fx.Node) -> bool:
    """Whether a node makes a discrete choice, such as a router's, that must be made once."""
    name = target_name(node)
    return name in _CHOICES or (name in _CHOICES_BESIDE_VALUES and isinstance(node.meta.get("val"), tuple))


class TracedStep:
    """Ops in forward order, and how storages and gradients of `graph` map to blocks of the joint graph.

    ``storage_of`` maps the blocks that forward ops allocate, ``gradient_of`` the backward blocks that
    outlive their segment (tangents included). ``reuse`` says which nodes write over an argument; in the forward
    they are those of the step ``like``, where there is one.
    """

    def __init__(self, joint: Joint, like: TracedStep | None = None) -> None:
        self.joint = joint
        drop_ignored_statistics(joint.graph)
        drop_kept_copies(joint)
        fill_with_numbers(joint.graph)
        self.blocks = Blocks(joint.graph)
        segments = cut(joint, self.blocks)
        self._empty = {node: made[0] for node, made in self.blocks.made.items() if made}
        among = None if like is None else frozenset(node.name for node in like.reuse.elsewhere)
        self.reuse: Reuse = find(joint, self.blocks, segments, among)
        self.ops = self._make_ops(segments)
        self.storage_of: dict[int, int] = {}
        self.gradient_of: dict[int, int] = {}
        self._gradients: list[Gradient] = []
        self._copies: dict[int, int] = {}  # primal whose gradient is a copy -> that gradient
        self._follows: dict[int, int] = {}  # block of a gradient that autograd is handed -> who reads it waits for this
        self._place_copies()
        for op in self.ops:
            for block in self._written(op):
                self.storage_of[block] = len(self.storage_of)

    # -- ops -------------------------------------------------------------------------------------

    def _make_ops(self, segments: list[Segment]) -> list[StepOp]:
        owned = {segment.owner: segment for segment in segments}
        elsewhere = self.reuse.elsewhere
        ops: list[StepOp] = []
        reader: dict[int, int] = {}  # block of an overwritten buffer -> last op that reads it
        updated = {self.blocks.of[self.joint.primals[i].node][0] for i, _ in self.joint.updates}
        for node in self.joint.graph.nodes:
            if node.op != "call_function" or is_backward(node):
                continue
            allocates = self.blocks.allocates(node)
            joins = node in elsewhere
            if not allocates and not joins and node not in owned:
                continue
            op = StepOp(node.name, target_name(node), node if allocates or joins else None, scope_of(node))
            op.then, op.elsewhere = tuple(self.reuse.joined.get(node, ())), joins
            op.op_type += "_" if joins else ""
            if allocates or joins:
                old = self.blocks.reads(node) & updated
                reader.update(dict.fromkeys(old, len(ops)))
                op.once = (bool(old) and not ignores_statistics(node)) or chooses(node)
            if node in owned:
                op.main, op.sums = owned[node].main, list(owned[node].sums)
            ops.append(op)
        made_by = {block: i for i, op in enumerate(ops) for node in op.runs for block in self.blocks.made[node]}
        for node in assertions(self.joint.graph):
            ops[made_by.get(self.blocks.of[node.args[0]][0], 0)].checks.append(node)
        late: list[StepOp] = []
        for primal, value in self.joint.updates:
            buffer = self.blocks.of[self.joint.primals[primal].node][0]
            maker = made_by.get(self.blocks.of[value][0])
            if maker is not None and reader.get(buffer, -1) <= maker:
                ops[maker].updates.append((primal, value))
            else:  # a later op still reads the old value
                name = f"update_{self.joint.primals[primal].node.name}"
                late.append(StepOp(name, "copy_", None, "", updates=[(primal, value)], once=True))
        return ops + late

    def _place_copies(self) -> None:
        """Give a gradient a memory of its own where autograd would have to clone it."""
        owner = {block: op for op in self.ops for node in (*op.main, *op.sums) for block in self._made(node)}
        last = next((op for op in self.ops if op.has_backward), self.ops[-1])
        returned: set[int] = set()
        for primal, node in self.joint.gradients:
            (block,) = self.blocks.of[node]
            given, wanted = tensors(node)[0], tensors(self.joint.primals[primal].node)[0]
            if block in owner and block not in returned and _takes_over(given, wanted):
                returned.add(block)
                continue
            nbytes = wanted.numel() * wanted.element_size()
            owner.get(block, last).sums.append(Copy(node, primal, nbytes))

    def _made(self, node: fx.Node | Copy) -> tuple[int, ...]:
        return () if isinstance(node, Copy) else self.blocks.made[node]

    def _read(self, node: fx.Node | Copy) -> set[int]:
        return set(self.blocks.of[node.source]) if isinstance(node, Copy) else self.blocks.reads(node)

    @cached_property
    def copied(self) -> dict[int, Copy]:
        """For each primal whose gradient is a copy, the copy."""
        return {c.primal: c for op in self.ops for c in op.sums if isinstance(c, Copy)}

    @cached_property
    def returned(self) -> dict[int, bool]:
        """Blocks that are handed to autograd as gradients -> whether all of them are parameters'."""
        found: dict[int, bool] = {}
        for primal, node in self.joint.gradients:
            if primal not in self.copied:
                (block,) = self.blocks.of[node]
                parameter = self.joint.primals[primal].kind != "input"
                found[block] = found.get(block, True) and parameter
        return found

    # -- the training graph ----------------------------------------------------------------------

    @cached_property
    def graph(self) -> TrainingGraph:
        """The training graph; the fingerprint is left to the annotation."""
        blocks = self.blocks.blocks
        for tangent in self.joint.tangents:
            if tangent is not None:
                self._gradient(self.blocks.of[tangent][0])
        seeds = tuple(range(len(self._gradients)))
        used = self._users()
        backwards: dict[int, BackwardOp] = {}
        for index in range(len(self.ops) - 1, -1, -1):
            if self.ops[index].has_backward:
                backwards[index] = self._backward(index, used)
        ops = []
        for index, op in enumerate(self.ops):
            ops.append(
                TrainingOp(
                    op.name,
                    op.op_type,
                    self._forward_reads(op),
                    tuple(self.storage_of[block] for block in self._written(op)),
                    backwards.get(index),
                    state_nbytes(generator_of(op.node)) if op.node is not None and op.random else 0,
                    once=op.once,
                )
            )
        names: dict[int, list[str]] = {block: [] for block in self.storage_of}
        for node, found in self.blocks.of.items():
            for block in found:
                if block in names and node.name not in names[block]:
                    names[block].append(node.name)
        for node in self.reuse.elsewhere:
            names[self._empty[node]].append(node.name)
        outputs = {b for node in self.joint.outputs if isinstance(node, fx.Node) for b in self.blocks.of[node]}
        return TrainingGraph(
            tuple(ops),
            tuple(Storage(blocks[block].name, blocks[block].nbytes) for block in self.storage_of),
            tuple(self._gradients),
            self._storages(outputs),
            seeds,
            self._stationary(),
            tuple(tuple(names[block]) for block in self.storage_of),
        )

    def gradient_at(self, place: int) -> int:
        """The gradient of `graph` that is the one at ``place`` among the joint graph's."""
        primal, node = self.joint.gradients[place]
        return self._copies[primal] if primal in self.copied else self.gradient_of[self.blocks.of[node][0]]

    def _written(self, op: StepOp) -> tuple[int, ...]:
        """The blocks that the forward of an op makes; of one that runs elsewhere a block of no bytes."""
        if op.elsewhere and op.node is not None:
            return (self._empty[op.node],)
        return tuple(block for node in op.runs for block in self.blocks.made[node])

    def _forward_reads(self, op: StepOp) -> tuple[int, ...]:
        """The storages that must be there for the forward of an op.

        Where that runs elsewhere: first what the op where it runs reads too, then what both write into, then
        what that op reads for this one alone.
        """
        if op.node is None:
            return self._storages({block for _, value in op.updates for block in self.blocks.of[value]})
        if not op.elsewhere:
            reads = {block for node in op.runs for block in self.blocks.reads(node)}
            return self._storages(reads - set(self._written(op)))
        into = self.blocks.of[op.node][0]
        maker = self.blocks.blocks[into].node
        before = [maker, *self.reuse.joined[maker]]
        others = {block for node in before[: before.index(op.node)] for block in self.blocks.reads(node)}
        reads = self.blocks.reads(op.node) - {into}
        return (*self._storages(reads & others), self.storage_of[into], *self._storages(reads - others))

    def _storages(self, blocks: set[int]) -> tuple[int, ...]:
        return tuple(sorted(self.storage_of[block] for block in blocks if block in self.storage_of))

    def _gradient(self, block: int) -> int:
        """The gradient that lives in a block: in the end, where others are summed into it."""
        if block not in self.gradient_of:
            becomes = [block]
            while becomes[-1] in self._summed:
                becomes.append(self._summed[becomes[-1]])
            made = self.blocks.blocks[becomes[-1]]
            self.gradient_of.update(dict.fromkeys(becomes, len(self._gradients)))
            self._gradients.append(Gradient(made.name, made.nbytes, self.returned.get(becomes[-1], False)))
        return self.gradient_of[block]

    @cached_property
    def _summed(self) -> dict[int, int]:
        """For each block that a sum is written into the block of the sum."""
        sums = (node for op in self.ops for node in op.sums if node in self.reuse.calls)
        return {self.reuse.over[made]: made for node in sums for made in self._made(node)}

    def _shared(self, block: int, made: Collection[int]) -> int | None:
        """The gradient whose memory a block that an op makes takes over, where the op did not make that too."""
        while block in made and block in self.reuse.over:
            block = self.reuse.over[block]
        return None if block in made else self.gradient_of[block]

    def _users(self) -> dict[int, set[tuple[int, bool]]]:
        """For each block who reads it in the backward: (op, in its sums)."""
        used: dict[int, set[tuple[int, bool]]] = {}
        for index, op in enumerate(self.ops):
            for nodes, in_sums in ((op.main, False), (op.sums, True)):
                for node in nodes:
                    for block in self._read(node):
                        used.setdefault(block, set()).add((index, in_sums))
        return used

    def _backward(self, index: int, used: dict[int, set[tuple[int, bool]]]) -> BackwardOp:
        op = self.ops[index]
        made = [block for node in op.main for block in self.blocks.made[node]]
        given = [b for b in made if b in self.returned or used.get(b, set()) - {(index, False)}]
        read = {block for node in op.main for block in self._read(node)}
        takes = sorted(self.gradient_of[block] for block in read - set(made) if self._ends(block))
        gives = [GradientEdge(self._gradient(block), self._shared(block, made)) for block in given]
        sums = []
        every = set(read)
        for node in op.sums:
            reads = self._read(node)
            every |= reads
            into = {self.reuse.over[made] for made in self._made(node) if made in self.reuse.over}
            operands = sorted(self.gradient_of[block] for block in reads - into if self._ends(block))
            sums.append(GradientSum(self._result(node), tuple(operands)))
        takes += sorted(self._follows[block] for block in every if block in self._follows)
        own = {block for node in (*op.main, *op.sums) for block in self._made(node)}
        gives += [GradientEdge(self._handed_on(b)) for b in sorted(own) if self._is_handed_on(b, index, used)]
        return BackwardOp(self._storages(every), tuple(takes), tuple(gives), tuple(sums))

    def _is_handed_on(self, block: int, index: int, used: dict[int, set[tuple[int, bool]]]) -> bool:
        """Whether another op reads a gradient that autograd is handed, and that no op takes therefore."""
        return block in self.returned and any(reader != index for reader, _ in used.get(block, ()))

    def _handed_on(self, block: int) -> int:
        """A gradient of no bytes that says who must wait for the maker of such a block."""
        self._follows[block] = len(self._gradients)
        self._gradients.append(Gradient(f"{self.blocks.blocks[block].name}_order", 0))
        return self._follows[block]

    def _ends(self, block: int) -> bool:
        """Whether a gradient dies with its last use; ``loss.backward()`` itself holds that of a scalar loss."""
        return block in self.gradient_of and block not in self.returned and block not in self._scalar_seeds

    @cached_property
    def _scalar_seeds(self) -> frozenset[int]:
        tangents = [node for node in self.joint.tangents if node is not None]
        return frozenset(self.blocks.of[node][0] for node in tangents if tensors(node)[0].dim() == 0)

    def _result(self, node: fx.Node | Copy) -> int:
        if isinstance(node, Copy):
            primal = self.joint.primals[node.primal]
            self._copies[node.primal] = len(self._gradients)
            self._gradients.append(Gradient(f"{node.source.name}_copy", node.nbytes, primal.kind != "input"))
            return self._copies[node.primal]
        (block,) = self.blocks.made[node]
        if block in self.reuse.over:  # what is summed stays; a gradient of no bytes says when the operands end
            into = self._gradients[self.gradient_of[block]]
            self._gradients.append(Gradient(f"{into.name}{IN_PLACE_SUM}{self.blocks.blocks[block].name}", 0))
            return len(self._gradients) - 1
        return self._gradient(block)

    def _stationary(self) -> Stationary:
        constants = sum(made.nbytes for made in self.blocks.blocks if made.node.op == "get_attr")
        held = self.joint.stationary
        return Stationary(held["parameter"], held["buffer"] + held["attribute"] + constants, held["input"])

    @property
    def calls(self) -> list[fx.Node]:
        """Every node that the step runs and that allocates."""
        forward = [node for op in self.ops for node in op.runs]
        backward = [node for op in self.ops for node in (*op.main, *op.sums) if isinstance(node, fx.Node)]
        return forward + backward


def _takes_over(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether autograd keeps a gradient as it is: same strides as a dense parameter, else contiguous.

    The rule of AccumulateGrad (torch/csrc/autograd/functions/accumulate_grad.h, layout contract).
    """
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        return False
    if given.untyped_storage().nbytes() != given.numel() * given.element_size():
        return False
    return lies_like(given, wanted) if is_dense(wanted) else bool(given.is_contiguous())
