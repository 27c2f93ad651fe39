"""What a planned step asks of the allocator: every request and release in order, kernels' temporaries included.

The generated functions say when names begin and end (`codegen.Event`), and the meter what each call takes and gives
back (`WorkspaceMeter.changes`). Memory is released with its last name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from torch import fx

from ..memory.allocations import elements, ranks, tensors
from ..memory.caching_allocator import SMALL_REQUEST, block_nbytes
from ..memory.workspace_meter import WorkspaceMeter
from ..step.step_graph import TracedStep
from .codegen import Event, EventKind, Program

NO_CALL = -1


class Request(NamedTuple):
    """Memory ``key`` is asked for, or with ``nbytes`` of 0 released. Keys are not used again within one step."""

    key: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The requests of one step, or of two that accumulate gradients (`accumulating_trace`).

    Attributes:
        step: what the step asks for and releases.
        after: the release of the gradients that it leaves, when the caller drops them.
        calls: for each request of the step the number of the call that makes it (`Event`), or NO_CALL.
        outside: the keys of what does not lie in the step pool: what the calls ask for that make the outputs, and the
            gradients of these.
        outputs: the keys of the outputs.
        tangents: those of their gradients, for which the caller asks when the forward has returned.
    """

    step: tuple[Request, ...]
    after: tuple[Request, ...]
    calls: tuple[int, ...]
    outside: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    tangents: frozenset[int] = frozenset()

    def of_large_segments(self) -> RequestTrace:
        """What segments for large requests serve of a step, in bytes of blocks; what lies elsewhere is left out."""
        large = {key for key, nbytes in self.step if block_nbytes(nbytes) > SMALL_REQUEST} - self.outside
        kept = [(Request(request.key, block_nbytes(request.nbytes)), call)
                for request, call in zip(self.step, self.calls, strict=True) if request.key in large]  # fmt: skip
        step, calls = zip(*kept, strict=True) if kept else ((), ())
        return RequestTrace(step, tuple(request for request in self.after if request.key in large), calls)


def request_trace(
    step: TracedStep,
    program: Program,
    meter: WorkspaceMeter,
    *,
    gradients_present: bool = False,
    copies_gradients: bool = False,
    pooled: bool = True,
) -> RequestTrace:
    """The requests of one forward and backward whose outputs live until the backward ends.

    The gradient of a scalar output is made by ``loss.backward()``, which holds it to the end. With
    ``gradients_present`` each gradient is added to one that exists, and released after its part of the backward. With
    ``copies_gradients`` each is copied out of the step pool then. Unless it is ``pooled``, the program does not run in
    the step pool: it takes no fillers there, and copies no gradients.
    """
    tracer = _Tracer(step, meter, gradients_present, copies_gradients and pooled, pooled)
    tracer.run(program.forward_events, outside=program.outside)
    outputs = tracer.held(node for node in step.joint.outputs if isinstance(node, fx.Node))
    saved = [node for node in program.saved if isinstance(node, fx.Node)]
    tracer.hold(outputs)
    tracer.names_become(saved)
    tangents = [node for node in step.joint.tangents if node is not None]
    scalars, all_tangents = tracer.ask_for_tangents(tangents)
    tracer.run(program.backward_events)
    tracer.names_become([])
    tracer.drop(scalars)
    tracer.drop(outputs)
    lasting = tuple(Request(key, 0) for key in tracer.lasting)
    return RequestTrace(
        tuple(tracer.requests),
        lasting,
        tuple(tracer.calls),
        outside=frozenset((*tracer.outside, *all_tangents)),
        outputs=frozenset(outputs),
        tangents=frozenset(all_tangents),
    )


def accumulating_trace(
    step: TracedStep, program: Program, meter: WorkspaceMeter, *, copies_gradients: bool, pooled: bool = True
) -> RequestTrace:
    """The requests of a step that finds no gradients, and of one that adds to those that the first leaves."""
    first = request_trace(step, program, meter, copies_gradients=copies_gradients, pooled=pooled)
    second = request_trace(step, program, meter, gradients_present=True, pooled=pooled)
    last = max((request.key for request in first.step), default=0)

    def later(requests: Iterable[Request]) -> tuple[Request, ...]:
        return tuple(Request(last + request.key, request.nbytes) for request in requests)

    def of_both(keys: frozenset[int], of_second: frozenset[int]) -> frozenset[int]:
        return keys | {last + key for key in of_second}

    return RequestTrace(
        first.step + later(second.step),
        first.after + later(second.after),
        first.calls + second.calls,
        of_both(first.outside, second.outside),
        of_both(first.outputs, second.outputs),
        of_both(first.tangents, second.tangents),
    )


