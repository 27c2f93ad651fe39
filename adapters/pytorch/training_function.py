"""The autograd nodes that run a program: one per part of its backward, chained so that they run in turn.

The node of the first part has the outputs, and the edges to what gets its gradient in that part; its one other
input is an empty tensor, the output of the node of the second part, and so on. Between two of them autograd
runs what has the highest priority: it accumulates the gradients that the first one returned, and calls hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from . import torch_api
from .blocks import tensors
from .program import Program
from .segments import tangents_needed
from .traced_step import TracedStep
from .unused_outputs import UnusedOutputs


class Executable:
    """A program with what it takes to run it inside autograd.

    ``differentiable[i]`` says whether the i-th tensor output takes a gradient.
    """

    def __init__(self, step: TracedStep, program: Program) -> None:
        joint = step.joint
        self.program = program
        self.differentiable = tuple(
            joint.tangents[i] is not None for i, node in enumerate(joint.outputs) if isinstance(node, fx.Node)
        )
        self.unused = UnusedOutputs(joint)
        needed, every = tangents_needed(joint), frozenset(range(sum(t is not None for t in joint.tangents)))
        self.needed_tangents = tuple(needed.get(node, every) for _, node in joint.gradients)
        later = {primal for part in program.parts[1:] for primal in part.primals}
        self.first_primals = tuple(place for place in range(len(joint.primals)) if place not in later)
        self.tangent_metas = tuple(tensors(node)[0] for node in joint.tangents if node is not None)
        overwritten = {primal for primal, _ in joint.updates}
        kept = {primal: place for place, primal in enumerate(program.backward_primals) if primal not in overwritten}
        self.checked = tuple(tuple(kept[p] for p in part.reads if p in kept) for part in program.parts)
        self.names = tuple(primal.name for primal in joint.primals)

    def __call__(self, primals: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run the forward; the returned tensors carry the history that runs the backward."""
        run = Run(self, primals)
        token: torch.Tensor | None = None
        for number in range(len(self.program.parts) - 1, 0, -1):
            token = PartFunction.apply(run, number, token, *(primals[i] for i in self.program.parts[number].primals))
        outputs = TrainingFunction.apply(run, token, *(primals[i] for i in self.first_primals))
        passed: tuple[torch.Tensor, ...] = HandoverFunction.apply(run, *outputs)
        return passed

    def complete(self, tangents: list[torch.Tensor | None]) -> None:
        """Bring output gradients into the layout the graph was traced with; an unused output's is zero."""
        for place, traced in enumerate(self.tangent_metas):
            given = tangents[place]
            if given is not None and given.stride() == traced.stride() and given.dtype == traced.dtype:
                continue
            with torch.no_grad():
                device = traced.device if given is None else given.device
                dense = torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype, device=device)
                tangents[place] = dense.zero_() if given is None else dense.copy_(given)


