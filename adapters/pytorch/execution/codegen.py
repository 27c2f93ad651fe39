"""A schedule as two straight-line Python functions, forward and backward, generated and compiled once.

Names are deleted where the memory model frees their bytes: a storage's names at its FREE step, a gradient's after the
last op that takes it, a temporary after its last use. Views are made when first needed and deleted with their storage;
none is made where a tensor of the same memory and layout has a name.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import fx

from ....planner.errors import PlanMismatchError
from ....planner.schedule import Schedule, Step, StepKind
from .. import torch_private
from ..errors import UnsupportedModuleError
from ..joint import is_backward
from ..memory.rng_state import generator_of, restore_state, save_state, swap_state
from ..step.backward_parts import Part, parts_of
from ..step.step_graph import TracedStep
from ..step.step_ops import GradientCopy, StepOp
from .python_bindings import binding

Values = list[Any]
OnStep = Callable[[int], None]
"""Called with NO_STEP when a function begins, and with k after the k-th step of the schedule."""
NO_STEP = -1


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a program uses the pool that it runs in (step_pool.py).

    Attributes:
        fillers: bytes of fillers by the number of a call (fillers.py).
        fill: the function that makes them.
        outside: runs a call outside of the pool, ``outside(function, *args, **kwargs)``. What makes the outputs runs
            there, since the caller holds these for as long as it likes. None for a program that does not run in a
            pool.
    """

    fillers: Mapping[int, tuple[int, ...]]
    fill: Callable[..., Any]
    outside: Callable[..., Any] | None = None


NO_POOL = Pooling({}, list)


class EventKind(Enum):
    """What a line does to memory."""

    CALL = auto()  # runs a node, and names its result
    FILL = auto()  # takes fillers of so many bytes each, held during the next call
    EMPTY = auto()  # lets go of them
    DELETE = auto()  # deletes names
    SET_ASIDE = auto()  # hides names while their values are computed again
    RESTORE = auto()  # deletes what was computed again, and shows the hidden names
    COPY = auto()  # copies the gradient of a primal
    HAND_OVER = auto()  # lists the gradients of primals for autograd
    PAUSE = auto()  # gives them to autograd, which has dealt with them then; about the number of parts to come


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a generated function, and the nodes (or indices of primals, bytes, a number) that it is about.

    Calls are numbered as they come, those of the backward after those of the forward.
    """

    kind: EventKind
    about: tuple[fx.Node | int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The two functions of one training step, and their source.

    ``forward(primals) -> (outputs, saved)``; ``backward(primals, saved, tangents)`` yields the gradients of one part
    after the other (backward_parts.py), each time in a list that the caller must empty. Both functions empty the lists
    they are given, so that values die as the plan says.

    Attributes:
        backward_primals: the primals that the backward reads.
        saved: the nodes whose values the forward saves, then the ops whose generator states it saves.
        saved_outputs: the indices in ``saved`` of values that share memory with a model output and that the backward
            reads.
        parts: the parts of the backward.
        forward_events, backward_events: what the two functions do to memory, in order (`Event`).
        outside: the calls of the forward that run outside of the step pool.
    """

    forward: Callable[[Values], tuple[Values, Values]]
    backward: Callable[[Values, Values, Values], Iterator[Values]]
    backward_primals: tuple[int, ...]
    saved: tuple[fx.Node | int, ...]
    saved_outputs: tuple[int, ...]
    parts: tuple[Part, ...]
    forward_events: tuple[Event, ...]
    backward_events: tuple[Event, ...]
    outside: frozenset[fx.Node]


