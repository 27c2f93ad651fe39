"""Times of ops inside a real training step, with its own values and memory, and other ops before and after.

A call that runs repeatedly by itself finds its inputs in the caches, and invented values hide what depends on values
(denormal numbers take a CPU many times as long).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from ....planner.errors import AdapterError, OgcPlanError
from ....planner.schedule import Schedule, StepKind
from .. import torch_private
from ..capture.diagnostics import first_line
from ..joint import meta
from ..memory.allocations import tensors
from ..step.step_graph import TracedStep
from ..torch_private import pytree
from .attachment import Attachment, Order
from .codegen import NO_STEP, Program, generate
from .module_settings import settings_of

_WARM_UPS = 2
_TOGETHER = 64
"""Steps that are launched while the card is kept busy, so that the time of a kernel does not include its launch."""
_LONGEST_LAUNCHING_NS = 50_000_000


class OpTime(NamedTuple):
    """Nanoseconds of one forward run of an op, including the release of its results, and of its backward."""

    forward_ns: int
    backward_ns: int


class Clock:
    """When each step ends: CUDA events, or the time of the host for kernels that have finished when their call returns.

    With one thread that is the thread's processor time, which other processes do not lengthen. On CUDA the card is kept
    busy before every few steps, for as long as the host took to launch so many when the last steps were read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._now: Callable[[], Any] = self._event
        if device.type != "cuda":
            self._now = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
        self._steps: list[tuple[int, Any]] = []
        self._launched: list[int] = []  # the host's time at the first of every few steps
        self._launching_ns = 0

    def on_step(self, position: int) -> None:
        """Record that a step has run."""
        self._steps.append((position, self._now()))
        if self._device.type == "cuda" and len(self._steps) % _TOGETHER == 1:
            self._launched.append(time.perf_counter_ns())
            if self._launching_ns:
                torch_private.keep_busy(self._launching_ns, self._device)
                self._steps.append((NO_STEP, self._now()))

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def read(self) -> list[tuple[int, float]]:
        """The steps that ran since the last call, with their times in ns."""
        positions, self._steps = self._steps, []
        if self._device.type != "cuda":
            return positions
        begun, self._launched = [*self._launched, time.perf_counter_ns()], []
        self._launching_ns = min(_LONGEST_LAUNCHING_NS, max((b - a for a, b in pairwise(begun)), default=0))
        torch.cuda.synchronize(self._device)
        return [(position, 1e6 * positions[0][1].elapsed_time(event)) for position, event in positions]


def op_times(
    step: TracedStep,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    schedule: Schedule,
    device: torch.device,
    rounds: int,
) -> list[OpTime]:
    """The times of all ops: medians of ``rounds`` real steps on ``device`` that run ``schedule``.

    An op that runs several times gets the mean of its runs. The module, its buffers and gradients, and the random
    generators stay as they are. Raises AdapterError if the step fails.
    """
    clock = Clock(device)
    program = generate(step, schedule, clock.on_step)
    primals = _primals(step, module, args, kwargs)
    found = []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda"))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        try:
            for number in range(_WARM_UPS + rounds):
                _run(step, program, primals)
                positions = clock.read()
                if number >= _WARM_UPS:
                    found.append(_by_op(step, schedule, positions))
        except OgcPlanError:
            raise
        except Exception as error:  # kernels may refuse real values, and memory may run out
            raise AdapterError(
                f"a step of {type(module).__name__} fails when it is profiled: {first_line(error)}",
                remedy='where memory ran out, pass a budget that fits, such as profile(..., budget="50%")',
            ) from error
    return [
        OpTime(*(round(statistics.median(times)) for times in zip(*runs, strict=True)))
        for runs in zip(*found, strict=True)
    ]


def _primals(
    step: TracedStep, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> Callable[[], list[torch.Tensor]]:
    """A function that makes the inputs of one step, with copies of the buffers that the step overwrites."""
    joint = step.joint
    attachment = Attachment(module, joint, settings_of(module, joint.reads))
    metas = [meta(tensor) for tensor in attachment.own_tensors()]
    leaves = pytree.tree_leaves((args, dict(kwargs or {})))
    overwritten = joint.overwritten

    def made() -> list[torch.Tensor]:
        found = Order(joint.primals)(attachment.checked_tensors(joint.primals, metas), leaves)
        return [tensor.clone() if position in overwritten else tensor for position, tensor in enumerate(found)]

    return made


def _run(step: TracedStep, program: Program, primals: Callable[[], list[torch.Tensor]]) -> None:
    given = primals()
    needed = [given[position] for position in program.backward_primals]
    with torch_private.WithoutAutocast():
        outputs, saved = program.forward(given)
        del outputs
        tangents = [_ones(tensors(node)[0]) for node in step.joint.tangents if node is not None]
        for gradients in program.backward(needed, saved, tangents):
            gradients.clear()


def _ones(traced: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype, device=traced.device).fill_(1)


def _by_op(step: TracedStep, schedule: Schedule, positions: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """(forward, backward) of each op in one step; freeing a result belongs to the op that made it."""
    maker = {storage: index for index, op in enumerate(step.graph.ops) for storage in op.writes}
    steps = list(schedule)
    forward, backward, runs = ([0.0] * len(step.ops) for _ in range(3))
    for (_, before), (position, now) in pairwise(positions):
        if position == NO_STEP:
            continue  # between the forward and the backward, or while the card was kept busy
        at = steps[position]
        if at.kind is StepKind.BACKWARD:
            backward[at.index] += now - before
        elif at.kind is StepKind.FREE:
            forward[at.index if at.random_state else maker[at.index]] += now - before
        else:
            forward[at.index] += now - before
            runs[at.index] += 1
    return [(whole / max(1, count), back) for whole, count, back in zip(forward, runs, backward, strict=True)]
