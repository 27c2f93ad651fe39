"""The autograd nodes that run a program: one for each part of its backward, chained so that they run in turn.

The node of the first part has the outputs, and edges to what gets its gradient in that part. Its one other input is an
empty tensor, the output of the node of the second part, and so on. Between two of them autograd runs the nodes of
highest priority: it accumulates the gradients that the first one returned, and calls hooks.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from ....planner.errors import OgcPlanError
from .. import torch_private
from ..errors import warn
from ..joint import forward_reads
from ..memory.allocations import tensors
from ..memory.strides import same_layout
from ..step.step_graph import TracedStep
from .codegen import Program
from .hook_guards import guard_hooks
from .outside_writes import content, read_by_recomputation_alone
from .partial_backward import Backward, Given, PartialBackwards, full_backward
from .retrace import Retrace, never
from .step_pool import Owner, StepPool, owner_of
from .step_space import StepSpace

aten = torch.ops.aten

_PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default, aten.sum.dim_IntList})
"""Calls whose results do not take over the layout of an operand."""


class Room:
    """What a program requires of a step pool, and where it leaves the gradients of ``trained``.

    A plan for steps that accumulate has gradients copied out of the pool where they are not added to others, so that
    each step finds it idle: a copy takes no more memory than what is added does. Those of other plans stay in the pool,
    and with fillers (``filled``) a step is planned for a pool that none is in.

    ``parameters`` and ``trained`` are positions of primals: of all parameters, and of those with a gradient.
    """

    def __init__(
        self, pool: StepPool, space: StepSpace, parameters: Sequence[int], trained: Sequence[int], *, filled: bool
    ) -> None:
        self.pool, self._space, self._parameters, self._trained = pool, space, parameters, trained
        self._looks_for_gradients = filled and not space.accumulates

    def begin(self, run: Run, primals: list[torch.Tensor]) -> None:
        """Have the space for a step that begins."""
        leaves = (primals[i] for i in self._trained if self._looks_for_gradients)
        unused = all(leaf.grad is None for leaf in leaves if leaf.is_leaf)
        if self.pool.begin(run, self._space, is_unused=unused):
            self.pool.look_outside(
                self._space, self._replaced_outputs(primals), gradients_present=self._gradients_present(primals)
            )
        if self._space.accumulates:
            run.copied_out = {i: primals[i] for i in self._trained if primals[i].is_leaf}

    def is_outgrown(self, primals: list[torch.Tensor]) -> bool:
        """Whether a step exceeds its budget for outputs of the last one that the caller holds."""
        if not self.pool.is_to_look_outside(self._space):
            return False
        outputs, present = self._replaced_outputs(primals), self._gradients_present(primals)
        return bool(outputs) and self.pool.is_outgrown(self._space, outputs, gradients_present=present)

    def outputs_are(self, outputs: Sequence[torch.Tensor], run: Run, primals: list[torch.Tensor]) -> None:
        """What a step returns, which the next one replaces."""
        if self._space.most_beyond_nbytes is not None:
            self.pool.outputs_are(outputs, run, self._owner(primals))

    def _replaced_outputs(self, primals: list[torch.Tensor]) -> dict[int, int]:
        return self.pool.replaced_outputs(self._owner(primals), primals)

    def _owner(self, primals: list[torch.Tensor]) -> Owner:
        return owner_of(primals[i] for i in self._parameters)

    def _gradients_present(self, primals: list[torch.Tensor]) -> bool:
        leaves = (primals[i] for i in self._trained)
        return all(leaf.grad is not None for leaf in leaves if leaf.is_leaf)

    def copy_out(self, gradients: list[torch.Tensor], of: Sequence[torch.Tensor | None]) -> None:
        """Copy the gradients of leaves that have none out of the pool, one after the other, within a stay in it."""
        wanted = [i for i, leaf in enumerate(of) if leaf is not None and leaf.grad is None]
        if wanted and self.pool.is_entered:
            self.pool.outside(_copy, gradients, wanted)


def _copy(tensors: list[torch.Tensor], positions: Sequence[int]) -> None:
    for position in positions:
        tensors[position] = tensors[position].clone()


class Executable:
    """A program with what it takes to run it inside autograd; its tensors are placed in ``room``.

    ``differentiable[i]`` says whether the i-th tensor output takes a gradient; ``partial`` makes the backward when some
    of those outputs get none, or one in another layout than traced.
    """

    def __init__(self, step: TracedStep, program: Program, partial: PartialBackwards, room: Room | None = None) -> None:
        joint = step.joint
        self.room, self.placed = room, nullcontext if room is None else room.pool.entered
        if room is not None:
            room.pool.serve(self)
        self.program, self.partial = program, partial
        self.backward = full_backward(program, joint)
        self.differentiable = tuple(
            joint.tangents[i] is not None for i, node in enumerate(joint.outputs) if isinstance(node, fx.Node)
        )
        self.shared = _shared(step)
        self.used_inside = tuple(forward_reads(node) for node in joint.outputs if isinstance(node, fx.Node))
        tangents = [node for node in joint.tangents if node is not None]
        self.tangent_metas = tuple(tensors(node)[0] for node in tangents)
        self.expandable = tuple(_expandable(node, step) for node in tangents)
        self.several = len(tangents) > 1
        self.kept_primals = tuple(range(len(joint.primals))) if self.several else program.backward_primals
        self.told_of_layouts = False
        self.devices = [_device_of([joint.primals[i].node for i in part.primals]) for part in program.parts]
        self.names = tuple(primal.name for primal in joint.primals)
        self.reread = tuple(i for i in read_by_recomputation_alone(step) if i in program.backward_primals)

    def __call__(self, primals: list[torch.Tensor], retrace: Retrace) -> tuple[torch.Tensor, ...]:
        """Run the forward; the returned tensors carry the history that runs the backward."""
        run = Run(self, primals, retrace)
        if self.room is not None:
            self.room.begin(run, primals)
        token: torch.Tensor | None = None
        first, *later = ([primals[i] for i in part.primals] for part in self.program.parts)
        for number in range(len(later), 0, -1):
            token = PartFunction.apply(run, number, token, *later[number - 1])
        outputs = TrainingFunction.apply(run, token, *first)
        passed: tuple[torch.Tensor, ...] = HandoverFunction.apply(run, *outputs)
        if self.room is not None:
            self.room.outputs_are(passed, run, primals)
        pairs = zip(passed, self.used_inside, strict=True)
        run.used_outputs = [weakref.ref(output) for output, used in pairs if used]
        return passed

    def given(self, tangents: list[torch.Tensor | None]) -> Given:
        """What the output gradients are, as far as it decides the backward."""
        absent = frozenset(position for position, tangent in enumerate(tangents) if tangent is None)
        strides: list[tuple[int, ...] | None] = [None] * len(tangents)
        for position, (tangent, traced) in enumerate(zip(tangents, self.tangent_metas, strict=True)):
            # One of another dtype is copied in any case.
            if tangent is not None and tangent.dtype == traced.dtype and not self._is_taken(position, tangent):
                strides[position] = tangent.stride()
        return Given(absent, tuple(strides))

    def _is_taken(self, position: int, tangent: torch.Tensor) -> bool:
        """Whether the traced backward takes a gradient as it is."""
        traced = self.tangent_metas[position]
        expanded = self.expandable[position] and not any(tangent.stride())
        return tangent.dtype == traced.dtype and (same_layout(tangent, traced) or expanded)

    def complete(self, tangents: list[torch.Tensor | None], given: Given) -> None:
        """Copy output gradients into the layout that the graph was traced with, unless it takes them as they are."""
        for position, traced in enumerate(self.tangent_metas):
            tangent = tangents[position]
            if tangent is None or given.strides[position] is not None or self._is_taken(position, tangent):
                continue
            with torch.no_grad():
                dense = torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype, device=tangent.device)
                tangents[position] = dense.copy_(tangent)

    def backward_for(self, given: Given, retrace: Retrace) -> tuple[Given, Backward]:
        """The backward for these output gradients, and the gradients that it takes as they are."""
        if given.as_traced:
            return given, self.backward
        try:
            return given, self.partial.backward(given, retrace)
        except OgcPlanError as error:
            if not any(given.strides):
                raise
            if not self.told_of_layouts:
                self.told_of_layouts = True
                position, strides = next((at, strides) for at, strides in enumerate(given.strides) if strides)
                warn(
                    f"the loss gives output {position} a gradient of strides {list(strides)}, whose backward cannot be "
                    f"run ({error.message}): it is copied, and gradients may differ from eager's in the last bit"
                )
            return self.backward_for(Given(given.absent, (None,) * len(given.strides)), retrace)


class Run:
    """What the autograd nodes of one forward share.

    Kept here and not on a node: the values that the forward saved (as autograd's saved tensors they would be freed
    late), the gradients of the outputs (autograd's own frames would hold them to the end of the backward), and the
    backward that is running.
    """

    def __init__(self, executable: Executable, primals: list[torch.Tensor], retrace: Retrace) -> None:
        self.executable = executable
        self.given: list[torch.Tensor] = primals  # until the forward
        self.retrace = retrace if executable.several else retrace.weakly()
        self.primals: dict[int, torch.Tensor] = {}
        self.versions: dict[int, int] = {}
        self.saved: list[Any] | None = None
        self.used_outputs: list[weakref.ref[torch.Tensor]] = []
        self.contents: dict[int, int | None] = {}
        self.output_versions: list[int] = []
        self.tangents: list[torch.Tensor | None] | None = None
        self.backward = executable.backward
        self.running: Iterator[list[Any]] | None = None
        self.copied_out: dict[int, torch.Tensor] = {}  # leaves whose gradients are not to lie in the step pool

    @property
    def is_pending(self) -> bool:
        """Whether it holds what its backward needs."""
        return self.saved is not None or self.running is not None

    def forward(self) -> list[torch.Tensor]:
        """Run the generated forward and keep what the backward needs."""
        program, primals = self.executable.program, self.given
        self.given = []
        with self.executable.placed(), torch_private.WithoutAutocast():  # the casts are calls of the program
            outputs, self.saved = program.forward(list(primals))
        self.primals = {i: primals[i] for i in self.executable.kept_primals}
        self.versions = dict(zip(self.primals, torch_private.versions_of(self.primals.values()), strict=True))
        self.contents = {i: content(primals[i]) for i in self.executable.reread}
        self.output_versions = [torch_private.version_of(self.saved[i]) for i in program.saved_outputs]
        return outputs

    def begin(self, node: Any) -> None:
        """Start the generated backward with the output gradients; ``node`` is the node of the first part."""
        if self.saved is None:
            raise RuntimeError(
                "this step has run backward already and its saved tensors are freed; "
                "pass retain_graph=True to the first backward to run it twice"
            )
        tangents, self.tangents = self.tangents, None
        assert tangents is not None
        given, self.backward = self.executable.backward_for(self.executable.given(tangents), self.retrace)
        if given.absent:
            self._guard_hooks(node)
        for position, version in zip(self.executable.program.saved_outputs, self.output_versions, strict=True):
            if position in self.backward.outputs and torch_private.version_of(self.saved[position]) != version:
                raise RuntimeError("an output was modified in place after the forward, and the backward still needs it")
        for output in [reference() for reference in self.used_outputs]:
            if output is not None and (output.retains_grad or output._backward_hooks):
                raise RuntimeError(
                    f"the gradient of an output of shape {list(output.shape)} is asked for, by retain_grad or a hook, "
                    "and would lack what flows through the module, which uses this tensor too: leave it out, or "
                    "train the original in this step"
                )
        for position, known in self.contents.items():
            if known is not None and content(self.primals[position]) != known:
                raise RuntimeError(
                    f"the memory of {self.executable.names[position]} was written outside of torch after the forward, "
                    "and the plan computes from it again: run the backward before the next batch is filled in, or pass "
                    "a clone"
                )
        self.executable.complete(tangents, given)
        saved = self.saved
        if torch_private.keeps_graph():
            saved = list(saved)
        else:
            self.saved = None
        self.running = self.backward.start(self.primals, saved, tangents)

    def part(self, number: int, next_node: Any) -> Sequence[torch.Tensor | None]:
        """Run one part of the backward; returns the gradients of its primals. The last that autograd wants ends it."""
        self._check_versions(number)
        assert self.running is not None
        with self.executable.placed(), torch_private.WithoutAutocast():
            given = next(self.running)
            if self.copied_out:
                leaves = [self.copied_out.get(primal) for primal in self.backward.gradients[number]]
                self.executable.room.copy_out(given, leaves)  # type: ignore[union-attr]
        if next_node is None or not torch_private.is_wanted(next_node):
            self._end()
        primals, by_primal = self.executable.program.parts[number].primals, self.backward.gradients[number]
        if by_primal == primals:
            gradients = tuple(given)
        else:  # None where no output with a gradient depends on the primal
            found = dict(zip(by_primal, given, strict=True))
            gradients = tuple([found.get(primal) for primal in primals])
        given.clear()
        return gradients

    def _end(self) -> None:
        """Let go of what only a backward needs, as autograd does: a caller may hold the loss for long."""
        self.running = None
        if self.saved is None:
            self.primals, self.versions, self.copied_out, self.retrace = {}, {}, {}, never

    def _guard_hooks(self, node: Any) -> None:
        """Guard the hooks of leaves that get no gradient in this backward; ``node`` is the node of the first part."""
        for part, gradients in zip(self.executable.program.parts, self.backward.gradients, strict=True):
            edges = [edge for edge, _ in node.next_functions]
            own = edges[len(edges) - len(part.primals) :]  # behind the one to the next part, where there is one
            for position, edge in zip(part.primals, own, strict=True):
                leaf = getattr(edge, "variable", None)
                if leaf is not None and position not in gradients:
                    guard_hooks(leaf)
            node = edges[0]

    def _check_versions(self, number: int) -> None:
        """Refuse to differentiate with values that were overwritten since the forward, as autograd does."""
        reads = self.backward.reads[number]
        found = torch_private.versions_of([self.primals[position] for position in reads])
        expected = [self.versions[position] for position in reads]
        if found != expected:
            position, now, then = next(each for each in zip(reads, found, expected, strict=True) if each[1] != each[2])
            raise RuntimeError(
                f"{self.executable.names[position]} was modified in place after the forward, and its backward still "
                f"needs it: version {now}, expected {then}"
            )


def _device_of(primals: list[fx.Node]) -> torch.device:
    """The device of the gradients of some primals; of one that is no CPU, if there is one."""
    devices = [tensor.device for primal in primals for tensor in tensors(primal)]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def _shared(step: TracedStep) -> tuple[bool, ...]:
    """For each tensor output whether it takes a gradient and shares memory with an input or another such output."""
    joint, of = step.joint, step.allocations.of
    pairs = [pair for pair in zip(joint.outputs, joint.tangents, strict=True) if isinstance(pair[0], fx.Node)]
    users = Counter(allocation for node, tangent in pairs if tangent is not None for allocation in of[node])
    users.update({allocation for primal in joint.primals for allocation in of[primal.node]})
    return tuple(
        tangent is not None and any(users[allocation] > 1 for allocation in of[node]) for node, tangent in pairs
    )


def _expandable(tangent: fx.Node, step: TracedStep) -> bool:
    """Whether an expanded number may stand for a gradient: views of it go into products and sums, as in eager."""
    waiting, of = [tangent], step.allocations.of
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output" or not (user.target in _PRODUCTS or of[user] == of[tangent]):
                return False
            waiting += [user] * (user.target not in _PRODUCTS)
    return True


class TrainingFunction(torch.autograd.Function):  # type: ignore[misc]
    """The forward of a planned step, and the first part of its backward."""

    @staticmethod
    def forward(ctx: Any, run: Run, token: torch.Tensor | None, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the generated forward."""
        ctx.run, ctx.chained = run, token is not None
        outputs = run.forward()
        ctx.set_materialize_grads(False)
        pairs = zip(outputs, run.executable.differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, wanted in pairs if not wanted))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Start the generated backward, and run its first part."""
        ctx.run.begin(ctx)
        return (None, None, *ctx.run.part(0, ctx.next_functions[0][0] if ctx.chained else None))


class PartFunction(torch.autograd.Function):  # type: ignore[misc]
    """A later part of the backward. It takes ``primals`` so that autograd knows what it gives gradients to."""

    @staticmethod
    def forward(ctx: Any, run: Run, number: int, token: torch.Tensor | None, *primals: torch.Tensor) -> torch.Tensor:
        """The token that makes this part run after the one before."""
        ctx.run, ctx.number, ctx.chained = run, number, token is not None
        ctx.set_materialize_grads(False)
        # On the device of the gradients: autograd then runs this node in the same thread as their accumulation.
        return torch.empty(0, device=run.executable.devices[number])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run this part of the generated backward."""
        return (None, None, None, *ctx.run.part(ctx.number, ctx.next_functions[0][0] if ctx.chained else None))


class HandoverFunction(torch.autograd.Function):  # type: ignore[misc]
    """Passes outputs through; in the backward it stores their gradients for `TrainingFunction`."""

    @staticmethod
    def forward(ctx: Any, run: Run, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of the outputs."""
        ctx.run = run
        ctx.set_materialize_grads(False)
        pairs = zip(outputs, run.executable.shared, strict=True)
        passed = tuple(output.view_as(output) if shared else output.detach() for output, shared in pairs)
        pairs = zip(passed, run.executable.differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, wanted in pairs if not wanted))
        return passed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        """Store the gradients of differentiable outputs; pass on nothing."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a planned step has no second derivative; call backward without create_graph=True, or make the step by "
                "ogc_plan.adapters.pytorch.original(module), which has the same parameters"
            )
        wanted = ctx.run.executable.differentiable
        ctx.run.tangents = [gradient for gradient, w in zip(gradients, wanted, strict=True) if w]
        return (None,) * (1 + len(gradients))