class _Writer:
    """Source lines of one function, and the names that are alive after the last line."""

    def __init__(
        self,
        step: TracedStep,
        constants: dict[str, Any],
        pooling: Pooling,
        *,
        outside: frozenset[fx.Node] = frozenset(),
        calls: int = 0,
    ) -> None:
        self.step, self.pooling = step, pooling
        self.outside = outside  # calls to run outside of the pool
        self.calls = calls  # so many there have been, in both functions
        self.constants = constants
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.alive: set[fx.Node] = set()
        self.names_in: dict[int, list[fx.Node]] = {}  # allocation -> names that keep it alive
        self.requested: dict[fx.Node, None] = {}  # names that must exist before the first line
        self.read: set[fx.Node] = set()  # names that are arguments of a line
        self.available: set[fx.Node] = set()  # names that may be asked for
        self.available_of: dict[int, list[fx.Node]] = {}  # the same, by allocation
        self.outputs = {node for node in step.joint.outputs if isinstance(node, fx.Node)}
        self.gradients = {node for _, node in step.joint.gradients}
        self.writes: dict[fx.Node, list[fx.Node]] = {}  # call -> the primals of buffers that it writes
        for index, node in step.joint.writes:
            self.writes.setdefault(node, []).append(step.joint.primals[index].node)
        of_primals: dict[int, list[fx.Node]] = {}
        for primal in step.joint.primals:
            for allocation in step.allocations.of[primal.node]:
                of_primals.setdefault(allocation, []).append(primal.node)
        self.near = (self.names_in, self.available_of, of_primals)

    def offer(self, nodes: set[fx.Node]) -> None:
        """Make names available: a name that is requested then exists before the first line."""
        self.available |= nodes
        for node in nodes:
            for allocation in self.step.allocations.of[node]:
                self.available_of.setdefault(allocation, []).append(node)

    # -- names -----------------------------------------------------------------------------------

    def constant(self, value: Any) -> str:
        name = f"__c{len(self.constants)}"
        self.constants[name] = value
        return name

    def function(self, target: Any, binding: Callable[..., Any] | None = None) -> str:
        """The variable of what makes a call."""
        name = f"__f_{getattr(target, '__name__', 'call').replace('.', '_')}"
        direct = binding or torch_private.direct(target)
        while self.constants.setdefault(name, direct) is not direct:
            name += "_"
        return name

    def argument(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.name(value)
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self.argument(item) for item in value)
            return f"[{inner}]"
        return self.constant(value)

    def name(self, node: fx.Node) -> str:
        """The variable of a node's result; a view that does not exist yet is made now, unless another one is alike."""
        node = self._twin(node) or node
        self.read.add(node)
        if node not in self.alive:
            if node.op in ("placeholder", "get_attr") or node in self.available:
                self.requested[node] = None
                self.define(node)
            elif (
                self.step.allocations.allocates(node)
                or not self.step.allocations.of[node]
                or node in self.step.reuse.calls
            ):
                raise UnsupportedModuleError(f"{node.name} is used before the plan computes it")
            else:
                self.view(node)
        return str(node.name)

    def view(self, node: fx.Node) -> None:
        """Make a view: in one call even if it is a view of views, should what they view lie in memory as traced."""
        chain = self._views_up_to_a_name(node)
        base = chain[-1].args[0] if chain else node
        known, wanted = _layout(base), _layout(node)
        calls = sum(each.target is not operator.getitem for each in chain)
        if calls < 2 or node in self.outputs or not known or not wanted or known[3:] != wanted[3:] or any(known[4:]):
            self.call(node)
            return
        _, strides, offset, *_ = known
        first, made = self.name(base), self.function(torch_private.VariableFunctions.as_strided)
        as_traced = f"{first}.stride() == {tuple(strides)} and {first}.storage_offset() == {offset}"
        one_by_one = first
        for each in reversed(chain):
            one_by_one = self.expression(each, one_by_one)
        words = ", ".join(map(repr, (tuple(wanted[0]), tuple(wanted[1]), wanted[2])))
        self.lines.append(f"{node.name} = {made}({first}, {words}) if {as_traced} else {one_by_one}")
        self.event(EventKind.CALL, [node])
        self.define(node)

    def _views_up_to_a_name(self, node: fx.Node) -> list[fx.Node]:
        """A view without a name, the view that it is a view of if that has none, and so on."""
        chain = []
        while _is_view(node) and not self.may_be_named(node) and node not in self.step.reuse.calls:
            chain.append(node)
            node = node.args[0]
            if _layout(node) and node not in self.gradients and self._twin(node):
                break
        return chain

    def _twin(self, node: fx.Node) -> fx.Node | None:
        """A tensor of the same memory and layout as one that does not exist yet, so that no view is made.

        What is given to the caller is an object of its own: an output always, a gradient unless it is all that a call
        of the backward made.
        """
        layout = _layout(node) if node not in self.alive else None
        if layout is None or node in self.outputs or not self._lies_as_traced(node):
            return None
        of = self.step.allocations.of
        first = of[node][:1]
        near = [other for allocation in first for group in self.near for other in group.get(allocation, ())]
        for other in near:
            alike = of[other] == of[node] and _layout(other) == layout and self._lies_as_traced(other)
            if alike and self.may_be_named(other):
                if node not in self.gradients:
                    return other
                if other not in self.gradients and is_backward(other) and self.step.allocations.allocates(other):
                    self.gradients.add(other)
                    return other
        return None

    def _lies_as_traced(self, node: fx.Node) -> bool:
        """Whether a tensor lies in its memory as traced: what is written over a slice lies where the slice does."""
        if node.target is operator.getitem and not _is_view(node):
            return self._is_written_as_traced(node.args[0], node)
        return self._lies_as_traced(node.args[0]) if _is_view(node) else self._is_written_as_traced(node, node)

    def _is_written_as_traced(self, call: fx.Node, result: fx.Node) -> bool:
        """Whether a call that writes over an argument gives what lies as this one does."""
        over = self.step.reuse.calls.get(call)
        if over is None:
            return True
        written = call.args[over.argument]
        return _layout(written) == _layout(result) and self._lies_as_traced(written)

    def may_be_named(self, node: fx.Node) -> bool:
        """Whether a name exists, or may be requested."""
        return node in self.alive or node in self.available or node.op == "placeholder"

    def define(self, node: fx.Node) -> None:
        """Note that a name is alive from here on."""
        self.alive.add(node)
        for allocation in set(self.step.allocations.of[node]):
            self.names_in.setdefault(allocation, []).append(node)

    def names_of(self, allocations: set[int]) -> list[fx.Node]:
        """The live names that share memory with one of the allocations."""
        found = (node for allocation in sorted(allocations) for node in self.names_in.get(allocation, ()))
        return list(dict.fromkeys(node for node in found if node in self.alive))

    def request(self, allocations: set[int]) -> None:
        """Request every available name in one of the allocations."""
        for allocation in sorted(allocations):
            for node in self.available_of.get(allocation, ()):
                if node not in self.alive:
                    self.requested[node] = None
                    self.define(node)

    # -- lines -----------------------------------------------------------------------------------

    def expression(self, node: fx.Node, first: str | None = None, again: bool = False) -> str:
        """The call of a node's operator, in place if it writes over an argument, or an element of a tuple.

        ``first`` is what to write for its first argument, other than a name; ``again`` says that it has run before.
        """
        if node.target is operator.getitem:
            source, position = node.args
            return f"{first or self.argument(source)}[{position!r}]"
        call = self.step.reuse.calls.get(node)
        target, args, kwargs = node.target, node.args, node.kwargs
        if again:  # the buffers that it writes have their new values
            args = tuple(None if argument in self.writes.get(node, ()) else argument for argument in args)
        if call is not None:
            target, (args, kwargs) = call.kernel.call, call.bound(args, kwargs)
        bound = None
        if torch_private.is_called_directly(target):
            bound = binding(target, *fx.map_arg((args, kwargs), lambda argument: argument.meta.get("val")))
        words = [self.argument(value) for value in args] if first is None else [first, *map(self.argument, args[1:])]
        left_out = bound.left_out if bound else frozenset()
        words += [f"{key}={self.argument(value)}" for key, value in kwargs.items() if key not in left_out]
        function = self.function(target, bound and bound.function)
        if node in self.outside:
            function, words = self.function(self.pooling.outside), [function, *words]
        return f"{function}({', '.join(words)})"

    def call(self, node: fx.Node, again: bool = False) -> None:
        """Run a node and name its result, but for a write that nothing reads; ``again`` says that it has run before."""
        if node in self.writes and not node.users and not self.step.allocations.allocates(node):
            self.lines.append(self.expression(node, again=again))
            return
        line = f"{node.name} = {self.expression(node, again=again)}"
        fillers = self.pooling.fillers.get(self.calls, ())
        if fillers:
            self.lines.append(f"__fillers = {self.function(self.pooling.fill)}({', '.join(map(str, fillers))})")
            self.event(EventKind.FILL, fillers)
        self.lines.append(line)
        self.event(EventKind.CALL, [node])
        if fillers:
            self.lines.append("del __fillers")
            self.event(EventKind.EMPTY, fillers)
        self.define(node)

    def event(self, kind: EventKind, about: Iterable[fx.Node | int]) -> None:
        """Note what the last line does to memory."""
        self.events.append(Event(kind, tuple(about)))
        self.calls += kind is EventKind.CALL

    def elements(self, node: fx.Node) -> None:
        """Name the elements of a tuple and delete the tuple, which would keep all of them alive."""
        if _is_tuple(node):
            for user in node.users:
                if user.target is operator.getitem and user not in self.alive:
                    self.call(user)
            self.delete([node])

    def delete(self, nodes: list[fx.Node]) -> None:
        """Delete the names of those nodes that are alive."""
        gone = [node for node in nodes if node in self.alive]
        self.alive.difference_update(nodes)
        if gone:
            self.lines.append(f"del {', '.join(node.name for node in gone)}")
            self.event(EventKind.DELETE, gone)

    def release(self, allocations: set[int]) -> None:
        """Delete every name in one of the allocations; names not yet requested are no longer available."""
        for allocation in sorted(allocations):
            self.delete(self.names_in.pop(allocation, []))
            self.available.difference_update(self.available_of.pop(allocation, ()))

    def source(self, head: str, first: list[str], last: str) -> str:
        body = [*first, *self.lines, last]
        return head + "\n" + "\n".join(f"    {line}" for line in body) + "\n"