class Run:
    """What the autograd nodes of one forward share.

    Kept here and not on one of them: what the forward saved (not as autograd's saved tensors, to free it early),
    the gradients of the outputs (autograd's own frames would hold them to the end of the backward), and the
    backward that is going on.
    """

    def __init__(self, executable: Executable, primals: list[torch.Tensor]) -> None:
        self.executable = executable
        self.primals: list[torch.Tensor] = primals
        self.versions: list[int] = []
        self.saved: list[Any] | None = None
        self.output_versions: list[int] = []
        self.tangents: list[torch.Tensor | None] | None = None
        self.unused: frozenset[int] = frozenset()
        self.going: Iterator[list[Any]] | None = None

    def forward(self) -> list[torch.Tensor]:
        """Run the generated forward and keep what the backward needs."""
        program, primals = self.executable.program, self.primals
        self.primals = []
        with torch_api.WithoutAutocast():  # the casts are calls of the program
            outputs, self.saved = program.forward(list(primals))
        self.primals = [primals[i] for i in program.backward_primals]
        self.versions = [torch_api.version_of(primal) for primal in self.primals]
        self.output_versions = [torch_api.version_of(self.saved[i]) for i in program.saved_outputs]
        return outputs

    def begin(self) -> None:
        """Begin the generated backward with the gradients that were handed over."""
        if self.saved is None:
            raise RuntimeError(
                "this step has run backward already and its saved tensors are freed; "
                "pass retain_graph=True to the first backward to run it twice"
            )
        for place, version in zip(self.executable.program.saved_outputs, self.output_versions, strict=True):
            if torch_api.version_of(self.saved[place]) != version:
                raise RuntimeError("an output was modified in place after the forward, and the backward still needs it")
        tangents, self.tangents = self.tangents, None
        assert tangents is not None
        self.unused = frozenset(place for place, tangent in enumerate(tangents) if tangent is None)
        self.executable.unused.check(self.unused)
        self.executable.complete(tangents)
        saved = list(self.saved) if torch_api.keeps_graph() else self.saved
        if saved is self.saved:
            self.saved = None
        self.going = self.executable.program.backward(list(self.primals), saved, tangents)

    def part(self, number: int, next_node: Any) -> dict[int, torch.Tensor | None]:
        """Run one part of the backward: its gradients, by primal. The last one that autograd wants ends it."""
        executable, part = self.executable, self.executable.program.parts[number]
        self._check_versions(number)
        assert self.going is not None
        with torch_api.WithoutAutocast():
            given = next(self.going)
        if next_node is None or not torch_api.is_wanted(next_node):
            self.going = None
        needed = (executable.needed_tangents[place] for place in part.gradients)
        # What only unused outputs depend on gets no gradient at all.
        found = {
            primal: None if tangents <= self.unused else gradient
            for primal, gradient, tangents in zip(part.primals, given, needed, strict=True)
        }
        given.clear()
        return found

    def _check_versions(self, number: int) -> None:
        """Refuse to differentiate with values that were overwritten since the forward, as autograd does."""
        executable = self.executable
        for place in executable.checked[number]:
            now = torch_api.version_of(self.primals[place])
            if now != self.versions[place]:
                name = executable.names[executable.program.backward_primals[place]]
                raise RuntimeError(
                    f"{name} was modified in place after the forward, and its backward still needs it: "
                    f"version {now}, expected {self.versions[place]}"
                )


class TrainingFunction(torch.autograd.Function):  # type: ignore[misc]
    """Forward of one planned step, and the first part of its backward."""

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
        """Begin the generated backward, run its first part and place the gradients."""
        ctx.run.begin()
        gradients = ctx.run.part(0, ctx.next_functions[0][0] if ctx.chained else None)
        return (None, None, *(gradients.get(primal) for primal in ctx.run.executable.first_primals))


class PartFunction(torch.autograd.Function):  # type: ignore[misc]
    """A later part of the backward; what it gives gradients to comes as ``primals``, for autograd to know."""

    @staticmethod
    def forward(ctx: Any, run: Run, number: int, token: torch.Tensor | None, *primals: torch.Tensor) -> torch.Tensor:
        """The token that puts this part behind the one before."""
        ctx.run, ctx.number, ctx.chained = run, number, token is not None
        ctx.set_materialize_grads(False)
        # On the device of the gradients: autograd then runs this node in the same thread as their accumulation.
        devices = [primal.device for primal in primals]
        return torch.empty(0, device=next((device for device in devices if device.type != "cpu"), devices[0]))

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run this part of the generated backward."""
        gradients = ctx.run.part(ctx.number, ctx.next_functions[0][0] if ctx.chained else None)
        return (None, None, None, *gradients.values())


class HandoverFunction(torch.autograd.Function):  # type: ignore[misc]
    """Passes outputs through; in the backward it puts their gradients aside for `TrainingFunction`."""

    @staticmethod
    def forward(ctx: Any, run: Run, *outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of the outputs."""
        ctx.run = run
        ctx.set_materialize_grads(False)
        passed = tuple(output.detach() for output in outputs)
        pairs = zip(passed, run.executable.differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, wanted in pairs if not wanted))
        return passed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        """Keep the gradients of differentiable outputs; hand on nothing."""
        if torch.is_grad_enabled():
            raise RuntimeError("a planned module has no second derivative; call backward without create_graph=True")
        wanted = ctx.run.executable.differentiable
        ctx.run.tangents = [gradient for gradient, w in zip(gradients, wanted, strict=True) if w]
        return (None,) * (1 + len(gradients))
