"""The autograd node that runs a program: one node for a whole training step."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from . import torch_api
from .blocks import tensors
from .program import Program
from .segments import tangents_needed
from .traced_step import TracedStep
from .unused_outputs import UnusedOutputs


class Handover:
    """Carries output gradients past autograd's own frames, which would hold them to the end of the backward."""

    def __init__(self) -> None:
        self.tangents: list[torch.Tensor | None] | None = None


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
        self.gradient_places = tuple(primal for primal, _ in joint.gradients)
        self.primal_count = len(joint.primals)
        self.tangent_metas = tuple(tensors(node)[0] for node in joint.tangents if node is not None)
        self.overwritten = frozenset(primal for primal, _ in joint.updates)
        self.names = tuple(primal.name for primal in joint.primals)

    def __call__(self, primals: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run the forward; the returned tensors carry the history that runs the backward."""
        handover = Handover()
        outputs = TrainingFunction.apply(self, handover, *primals)
        passed: tuple[torch.Tensor, ...] = HandoverFunction.apply(handover, self.differentiable, *outputs)
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


class HandoverFunction(torch.autograd.Function):  # type: ignore[misc]
    """Passes outputs through; in the backward it puts their gradients aside for `TrainingFunction`."""

    @staticmethod
    def forward(
        ctx: Any, handover: Handover, differentiable: tuple[bool, ...], *outputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Views of the outputs."""
        ctx.handover, ctx.differentiable = handover, differentiable
        ctx.set_materialize_grads(False)
        passed = tuple(output.detach() for output in outputs)
        ctx.mark_non_differentiable(*(p for p, wanted in zip(passed, differentiable, strict=True) if not wanted))
        return passed

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        """Keep the gradients of differentiable outputs; hand on nothing."""
        if torch.is_grad_enabled():
            raise RuntimeError("a planned module has no second derivative; call backward without create_graph=True")
        ctx.handover.tangents = [g for g, wanted in zip(gradients, ctx.differentiable, strict=True) if wanted]
        return (None,) * (2 + len(gradients))


class TrainingFunction(torch.autograd.Function):  # type: ignore[misc]
    """Forward and backward of one planned step."""

    @staticmethod
    def forward(
        ctx: Any, executable: Executable, handover: Handover, *primals: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Run the generated forward; what it saves is kept outside autograd's saved tensors, to free it early."""
        program = executable.program
        with torch_api.WithoutAutocast():  # the casts are calls of the program
            outputs, saved = program.forward(list(primals))
        ctx.executable, ctx.handover, ctx.saved = executable, handover, saved
        ctx.primals = [primals[i] for i in program.backward_primals]
        ctx.versions = [torch_api.version_of(primal) for primal in ctx.primals]
        ctx.output_versions = [torch_api.version_of(saved[i]) for i in program.saved_outputs]
        ctx.set_materialize_grads(False)
        pairs = zip(outputs, executable.differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, wanted in pairs if not wanted))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run the generated backward and place its gradients."""
        executable: Executable = ctx.executable
        if ctx.saved is None:
            raise RuntimeError(
                "this step has run backward already and its saved tensors are freed; "
                "pass retain_graph=True to the first backward to run it twice"
            )
        _check_versions(ctx, executable)
        tangents, ctx.handover.tangents = ctx.handover.tangents, None
        absent = {place for place, tangent in enumerate(tangents) if tangent is None}
        executable.unused.check(absent)
        executable.complete(tangents)
        saved = ctx.saved
        if torch_api.keeps_graph():
            saved = list(saved)
        else:
            ctx.saved = None
        with torch_api.WithoutAutocast():
            gradients = executable.program.backward(list(ctx.primals), saved, tangents)
        placed: list[torch.Tensor | None] = [None] * (2 + executable.primal_count)
        for place, gradient, needed in zip(
            executable.gradient_places, gradients, executable.needed_tangents, strict=True
        ):
            if not needed <= absent:  # what only unused outputs depend on gets no gradient at all
                placed[2 + place] = gradient
        return tuple(placed)


def _check_versions(ctx: Any, executable: Executable) -> None:
    """Refuse to differentiate with values that were overwritten since the forward, as autograd does."""
    for place, value, version in zip(executable.program.backward_primals, ctx.primals, ctx.versions, strict=True):
        if torch_api.version_of(value) != version and place not in executable.overwritten:
            raise RuntimeError(
                f"{executable.names[place]} was modified in place after the forward, and its backward still needs "
                f"it: version {torch_api.version_of(value)}, expected {version}"
            )
    for place, version in zip(executable.program.saved_outputs, ctx.output_versions, strict=True):
        if torch_api.version_of(ctx.saved[place]) != version:
            raise RuntimeError("an output was modified in place after the forward, and the backward still needs it")
