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

from ..memory.allocations import elements, ranks
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
        outside: the keys of what the caller asks for during the step, the gradients of outputs.
    """

    step: tuple[Request, ...]
    after: tuple[Request, ...]
    calls: tuple[int, ...]
    outside: frozenset[int] = frozenset()

    def of_large_segments(self) -> RequestTrace:
        """What segments for large requests serve of a step, in bytes of blocks; the caller's requests are left out."""
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
    filled: bool = True,
) -> RequestTrace:
    """The requests of one forward and backward whose outputs live until the backward ends.

    The gradient of a scalar output is made by ``loss.backward()``, which holds it to the end. With
    ``gradients_present`` each gradient is added to one that exists, and released after its part of the backward.
    Unless it is ``filled``, the program takes no fillers: so it is where it does not run in the step pool.
    """
    tracer = _Tracer(step, meter, gradients_present, filled)
    tracer.run(program.forward_events)
    outputs = tracer.held(node for node in step.joint.outputs if isinstance(node, fx.Node))
    saved = [node for node in program.saved if isinstance(node, fx.Node)]
    tracer.hold(outputs)
    tracer.names_become(saved)
    tangents = [node for node in step.joint.tangents if node is not None]
    scalars, outside = tracer.ask_for_tangents(tangents)
    tracer.run(program.backward_events)
    tracer.names_become([])
    tracer.drop(scalars)
    tracer.drop(outputs)
    lasting = tuple(Request(key, 0) for key in tracer.lasting)
    return RequestTrace(tuple(tracer.requests), lasting, tuple(tracer.calls), frozenset(outside))


def accumulating_trace(
    step: TracedStep, program: Program, meter: WorkspaceMeter, *, filled: bool = True
) -> RequestTrace:
    """The requests of a step that finds no gradients, and of one that adds to those that the first leaves."""
    first = request_trace(step, program, meter, filled=filled)
    second = request_trace(step, program, meter, gradients_present=True, filled=filled)
    last = max((request.key for request in first.step), default=0)

    def later(requests: Iterable[Request]) -> tuple[Request, ...]:
        return tuple(Request(last + request.key, request.nbytes) for request in requests)

    return RequestTrace(
        first.step + later(second.step),
        first.after + later(second.after),
        first.calls + second.calls,
        first.outside | {last + key for key in second.outside},
    )


class _Tracer:
    """Names, the memory that they refer to, and the requests so far. Memory that the step does not own has no key."""

    def __init__(self, step: TracedStep, meter: WorkspaceMeter, gradients_present: bool, filled: bool) -> None:
        self.step, self.meter, self.gradients_present, self.filled = step, meter, gradients_present, filled
        self.requests: list[Request] = []
        self.calls: list[int] = []  # that make them
        self._call_number, self._calls_made = NO_CALL, 0
        self._fillers: list[int] = []
        self.lasting: list[int] = []
        self._next = 0
        self._key_of: dict[int, int] = {}  # allocation -> the memory that it is in now
        self._names: dict[fx.Node, list[int]] = {}
        self._aside: dict[fx.Node, tuple[tuple[int, ...], list[int]]] = {}
        self._gradient_at = dict(step.joint.gradients)
        self._copies: dict[int, int] = {}
        self._added: list[int] = []  # gradients that autograd adds to others before the next call
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
        self._accumulate()
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

    def run(self, events: Iterable[Event]) -> None:
        """Do what the lines of a function do."""
        for event in events:
            if event.kind is EventKind.CALL:
                self._accumulate()
                self._call_number = self._calls_made
                for node in self._nodes(event):
                    self._call(node)
                self._call_number, self._calls_made = NO_CALL, self._calls_made + 1
            elif event.kind is EventKind.FILL:
                self._accumulate()
                sizes = event.about if self.filled else ()
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
            else:
                self._hand_over(event)

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
            added = self.gradients_present and self.step.joint.primals[primal].kind != "input"
            if added:
                self._added += keys
            else:
                self.lasting += keys

    def _accumulate(self) -> None:
        """Autograd has added the gradients that it was given to those that exist."""
        added, self._added = self._added, []
        self.drop(added)