class _Generator:
    def __init__(
        self, step: TracedStep, schedule: Schedule, on_step: OnStep | None, parts: tuple[Part, ...], pooling: Pooling
    ) -> None:
        self.step, self.schedule, self.on_step, self.pooling = step, schedule, on_step, pooling
        self.allocation_of = {storage: allocation for allocation, storage in step.storage_of.items()}
        self.constants: dict[str, Any] = {}
        self.recomputed = {s.index for s in schedule if s.kind is StepKind.RECOMPUTE}
        self.takers = self._count_takers()
        self.allocations_of: dict[int, set[int]] = {}
        for allocation, gradient in step.gradient_of.items():
            self.allocations_of.setdefault(gradient, set()).add(allocation)
        self.live: set[int] = set()  # allocations of forward values
        self.parts = parts or parts_of(step, schedule)

    def _count_takers(self) -> Counter[int]:
        graph = self.step.graph
        count: Counter[int] = Counter()
        for op in graph.ops:
            if op.backward is not None:
                count.update(op.backward.takes)
                for total in op.backward.sums:
                    count.update(total.operands)
        return count

    def program(self) -> Program:
        steps = list(self.schedule)
        drawing = [s.index for s in steps if s.kind is StepKind.FORWARD and self.step.ops[s.index].random]
        if drawing != sorted(drawing):
            raise PlanMismatchError(
                "the plan runs random ops in another order than the module", remedy="make the plan again"
            )
        split = max(i for i, step in enumerate(steps) if step.kind is StepKind.FORWARD) + 1
        while split < len(steps) and steps[split].kind is StepKind.FREE:
            split += 1
        outside = _making_outputs(self.step) if self.pooling.outside is not None else frozenset()
        forward = _Writer(self.step, self.constants, self.pooling, outside=outside)
        self.states: set[int] = set()
        self._report(forward, NO_STEP)
        for position, step in enumerate(steps[:split]):
            self._forward_or_free(forward, step)
            self._report(forward, position)
        outputs = [forward.name(node) for node in self.step.joint.outputs if isinstance(node, fx.Node)]
        states = sorted(self.states)

        backward = _Writer(self.step, self.constants, self.pooling, calls=forward.calls)
        of, kept = self.step.allocations.of, self.step.storage_of
        at_start = {node for node in forward.alive if any(allocation in kept for allocation in of[node])}
        at_start = {node for node in at_start if not _is_tuple(node)}  # of views, which are made again
        backward.offer(at_start)
        self._report(backward, NO_STEP)
        for part in self.parts:
            if part.end < split:  # it ends before the backward begins
                self._hand_over(backward, part)
        for position, step in enumerate(steps[split:], split):
            if step.kind is StepKind.BACKWARD:
                self._backward(backward, self.step.ops[step.index], step.index)
            else:
                self._forward_or_free(backward, step)
            self._report(backward, position)
            for part in self.parts:
                if part.end == position:
                    self._hand_over(backward, part)
        return self._assemble(forward, backward, at_start, outputs, states)

    def _report(self, to: _Writer, position: int) -> None:
        if self.on_step is not None:
            to.lines.append(f"{to.function(self.on_step)}({position})")

    # -- steps -----------------------------------------------------------------------------------

    def _forward_or_free(self, to: _Writer, step: Step) -> None:
        if step.kind is StepKind.FREE:
            if step.random_state:
                self.states.discard(step.index)
                to.lines.append(f"del __state{step.index}")
            else:
                to.release({self.allocation_of[step.index]})
                self.live.discard(self.allocation_of[step.index])
            return
        op = self.step.ops[step.index]
        again = step.kind is StepKind.RECOMPUTE
        if op.runs:
            self._run(to, op, step.index, again)
        if not again:
            to.lines += [to.expression(check) for check in op.checks]
            for primal, value in op.updates:
                target = self.step.joint.primals[primal].node
                to.lines.append(f"{to.name(target)}.copy_({to.argument(value)})")

    def _run(self, to: _Writer, op: StepOp, index: int, again: bool) -> None:
        made = {allocation for node in op.runs for allocation in self.step.allocations.made[node]}
        for node in op.runs:
            written = to.writes.get(node, ()) if again else ()
            for argument in node.all_input_nodes:
                if argument not in written and not made.intersection(self.step.allocations.of[argument]):
                    to.name(argument)
        state = f"__state{index}"
        device = to.constant(generator_of(op.runs[0])) if op.random else ""
        if op.random and again:
            to.lines.append(f"__now = {to.function(swap_state)}({state}, {device})")
        elif op.random and index in self.recomputed:
            to.lines.append(f"{state} = {to.function(save_state)}({device})")
            self.states.add(index)
        first = len(to.lines)
        if made & self.live:  # the live result stays; its recomputed duplicate is deleted at once
            self._recompute_keeping(to, op, made & self.live)
        else:
            for node in op.runs:
                to.call(node, again)
                to.elements(node)
        self.live |= made
        if op.random and again:  # even if the recomputation raises, the caller's generator state is restored
            to.lines[first:] = ["try:", *(f"    {line}" for line in to.lines[first:])]
            to.lines += ["finally:", f"    {to.function(restore_state)}(__now, {device})", "del __now"]

    def _recompute_keeping(self, to: _Writer, op: StepOp, live: set[int]) -> None:
        """Recompute nodes whose allocations are partly alive: set the live names aside, run, drop the duplicates."""
        to.request(live)
        kept = to.names_of(live)
        to.available.difference_update(kept)  # views of what is computed again are not those that were saved
        names = [f"__kept{number}" for number in range(len(kept))]
        to.lines.append(f"{', '.join(names)}, = {', '.join(node.name for node in kept)},")
        to.event(EventKind.SET_ASIDE, kept)
        to.delete(kept)
        for node in op.runs:
            to.call(node, again=True)
            to.elements(node)
        to.delete(to.names_of(live))
        to.lines.append(f"{', '.join(node.name for node in kept)}, = {', '.join(names)},")
        to.event(EventKind.RESTORE, kept)
        to.lines.append(f"del {', '.join(names)}")
        for node in kept:
            to.define(node)

    def _backward(self, to: _Writer, op: StepOp, index: int) -> None:
        allocations = self.step.allocations
        last: dict[int, int] = {}
        for position, node in enumerate(op.main):
            for allocation in (*allocations.made[node], *allocations.reads(node)):
                last[allocation] = position
        backward = self.step.graph.ops[index].backward
        assert backward is not None
        for position, node in enumerate(op.main):
            to.call(node)
            to.elements(node)
            to.release({b for b, end in last.items() if end == position and self._is_temporary(b)})
        self._take(to, backward.takes)
        for node, total in zip(op.sums, backward.sums, strict=True):
            if isinstance(node, GradientCopy):
                primal = self.step.joint.primals[node.primal].node
                to.lines.append(
                    f"__copy{node.primal} = {to.function(copy_like)}({to.name(node.source)}, {to.name(primal)})"
                )
                to.event(EventKind.COPY, [node.primal])
            else:
                to.call(node)
            self._take(to, total.operands)

    def _is_temporary(self, allocation: int) -> bool:
        maker = self.step.allocations.entries[allocation].node
        return is_backward(maker) and maker.op == "call_function" and allocation not in self.step.gradient_of

    def _take(self, to: _Writer, gradients: tuple[int, ...]) -> None:
        for gradient in gradients:
            self.takers[gradient] -= 1
            if not self.takers[gradient]:
                to.release(self.allocations_of.get(gradient, set()))

    def _hand_over(self, to: _Writer, part: Part) -> None:
        """Yield the gradients of a part; no name keeps them alive."""
        gradients = [self.step.joint.gradients[position] for position in part.gradients]
        copies = {primal: f"__copy{primal}" for primal, _ in gradients if primal in self.step.copied}
        results = [copies[primal] if primal in copies else to.name(node) for primal, node in gradients]
        to.lines.append(f"__given = [{', '.join(results)}]")
        to.event(EventKind.HAND_OVER, [primal for primal, _ in gradients])
        to.lines += [f"del {copy}" for copy in copies.values()]
        own = {
            allocation
            for primal, node in gradients
            if primal not in copies
            for allocation in self.step.allocations.of[node]
        }
        for allocation in own:  # with the allocations summed into its memory
            to.release({allocation} | self.allocations_of.get(self.step.gradient_of[allocation], set()))
        to.lines.append("yield __given")
        to.event(EventKind.PAUSE, [len(self.parts) - 1 - self.parts.index(part)])

    # -- the two functions -----------------------------------------------------------------------

    def _assemble(
        self,
        forward: _Writer,
        backward: _Writer,
        at_start: set[fx.Node],
        outputs: list[str],
        states: list[int],
    ) -> Program:
        primals = {primal.node: i for i, primal in enumerate(self.step.joint.primals)}
        tangents = [node for node in self.step.joint.tangents if node is not None]
        saved = [node for node in backward.requested if node in at_start]
        needed = [node for node in backward.requested if node in primals]
        held = {allocation for node in self.step.joint.outputs if isinstance(node, fx.Node)
                for allocation in self.step.allocations.of[node]}  # fmt: skip
        # An output must not be saved as the object that is returned: its history would hold itself.
        shared = tuple(i for i, node in enumerate(saved) if held.intersection(self.step.allocations.of[node]))
        words = [f"{node.name}.detach()" if i in shared else node.name for i, node in enumerate(saved)]
        words += [f"__state{index}" for index in states]
        names = [node.name for node in saved] + [f"__state{index}" for index in states]
        forward_source = forward.source(
            "def forward(primals):",
            self._bind(forward, primals, "primals"),
            f"return [{', '.join(outputs)}], [{', '.join(words)}]",
        )
        first = [*_unpack(names, "saved"), *_unpack([node.name for node in tangents], "tangents")]
        first = [*_unpack([node.name for node in needed], "primals"), *first, *self._constants(backward)]
        backward_source = backward.source("def backward(primals, saved, tangents):", first, "return")
        return Program(
            _compile(forward_source, "forward", self.constants),
            _compile(backward_source, "backward", self.constants),
            tuple(primals[node] for node in needed),
            (*saved, *states),
            tuple(i for i in shared if saved[i] in backward.read),
            self.parts,
            tuple(forward.events),
            tuple(backward.events),
            forward.outside,
        )

    def _bind(self, writer: _Writer, primals: dict[fx.Node, int], source: str) -> list[str]:
        lines = [f"{node.name} = {source}[{primals[node]}]" for node in writer.requested if node in primals]
        return [*lines, f"{source}.clear()", *self._constants(writer)]

    def _constants(self, writer: _Writer) -> list[str]:
        module = self.step.joint.graph.owning_module
        lifted = [node for node in writer.requested if node.op == "get_attr"]
        return [f"{node.name} = {writer.constant(getattr(module, str(node.target)))}" for node in lifted]