class _Tracer:
    """Names, the memory that they refer to, and the requests so far. Memory that the step does not own has no key."""

    def __init__(
        self, step: TracedStep, meter: WorkspaceMeter, gradients_present: bool, copies_gradients: bool, pooled: bool
    ) -> None:
        self.step, self.meter, self.pooled = step, meter, pooled
        self.gradients_present, self.copies_gradients = gradients_present, copies_gradients
        self.requests: list[Request] = []
        self.calls: list[int] = []  # that make them
        self._call_number, self._calls_made = NO_CALL, 0
        self._fillers: list[int] = []
        self.lasting: list[int] = []
        self.outside: list[int] = []
        self._next = 0
        self._key_of: dict[int, int] = {}  # allocation -> the memory that it is in now
        self._names: dict[fx.Node, list[int]] = {}
        self._aside: dict[fx.Node, tuple[tuple[int, ...], list[int]]] = {}
        self._gradient_at = dict(step.joint.gradients)
        self._copies: dict[int, int] = {}
        self._added: list[list[int]] = []  # gradients that autograd adds to others in the next pause
        self._copied_out: list[tuple[int, list[int]]] = []  # those that are copied in it: bytes and memory
        self._references: Counter[int] = Counter()

    # -- memory ----------------------------------------------------------------------------------

    def ask(self, nbytes: int) -> int:
        """Request memory; its key."""
        self._next += 1
        self._note(self._next, nbytes)
        return self._next

    def _note(self, key: int, nbytes: int) -> None:
        self.requests.append(Request(key, nbytes))
        self.calls.append(self._call_number)

    def hold(self, keys: Iterable[int]) -> None:
        """Something else refers to the memory, too."""
        self._references.update(keys)

    def drop(self, keys: Iterable[int]) -> None:
        """Something no longer refers to it; the last one releases it."""
        for key in keys:
            self._references[key] -= 1
            if not self._references[key]:
                self._note(key, 0)

    def held(self, nodes: Iterable[fx.Node]) -> list[int]:
        """The memory of some nodes, as of now."""
        return [key for node in nodes for key in self._keys(node)]

    def _keys(self, node: fx.Node) -> list[int]:
        return [self._key_of[a] for a in self.step.allocations.of[node] if a in self._key_of]

    # -- names -----------------------------------------------------------------------------------

    def _name(self, node: fx.Node) -> None:
        keys = self._keys(node)
        self.hold(keys)
        self._names[node] = keys

    def names_become(self, nodes: Iterable[fx.Node]) -> None:
        """A function ends: its names go, apart from those of ``nodes``."""
        kept = list(nodes)
        old = self._names
        self._names = {}
        for node in kept:
            self._name(node)
        for keys in old.values():
            self.drop(keys)

    def ask_for_tangents(self, nodes: Iterable[fx.Node]) -> tuple[list[int], list[int]]:
        """The gradients of the outputs exist: the memory of those that the caller holds to the end, and of all."""
        scalars, every = [], []
        for node in nodes:
            (allocation,) = self.step.allocations.of[node]
            if allocation in self._key_of:
                continue
            key = self.ask(self.step.allocations.entries[allocation].nbytes)
            self._key_of[allocation] = key
            every.append(key)
            self._name(node)
            if node.meta["val"].dim() == 0:
                self.hold([key])
                scalars.append(key)
        return scalars, every

    # -- events ----------------------------------------------------------------------------------

    def run(self, events: Iterable[Event], outside: frozenset[fx.Node] = frozenset()) -> None:
        """Do what the lines of a function do; what the calls ``outside`` ask for is not of the step pool."""
        for event in events:
            if event.kind is EventKind.CALL:
                self._call_number = self._calls_made
                for node in self._nodes(event):
                    asked = self._next
                    self._call(node)
                    if node in outside:
                        self.outside += range(asked + 1, self._next + 1)
                self._call_number, self._calls_made = NO_CALL, self._calls_made + 1
            elif event.kind is EventKind.FILL:
                sizes = event.about if self.pooled else ()
                self._fillers = [self.ask(nbytes) for nbytes in sizes if isinstance(nbytes, int)]
            elif event.kind is EventKind.EMPTY:
                for key in self._fillers:
                    self._note(key, 0)
            elif event.kind is EventKind.DELETE:
                for node in self._nodes(event):
                    self.drop(self._names.pop(node, ()))
            elif event.kind is EventKind.SET_ASIDE:
                for node in self._nodes(event):
                    keys = list(self._names[node])
                    self.hold(keys)
                    self._aside[node] = (self.step.allocations.of[node], keys)
            elif event.kind is EventKind.RESTORE:
                for node in self._nodes(event):
                    allocations, keys = self._aside.pop(node)
                    self._key_of.update(zip(allocations, keys, strict=True))
                    self._names[node] = keys
            elif event.kind is EventKind.COPY:
                for primal in event.about:
                    assert isinstance(primal, int)
                    self._copies[primal] = self.ask(self.step.copied[primal].nbytes)
                    self.hold([self._copies[primal]])
            elif event.kind is EventKind.HAND_OVER:
                self._hand_over(event)
            else:
                self._accumulate(later_part=event.about != (0,))

    @staticmethod
    def _nodes(event: Event) -> Iterable[fx.Node]:
        return (node for node in event.about if isinstance(node, fx.Node))

    def _call(self, node: fx.Node) -> None:
        allocations = self.step.allocations
        made = allocations.made[node]
        overwrites = self.step.reuse.overwrites
        for allocation in made:
            self._key_of.pop(allocation, None)
            if node in self.step.reuse.calls and allocation in overwrites and overwrites[allocation] in self._key_of:
                self._key_of[allocation] = self._key_of[overwrites[allocation]]
        rest: list[int] = []
        if node.op == "call_function" and (made or node in self.step.reuse.calls):
            rest = self._run(node, made)
        self._name(node)
        self.hold(rest)
        self._names[node] = [*self._names[node], *rest]

    def _run(self, node: fx.Node, made: tuple[int, ...]) -> list[int]:
        """Make the requests of one call; what it returned besides the memory of its results."""
        if not self.meter.is_measured(node):
            for allocation in made:
                if allocation not in self._key_of:
                    self._key_of[allocation] = self.ask(self.step.allocations.entries[allocation].nbytes)
            return []
        placed = zip(elements(node), self.step.allocations.of[node], strict=True)
        places = [(ranks(node, {element}), allocation) for element, allocation in placed]
        inside: dict[int, int] = {}
        results: set[int] = set()
        for change in self.meter.changes(node):
            if change.nbytes < 0:
                self._note(inside.pop(change.number), 0)
                continue
            key = self.ask(change.nbytes)
            inside[change.number] = key
            for positions, allocation in places:
                if positions & change.positions:
                    self._key_of[allocation] = key
                    results.add(key)
        return [key for key in inside.values() if key not in results]

    def _hand_over(self, event: Event) -> None:
        for primal in event.about:
            assert isinstance(primal, int)
            if primal in self._copies:
                keys = [self._copies.pop(primal)]
            else:
                keys = self._keys(self._gradient_at[primal])
                self.hold(keys)
            if self.step.joint.primals[primal].kind == "input":
                self.lasting += keys
                self._added.append([])  # it waits in autograd's queue, too
            elif self.gradients_present:
                self._added.append(keys)
            elif self.copies_gradients:
                (like,) = tensors(self.step.joint.primals[primal].node)
                self._copied_out.append((like.numel() * like.element_size(), keys))
            else:
                self.lasting += keys

    def _accumulate(self, *, later_part: bool) -> None:
        """The gradients that autograd was given are copied, or added to those that exist."""
        copied, self._copied_out = self._copied_out, []
        for nbytes, keys in copied:
            self.outside.append(self.ask(nbytes))
            self.hold(self.outside[-1:])
            self.lasting += self.outside[-1:]
            self.drop(keys)
        added, self._added = self._added, []
        for position in order_of_leaves(len(added), later_part=later_part):
            self.drop(added[position])


