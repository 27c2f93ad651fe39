"""The annotation of a step for the planner: its graph, the work of each op, and measured workspace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import fx

from ....planner.annotations import Annotation, OpWork, fingerprint
from ....planner.training_graph import OpCost
from ..errors import warn
from ..memory.workspace_meter import WorkspaceMeter
from .gradient_release import with_ends
from .op_work import NodeWork, work_of
from .op_workspace import Workspace, workspaces
from .step_graph import TracedStep
from .step_ops import GradientCopy, StepOp

NOISY = 0.2
"""How far the two best runs of a call may be apart, weighted by time: up to 0.12 on a machine with a load of 1.4 for
each core. From 0.2 on the sum of all was seen to be 1.1 to 2.4 times that of a quiet run.
"""


@dataclass(frozen=True, slots=True)
class Annotated:
    """A step with its annotation.

    Attributes:
        step: the step, with measured sizes.
        visible: the workspaces that a meter of tensors sees, without memory that a kernel frees before it returns.
        meter: what measured the calls, or measures them when it is asked.
    """

    step: TracedStep
    annotation: Annotation
    visible: tuple[Workspace, ...]
    meter: WorkspaceMeter


def annotate(
    step: TracedStep, *, measure: bool = True, timed: bool = True, known: WorkspaceMeter | None = None
) -> Annotated:
    """Describe a step for the planner; with ``measure``, run every distinct call to learn its workspace.

    Times are 0 unless they are ``timed``, too. ``known`` has measured calls of this step before. Warns about calls that
    could not be measured; they are charged with their results only.
    """
    known = WorkspaceMeter(device_of(step), step.reuse.calls, timed=timed) if known is None else known
    known.timed = timed
    meter = known if measure else None
    if meter is not None:
        meter.measure(step.calls)
        step = step.resized({node: meter.storage_nbytes(node) for node in step.calls})
    graph = replace(with_ends(step), fingerprint=fingerprint(step.graph))
    visible = workspaces(step, None)
    full = workspaces(step, meter.peak_without) if meter is not None else visible
    works = [_work(op, workspace, meter) for op, workspace in zip(step.ops, full, strict=True)]
    annotation = Annotation(
        graph, tuple(works), tuple(op.scope for op in step.ops), f"torch {torch.__version__}", device_text(step)
    )
    if meter is not None and meter.unmeasured:
        names = ", ".join(sorted(meter.unmeasured))
        warn(f"the workspace of {names} is unknown and not charged to the budget")
    if meter is not None and meter.noise > NOISY:
        warn(
            f"times are too noisy to plan by: two runs of a call differ by {meter.noise:.0%}, so the plan may compute "
            "the wrong ops again; plan while the machine is quiet, or by profile=profile(model, args) or device=...",
        )
    return Annotated(step, annotation, visible, known)


def device_text(step: TracedStep) -> str:
    """The device that workspace and times are valid for: ``"cpu, 2 threads"``, or the name of the GPU."""
    device = device_of(step)
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return cpu_text()


def cpu_text() -> str:
    """The CPU with its current number of threads: ``"cpu, 2 threads"``."""
    return f"cpu, {torch.get_num_threads()} threads"


def device_of(step: TracedStep) -> torch.device:
    """The device the step computes on."""
    devices = {step.joint.primals[i].node.meta["val"].device for i, _ in step.joint.gradients}
    return sorted(devices, key=lambda device: (device.type == "cpu", str(device)))[0]


def _work(op: StepOp, workspace: Workspace, meter: WorkspaceMeter | None) -> OpWork:
    nodes = [node for node in op.backward if isinstance(node, fx.Node)]
    forward = [work_of(node) for node in op.runs]
    backward = [work_of(node) for node in nodes]
    backward += [NodeWork(0, 2 * node.nbytes, 1, False) for node in op.sums if isinstance(node, GradientCopy)]
    return OpWork(
        sum(work.flops for work in forward),
        sum(work.traffic_nbytes for work in forward),
        sum(work.kernels for work in forward),
        sum(work.flops for work in backward),
        sum(work.traffic_nbytes for work in backward),
        sum(work.kernels for work in backward),
        any(work.half for work in (*forward, *backward)),
        *workspace,
        sum(meter.time_ns(node) for node in op.runs) if meter is not None and meter.timed else 0,
        sum(meter.time_ns(node) for node in nodes) if meter is not None and meter.timed else 0,
    )


def visible_costs(costs: tuple[OpCost, ...], visible: tuple[Workspace, ...]) -> tuple[OpCost, ...]:
    """The costs with only the workspace that a storage meter sees."""
    return tuple(
        OpCost(cost.forward_ns, cost.backward_ns, *workspace) for cost, workspace in zip(costs, visible, strict=True)
    )