def _layout(node: fx.Node) -> tuple[Any, ...] | None:
    """What tells a tensor from others in the same memory."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.shape, value.stride(), value.storage_offset(), value.dtype, value.is_conj(), value.is_neg()


def _is_view(node: fx.Node) -> bool:
    """Whether a node views one tensor, or is an element of a tuple of such views."""
    call = node.args[0] if node.target is operator.getitem else node
    return torch_private.is_view(call.target) and call.all_input_nodes == [call.args[0]]


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _unpack(names: list[str], source: str) -> list[str]:
    lines = [f"{', '.join(names)}, = {source}"] if names else []
    return [*lines, f"{source}.clear()"]


def _compile(source: str, name: str, constants: dict[str, Any]) -> Any:
    scope = dict(constants)
    exec(compile(source, f"<ogc-plan {name}>", "exec"), scope)
    return scope[name]


def copy_like(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A copy of ``gradient`` in the layout that autograd keeps for ``parameter``."""
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)


def generate(
    step: TracedStep,
    schedule: Schedule,
    on_step: OnStep | None = None,
    parts: tuple[Part, ...] = (),
    pooling: Pooling = NO_POOL,
) -> Program:
    """The two functions that run ``schedule``, with ``parts`` if they are known; ``on_step`` is called as they run."""
    return _Generator(step, schedule, on_step, parts, pooling).program()


def _making_outputs(step: TracedStep) -> frozenset[fx.Node]:
    """The calls of the forward that ask for the memory of its outputs."""
    outputs = (node for node in step.joint.outputs if isinstance(node, fx.Node))
    makers = {step.allocations.entries[allocation].node for node in outputs for allocation in step.allocations.of[node]}
    return frozenset(node for node in makers if node.op == "call_function")