def order_of_leaves(number: int, *, later_part: bool) -> list[int]:
    """The order in which autograd adds to the gradients of so many leaves that one node gives gradients to.

    Its queue is a ``std::priority_queue``, here as libstdc++ moves what waits in it. Leaves come before the node of a
    later part, which is put into it first; among each other they have no order.
    """
    heap: list[int] = []

    def is_before(one: int, other: int) -> bool:
        return one < 0 <= other

    def rise(hole: int, value: int) -> None:
        while hole and is_before(heap[(hole - 1) // 2], value):
            heap[hole], hole = heap[(hole - 1) // 2], (hole - 1) // 2
        heap[hole] = value

    for value in range(-1 if later_part else 0, number):
        heap.append(value)
        rise(len(heap) - 1, value)
    found = []
    while heap:
        found.append(heap[0])
        value, hole, child, size = heap.pop(), 0, 0, len(heap)
        while child < (size - 1) // 2:
            child = 2 * (child + 1)
            child -= is_before(heap[child], heap[child - 1])
            heap[hole], hole = heap[child], child
        if size and size % 2 == 0 and child == (size - 2) // 2:
            child = 2 * child + 1
            heap[hole], hole = heap[child], child
        if size:
            rise(hole, value)
    return [position for position in found if position >= 0]
