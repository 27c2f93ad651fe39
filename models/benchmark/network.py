"""A network on one device: traced once, then planned and run any number of times.

On the device ``fake`` nothing is computed: the real planned program runs on tensors without memory
(FakeTensorMode), whose storages the meter counts as it counts real ones. So any network fits at any batch; what
kernels take and give back inside one call does not show, and times are a roofline's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from ogc_plan.adapters.pytorch.binding.bound_module import bound
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.execution.executor import Executor
from ogc_plan.adapters.pytorch.step.annotate import annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner.infeasible import Asked
from ogc_plan.planner.model import Model, from_annotation
from ogc_plan.planner.pipeline import assembled
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.solution import Solution
from ogc_plan.planner.solver import Solver
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

FAKE = "fake"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a network runs: ``fake``, or a device of torch; without a GPU of its own the ``roofline`` gives times."""

    name: str
    roofline: str | None = None

    @property
    def fake(self) -> bool:
        """Whether tensors have no memory."""
        return self.name == FAKE

    @property
    def device(self) -> torch.device:
        """The device of tensors; fake ones say that they are on the CPU."""
        return torch.device("cpu" if self.fake else self.name)

    def described(self) -> str:
        """In words, for results."""
        if self.fake:
            return f"fake tensors of the CPU graph, no GPU; times predicted by the roofline of {self.roofline}"
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"


PREDICTED = Place(FAKE, "rtx2080ti")
"""Fake tensors, by the card that OGC was published with."""


def without_dropout(module: nn.Module) -> nn.Module:
    """The module with every Dropout replaced by Identity, as the published benchmark does."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                setattr(parent, name, nn.Identity())
    return module


class Network:
    """A module in training mode with its inputs, the model that the planner sees, and how to run a plan of it.

    ``build`` and ``inputs`` are called with the place's device as torch's default; floating inputs take a
    gradient. Raises what `capture` raises.
    """

    def __init__(
        self, name: str, build: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], place: Place
    ) -> None:
        self.name, self.place, self._inputs = name, place, inputs
        self._mode = FakeTensorMode() if place.fake else None
        with self.active():
            torch.manual_seed(0)
            self.module = without_dropout(build()).train()
            arguments = self.arguments()
        step = TracedStep(capture(self.module, arguments))
        self._annotated = annotate(step, measure=not place.fake)
        self.model: Model = from_annotation(self._annotated.annotation, name=name, device=place.roofline)
        self.store_all = self.model.store_all()
        self.problem: Problem = self.model.problem(Scope.ACTIVATIONS)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it, tensors are made on the place; everything that runs the network runs inside."""
        with self._mode or nullcontext(), self.place.device:
            yield

    def arguments(self) -> tuple[Tensor, ...]:
        """New inputs; call it inside `active`."""
        drawn = (t.uniform_() if t.is_floating_point() else t for t in self._inputs())
        return tuple(tensor.requires_grad_(tensor.is_floating_point()) for tensor in drawn)

    @property
    def plain_nbytes(self) -> int:
        """The activation peak of a step that stores everything."""
        return self.store_all.peak_activation_nbytes

    @cached_property
    def accumulating(self) -> Model:
        """The model of a step that finds gradients there, as those that were published did."""
        annotation, roofline = self._annotated.annotation, self.place.roofline
        return from_annotation(annotation, name=self.name, device=roofline, grad_accumulation=True)

    @cached_property
    def counted(self) -> Problem:
        """The step whose peaks are the published script's count, `uncounted_nbytes` above it."""
        return self.accumulating.problem(Scope.TOTAL)

    @property
    def uncounted_nbytes(self) -> int:
        """What stands before and after a step of the published script: all that is constant but the inputs."""
        stationary = self.accumulating.training.stationary
        return stationary.total_nbytes - stationary.input_nbytes

    def plan(self, solution: Solution, solver: Solver, *, counted: bool = False) -> Plan:
        """The plan of a solution of `problem`, or of `counted`, that has decisions, replayed and checked."""
        asked = Asked(f"{solution.peak_nbytes}B", solution.peak_nbytes)
        if counted:
            return assembled(self.accumulating, self.counted, asked, solution, solver)
        return assembled(self.model, self.problem, asked, solution, solver)

    def planned(self, plan: Plan) -> nn.Module:
        """The module, training by the plan."""
        return bound(self.module, Executor(self.module, plan, self._annotated))
