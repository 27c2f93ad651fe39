"""Finds calls that may write their result over an argument that nothing else reads any more.

Forward: a call that is the only reader of another call's result is fused with it. The two run as one op of the plan
and take one storage; a plan that keeps or recomputes one keeps or recomputes both. Nothing is lost: nobody else reads
the first result, and both have the same size.

Backward: a call that makes a gradient takes over the memory of a gradient that ends with it, and the sum of two
gradients that of the one its own op makes. Tangents and returned gradients are left alone. Temporaries between the
calls of one op are reused only if eager training writes into them too (slice_writes.py): a plan then counts the same
temporaries for a step without reuse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from .. import torch_private
from ..joint import Joint, is_backward
from ..memory.allocations import Allocations, elements
from ..memory.inplace_kernels import KERNELS, InPlace
from ..memory.rng_state import is_random
from ..memory.slice_writes import SLICE_KERNELS, VIEWS, WRITES, scatters_of
from ..memory.strides import is_dense
from .backward_segments import Segment, assertions


@dataclass(slots=True)
class Reuse:
    """The calls that run in place, and the memory they write.

    Attributes:
        calls: the nodes that run in place.
        fused: for the maker of a forward allocation the nodes that run right after it in its memory, in order.
        overwrites: for an allocation made in the backward the one whose memory it takes.
    """

    calls: dict[fx.Node, InPlace] = field(default_factory=dict)
    fused: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    overwrites: dict[int, int] = field(default_factory=dict)

    @property
    def fused_nodes(self) -> frozenset[fx.Node]:
        """Forward nodes that run fused with the maker of the memory they write."""
        return frozenset(node for nodes in self.fused.values() for node in nodes)


def find_reuse(
    joint: Joint, allocations: Allocations, segments: Iterable[Segment], among: frozenset[str] | None = None
) -> tuple[Reuse, Allocations]:
    """All reuse in a graph, and the allocations with it: forward nodes that run in place live where they write.

    Only forward nodes named in ``among`` may run in place; None: all.
    """
    finder = _Finder(joint, allocations.copy(), list(segments), among)
    finder.forward()
    finder.backward()
    return finder.found, finder.allocations


class _Finder:
    def __init__(
        self, joint: Joint, allocations: Allocations, segments: list[Segment], among: frozenset[str] | None
    ) -> None:
        self.joint, self.allocations, self.segments, self.among = joint, allocations, segments, among
        self.found = Reuse()
        self.slices: set[fx.Node] = set()  # nodes that write over a slice of an allocation
        self.position = {node: i for i, node in enumerate(joint.graph.nodes)}
        run = {node for segment in segments for node in (*segment.main, *segment.sums)}
        self.readers: dict[int, list[fx.Node]] = {}
        for node in joint.graph.nodes:
            if allocations.allocates(node) and (node in run or not is_backward(node)):
                for allocation in allocations.reads(node):
                    self.readers.setdefault(allocation, []).append(node)
        self.pinned = {allocation for node in self._pinned_nodes() for allocation in allocations.of[node]}
        self.overwritten = {allocations.of[joint.primals[primal].node][0] for primal in joint.overwritten}

    def _pinned_nodes(self) -> Iterator[fx.Node]:
        """Nodes whose memory is given to code outside of the graph, or read by an assertion."""
        yield from (node for node in self.joint.outputs if isinstance(node, fx.Node))
        yield from (node for _, node in self.joint.gradients)
        yield from (node for _, node in self.joint.updates)
        yield from (node for check in assertions(self.joint.graph) for node in check.all_input_nodes)

    # -- which argument --------------------------------------------------------------------------

    def candidates(self, node: fx.Node) -> Iterator[tuple[InPlace, int]]:
        """The arguments, with their allocations, that a node may write over, judging by the two of them."""
        kernel = KERNELS.get(node.target) or WRITES.get(node.target)
        if kernel is None or node.kwargs.keys() & {"out", "dtype"} or not kernel.allowed(node):
            return
        result = next(iter(elements(node).values()))
        for position in kernel.arguments:
            argument = node.args[position] if position < len(node.args) else None
            if not isinstance(argument, fx.Node) or argument.op != "call_function":
                continue
            (allocation,) = self.allocations.of[argument] or (-1,)
            once = sum(other is argument for other in node.args) == 1
            readers = self.readers.get(allocation, [])
            # A write of a backward goes into a temporary of its own op, read before or not; a forward one is fused.
            last = readers[-1:] if node.target in WRITES and is_backward(node) else readers
            ends = self._is_alone(allocation, node) and once and last == [node] and allocation not in self.pinned
            if ends and _same_memory(argument.meta["val"], result, self.allocations.entries[allocation].nbytes):
                yield InPlace(kernel, position), allocation

    def _is_alone(self, allocation: int, node: fx.Node) -> bool:
        """Whether a node has one argument in an allocation, apart from results written over slices of it."""
        return (
            sum(allocation in self.allocations.of[other] for other in node.all_input_nodes if other not in self.slices)
            == 1
        )

    def slice_write(self, node: fx.Node) -> tuple[InPlace, int] | None:
        """The view that a node may write over as the slice that scatters write its result into, with its allocation."""
        kernel, view = SLICE_KERNELS.get(node.target), node.args[0] if node.args else None
        if kernel is None or not isinstance(view, fx.Node) or node.kwargs or not kernel.allowed(node):
            return None
        (allocation,) = self.allocations.of[view] or (-1,)
        readers = self.readers.get(allocation, [])
        if view.op != "call_function" or node not in readers:
            return None
        nbytes = self.allocations.entries[allocation].nbytes
        scatters = scatters_of(node, view, nbytes, lambda made: self.readers.get(self.allocations.made[made][0], []))
        rest = readers[readers.index(node) :] if is_backward(node) else readers
        if (
            not scatters
            or rest != [node, *scatters]
            or not self._is_alone(allocation, node)
            or allocation in self.pinned
        ):
            return None
        whole, target, result = scatters[-1].args[0], view.meta["val"], node.meta["val"]
        fits = _same_memory(whole.meta["val"], scatters[-1].meta["val"], nbytes)
        fits = fits and (target.shape, target.dtype, target.device) == (result.shape, result.dtype, result.device)
        return (InPlace(kernel, 0), allocation) if fits else None

    # -- forward ---------------------------------------------------------------------------------

    def forward(self) -> None:
        """Fuse readers with makers, in the order of the graph."""
        for node in self.joint.graph.nodes:
            if self.among is not None and node.name not in self.among:
                continue
            if node.op == "call_function" and not is_backward(node) and self.allocations.allocates(node):
                for call, allocation in self.candidates(node):
                    maker = self.allocations.entries[allocation].node
                    if self._can_fuse(maker, node, allocation):
                        self._fuse(call, maker, node, allocation)
                        break
                else:
                    self._fuse_slice(node)

    def _fuse_slice(self, node: fx.Node) -> None:
        """Fuse a node that writes into a slice, and the scatters after it, with the maker of the whole tensor."""
        found = self.slice_write(node)
        if found is None:
            return
        call, allocation = found
        maker = self.allocations.entries[allocation].node
        if self._can_fuse(maker, node, allocation):
            scatters = self.readers[allocation][1:]
            self._fuse(call, maker, node, allocation)
            self.readers[allocation] = scatters
            self.slices.add(node)

    def _can_fuse(self, maker: fx.Node, node: fx.Node, allocation: int) -> bool:
        """Whether a node can run right after a maker, and the two together need no more memory than each alone."""
        if is_backward(maker) or not _is_plain(maker):
            return False
        group = [maker, *self.found.fused.get(maker, ())]
        made = {made for member in group for made in self.allocations.made[member]}
        reads = {read for member in group for read in self.allocations.reads(member)} - made
        more = self.allocations.reads(node) - made - reads
        if any(self.position[self.allocations.entries[read].node] > self.position[maker] for read in more):
            return False
        if is_random(node) and any(is_random(other) for other in self._between(maker, node) if other not in group):
            return False
        if more & self.overwritten:  # the node must run once; the maker need not
            return False
        unread = [other for other in made if not self.readers.get(other) and other not in self.pinned]
        if unread and len(self.allocations.made[node]) > 1:
            return False  # it is freed before the node runs; as results of one op both would be alive at once
        nbytes = self.allocations.entries[allocation].nbytes
        return not self._nbytes(more) or self._nbytes(reads) <= nbytes

    def _between(self, first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
        node = first.next
        while node is not last:
            yield node
            node = node.next

    def _nbytes(self, allocations: Iterable[int]) -> int:
        """The bytes of allocations that forward calls make; others are alive all the time."""
        made = (self.allocations.entries[allocation] for allocation in allocations)
        return sum(allocation.nbytes for allocation in made if allocation.node.op == "call_function")

    def _fuse(self, call: InPlace, maker: fx.Node, node: fx.Node, allocation: int) -> None:
        self.found.calls[node] = call
        self.found.fused.setdefault(maker, []).append(node)
        old = self.allocations.of[node][0]
        self.allocations.move(old, allocation)
        self.readers[allocation] = self.readers.pop(old, [])
        if old in self.pinned:
            self.pinned.add(allocation)

    # -- backward --------------------------------------------------------------------------------

    def backward(self) -> None:
        """Let backward nodes take over the memory of gradients that end with them."""
        for segment in self.segments:
            own = {allocation for node in segment.main for allocation in self.allocations.made[node]}
            for node in segment.main:
                made = self.allocations.made[node][0]
                if self._write(node, own) or node.target in WRITES:
                    continue
                given = any(reader not in segment.main for reader in self.readers.get(made, ()))
                if given and made not in self.pinned:
                    self._overwrite(node, {b for b in self.allocations.reads(node) if b not in own})
            for node in segment.sums:
                (made,) = self.allocations.made[node]
                # A parameter's gradient never takes over the memory of another gradient.
                fitting = own - self.found.overwrites.keys() if made in self.pinned else own
                if self._overwrite(node, fitting):
                    own.add(made)

    def _write(self, node: fx.Node, own: Collection[int]) -> bool:
        """Let a write of a backward go into a temporary of its op."""
        found = self.slice_write(node)
        if found is not None and found[1] in own and self._is_own(found[1]):
            self.found.calls[node], self.found.overwrites[self.allocations.made[node][0]] = found
            self.slices.add(node)
        elif node.target not in WRITES or not self._overwrite(node, own):
            return False
        source = node.args[1]
        if node.target in VIEWS and source in self.slices:  # the source has the memory already
            self.found.overwrites[self.allocations.made[node][0]] = self.allocations.made[source][0]
        return True

    def _is_own(self, allocation: int) -> bool:
        maker = self.allocations.entries[allocation].node
        return _is_plain(maker) and is_backward(maker)

    def _overwrite(self, node: fx.Node, allocations: Collection[int]) -> bool:
        """Let a node write over an argument in one of the allocations."""
        for call, allocation in self.candidates(node):
            maker = self.allocations.entries[allocation].node
            if allocation in allocations and _is_plain(maker) and is_backward(maker):
                self.found.calls[node] = call
                self.found.overwrites[self.allocations.made[node][0]] = allocation
                return True
        return False


def _is_plain(node: fx.Node) -> bool:
    """Whether a node is a call of torch's own, which returns memory of its own."""
    return isinstance(node.target, torch_private.OpOverload) and node.target.namespace == "aten"


def _same_memory(argument: object, result: torch.Tensor, nbytes: int) -> bool:
    """Whether a result fits into the memory of an argument, element over element, and fills it.

    Not so for a single number, which a kernel may return inside a larger storage, nor for a view that conjugates or
    negates: what is written over it would be conjugated or negated too.
    """
    return (
        isinstance(argument, torch.Tensor)
        and argument.dim() > 0
        and 0 < argument.numel() * argument.element_size() == nbytes
        and argument.dtype == result.dtype
        and argument.device == result.device
        and argument.shape == result.shape
        and argument.stride() == result.stride()
        and not (argument.is_conj() or argument.is_neg())
        and is_dense(argument)
    )
